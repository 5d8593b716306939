"""The report on a recording: whole, safe to open, and with the figures of the recording."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from eventful_recording import training_job, write_recording

from vramtop.estimator.estimation import estimate
from vramtop.monitor.sources.recorded import Recorded, read_recorded
from vramtop.monitor.sources.replay import demo_path
from vramtop.tui.html_report.plots import time_plot
from vramtop.tui.html_report.recording_page import gpu_plot, recording_page

HOSTILE = "<script>alert(1)</script><img src=http://192.0.2.1/x>\x1b[31m\u202e"


class Page(HTMLParser):
    """The elements of a page, its texts, and its links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}

    @property
    def text(self) -> str:
        return " ".join(self.texts)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return read_recorded(write_recording(tmp_path_factory.mktemp("page") / "run.jsonl"), estimate)


@pytest.fixture(scope="module")
def html(recorded: Recorded) -> str:
    return recording_page(recorded, made_by="vramtop 1")


def test_the_page_loads_nothing_and_runs_nothing(html: str) -> None:
    page = Page(html)
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "image", "use"}
    attributes = [(name, value or "") for _, found in page.elements for name, value in found.items()]
    assert not [
        name for name, _ in attributes if name.startswith("on") or name in ("src", "srcset", "style", "xlink:href")
    ]
    assert all(value.startswith("#") for name, value in attributes if name == "href")
    assert "url(" not in html
    assert "@import" not in html


def test_the_policy_allows_this_style_sheet_and_nothing_else(html: str) -> None:
    (policy,) = (found["content"] for tag, found in Page(html).elements if "http-equiv" in found)
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_whatever_a_recording_contains_is_text(tmp_path: Path) -> None:
    path = write_recording(
        tmp_path / "x<b>.jsonl", job=training_job(HOSTILE), command=f"python {HOSTILE}", user=HOSTILE
    )
    html = recording_page(read_recorded(path, estimate), made_by="vramtop 1")
    page = Page(html)
    assert not page.tags & {"script", "img"}
    assert "alert(1)" in page.text
    assert not set(html) & {"\x1b", "\u202e"}


def test_secrets_of_command_lines_are_masked(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_recording(path, command="python train.py --hub_token hf_abcdefghijklmnopqrstuvwxyz1234")
    assert "hf_abcdef" not in recording_page(read_recorded(path, estimate), made_by="vramtop 1")


def test_prediction_and_observation_stand_beside_each_other(html: str, recorded: Recorded) -> None:
    run = recorded.runs[0]
    peak, text = run.budget.peak, Page(html).text
    assert f"{peak.device_bytes / 2**30:.1f} GiB ({peak.low_bytes / 2**30:.1f} to " in text
    for size in (peak.components.weights, peak.components.optimizer):
        assert f"{size / 2**30:.2f}" in text
    assert "70.00" in text
    assert "OUT OF MEMORY" in text
    assert "Why? ran out of memory with 70.0 GiB" in text
    assert "micro_batch = 2" in text  # the job


def test_a_gap_of_the_recording_is_a_gap_of_the_line(recorded: Recorded) -> None:
    svg = time_plot(gpu_plot(recorded.gpus[1], recorded))
    (path,) = (each for each in svg.iter("path") if "data area" in each.get("class", ""))
    lines = [[float(at.split(",")[0]) for at in line.split()] for line in path.get("d", "").split("M")[1:]]
    assert len(lines) == 3
    span = recorded.recording.end - recorded.recording.begin
    ends = [round(line[-1] / 10_000 * span) for line in lines]
    begins = [round(line[0] / 10_000 * span) for line in lines]
    assert (ends[:2], begins[1:]) == ([19, 30], [25, 50])
    (gap,) = (each for each in svg.iter("rect") if each.get("class") == "gap")
    assert float(gap.get("x", "0").rstrip("%")) == pytest.approx(100 * 30 / span, abs=0.01)
    assert float(gap.get("width", "0").rstrip("%")) == pytest.approx(100 * 20 / span, abs=0.01)


def test_a_recording_of_one_reading_has_a_report(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "one.jsonl")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert "1 reading over 0 s" in Page(recording_page(read_recorded(path, estimate), made_by="vramtop 1")).text


@pytest.mark.slow
def test_as_many_readings_as_seconds_last_that_many_seconds() -> None:
    demo = read_recorded(demo_path(), estimate)
    text = Page(recording_page(demo, made_by="vramtop 1")).text
    assert f"{demo.recording.readings} readings over 3 min, one every 1.0 s" in text
