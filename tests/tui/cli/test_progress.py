import io
import threading
import time

import pytest

from vramtop.tui.cli import progress
from vramtop.tui.cli.progress import Progress


class Screen(io.StringIO):
    """A terminal that records its output and the time of the first write."""

    def __init__(self, *, tty: bool) -> None:
        super().__init__()
        self.tty = tty
        self.written = threading.Event()

    def isatty(self) -> bool:
        return self.tty

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_FIRST_SECONDS", 0.01)
    monkeypatch.setattr(progress, "_STEP_SECONDS", 0.01)


@pytest.mark.usefixtures("_soon")
def test_a_long_task_is_shown_in_one_line_that_is_erased():
    screen = Screen(tty=True)
    with Progress(screen) as say:
        say("tracing two steps of\x1b[2J gpt2")
        assert screen.written.wait(10)
    text = screen.getvalue()
    assert "tracing two steps of [2J gpt2, 0 s; Ctrl-C cancels" in text
    assert "\n" not in text
    assert text.endswith(" \r")


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize(("tty", "quiet"), [(False, False), (True, True)])
def test_pipes_and_json_get_no_progress_line(tty, quiet):
    screen = Screen(tty=tty)
    with Progress(screen, quiet=quiet) as say:
        say("tracing")
        time.sleep(0.05)
    assert screen.getvalue() == ""
