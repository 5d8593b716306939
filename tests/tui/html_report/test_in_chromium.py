"""The report in a real browser: it asks no server, keeps to its own policy, and is drawn in dark, light and print."""

import socket

import pytest
from chromium import look, needs_chromium
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
