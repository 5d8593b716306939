"""Plots as files of their own."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from eventful_recording import training_job, write_recording

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.estimation import estimate
from vramtop.monitor.sources.recorded import read_recorded
from vramtop.tui.html_report.page import save_plots
from vramtop.tui.html_report.recording_page import recording_plots


def test_each_plot_becomes_a_picture_of_its_own(tmp_path: Path) -> None:
    job = training_job("a & <b>")
    plots = recording_plots(read_recorded(write_recording(tmp_path / "run.jsonl", job=job), estimate))
    files = save_plots(plots, tmp_path / "plots")
    assert [file.name for file in files] == [f"{plot.name}.svg" for plot in plots]
    for file, plot in zip(files, plots, strict=True):
        root = ET.parse(file).getroot()  # noqa: S314 - just written
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        texts = list(root.itertext())
        assert plot.title in texts
        assert "budget" in texts or plot.name != "run-1"  # the legend
        assert "var(" not in file.read_text()  # which few programs but browsers know
    with pytest.raises(InputError, match="already exists"):
        save_plots(plots, tmp_path / "plots")
