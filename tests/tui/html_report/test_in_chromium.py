"""The report in a real browser: it asks no server, keeps to its own policy, and is drawn in dark, light and print."""

import socket
import subprocess
from pathlib import Path

import pytest
from chromium import command, look, needs_chromium
from eventful_recording import training_job, write_recording

from vramtop.estimator.estimation import estimate
from vramtop.monitor.sources.recorded import read_recorded
from vramtop.tui.html_report.recording_page import recording_page

pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.fixture
def canary() -> socket.socket:
    """A server that nobody should ask."""
    server = socket.create_server(("127.0.0.1", 0))
    server.setblocking(False)
    return server


def test_opening_a_hostile_recordings_report_asks_nobody_and_runs_nothing(tmp_path, canary) -> None:
    port = canary.getsockname()[1]
    hostile = f"<img src=http://127.0.0.1:{port}/x><script>document.title='run'</script>\"><svg onload=alert(1)>"
    recording = write_recording(tmp_path / "run.jsonl", job=training_job(hostile), command=hostile, user=hostile)
    html = recording_page(read_recorded(recording, estimate), made_by="vramtop 1")
    (tmp_path / "run.html").write_text(html)
    seen = look((tmp_path / "run.html").as_uri(), tmp_path)
    assert "Content Security Policy" not in seen  # the browser's words for what the policy stops
    assert "<title>GPU memory: run.jsonl - vramtop report</title>" in seen
    assert "document.title" in seen  # as text
    with pytest.raises(BlockingIOError):
        canary.accept()


@pytest.mark.parametrize(("mode", "words"), [("light", ()), ("dark", ("--blink-settings=preferredColorScheme=0",))])
def test_plots_are_drawn_in_dark_and_in_light(tmp_path: Path, mode: str, words: tuple[str, ...]) -> None:
    pytest.importorskip("matplotlib", reason="reads the picture")
    from matplotlib.image import imread

    html = recording_page(read_recorded(write_recording(tmp_path / "run.jsonl"), estimate), made_by="vramtop 1")
    (tmp_path / "run.html").write_text(html)
    picture = tmp_path / "page.png"
    words = (*words, "--window-size=500,2000", f"--screenshot={picture}", (tmp_path / "run.html").as_uri())
    subprocess.run(command(tmp_path / "profile", *words), capture_output=True, timeout=120, check=True)
    pixels = imread(picture)[:, :, :3]
    ground = pixels[2, 2].mean()
    assert (ground > 0.9) if mode == "light" else (ground < 0.2)
    blue = (abs(pixels - [0x4F / 255, 0x79 / 255, 0xA8 / 255]).max(axis=2) < 0.12).sum()
    red = (abs(pixels - [0xCB / 255, 0x1A / 255, 0x16 / 255]).max(axis=2) < 0.03).sum()
    assert blue > 144 + 300  # the square of the legend, and the lines of the GPUs
    assert red > 100  # moments, and words of alarm


def test_the_report_prints(tmp_path: Path) -> None:
    html = recording_page(read_recorded(write_recording(tmp_path / "run.jsonl"), estimate), made_by="vramtop 1")
    (tmp_path / "run.html").write_text(html)
    words = (f"--print-to-pdf={tmp_path / 'run.pdf'}", (tmp_path / "run.html").as_uri())
    subprocess.run(command(tmp_path / "profile", *words), capture_output=True, timeout=120, check=True)
    assert (tmp_path / "run.pdf").read_bytes().startswith(b"%PDF")
