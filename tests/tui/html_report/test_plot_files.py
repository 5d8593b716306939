"""Plots as files, by matplotlib itself."""

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from eventful_recording import training_job, write_recording

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.estimation import estimate
from vramtop.monitor.sources.recorded import read_recorded
from vramtop.tui.html_report.plot_files import require_matplotlib, save_plots
from vramtop.tui.html_report.recording_page import recording_plots


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_each_plot_becomes_a_file_of_its_own(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib", reason="the extra report is not installed")
    job = training_job("$\\frac{1}$ & <b>")  # would be mathematics, or markup
    plots = recording_plots(read_recorded(write_recording(tmp_path / "run.jsonl", job=job), estimate))
    files = save_plots(plots, tmp_path / "plots", kind)  # type: ignore[arg-type]
    assert [file.name for file in files] == [f"{plot.name}.{kind}" for plot in plots]
    for file in files:
        begin = file.read_bytes()
        if kind == "png":
            assert begin.startswith(b"\x89PNG")
        else:
            assert ET.fromstring(begin).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 - just written
    if kind == "svg":
        assert "<b>" in " ".join(ET.parse(tmp_path / "plots" / "run-1.svg").getroot().itertext())  # noqa: S314
    assert "matplotlib.pyplot" not in sys.modules  # no window, no display
    with pytest.raises(InputError, match="already exists"):
        save_plots(plots, tmp_path / "plots", kind)  # type: ignore[arg-type]


def test_without_matplotlib_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"pip install 'vramtop-budget\[report\]'"):
        require_matplotlib()
