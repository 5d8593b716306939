"""A terminal that goes away, and keys that come faster than screens open: neither is an error."""

import os
import signal
import sys
from typing import Any

import pytest
from textual.app import ComposeResult
from textual.binding import Binding
from textual.css.query import NoMatches
from textual.events import Key
from textual.screen import Screen
from textual.widgets import Label
from waiting import until, until_shown

from vramtop.tui.tty.terminal_app import TerminalApp

EARLY = """
from vramtop.tui.tty.terminal_app import TerminalApp

class Early(TerminalApp):
    def on_load(self):
        self.bell()
        self.set_timer(0.1, self.exit)

app = Early(colours="true", ascii_only=False)
app.run()
app.bell()
print("crash:", app.crash)
"""


class Opened(Screen[None]):
    """A screen whose key needs a widget of its own."""

    BINDINGS = [Binding("b", "look", "look"), Binding("escape", "app.pop_screen", "back")]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.looked = 0

    def compose(self) -> ComposeResult:
        yield Label("x")

    def action_look(self) -> None:
        self.query_one(Label)
        self.looked += 1


class Opens(TerminalApp):
    """An app with a key that opens the screen."""

    BINDINGS = [Binding("a", "open", "open")]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(colours="true", ascii_only=False)
        self.opened = Opened()

    def action_open(self) -> None:
        self.push_screen(self.opened)


def press_at_once(app: TerminalApp, *keys: str) -> None:
    for key in keys:
        app.post_message(Key(key, key if len(key) == 1 else None))


async def test_a_key_waits_for_the_screen_that_the_key_before_it_opens() -> None:
    app = Opens()
    async with app.run_test() as pilot:
        press_at_once(app, "a", "b", "b")
        await until_shown(pilot, lambda: app.opened.looked == 2)
    assert app.crash is None


def test_what_fails_because_the_app_ends_is_no_crash() -> None:
    app = Opens()
    app.exit(return_code=3)
    app._handle_exception(NoMatches("its screen is gone"))
    assert (app.crash, app.return_code) == (None, 3)


def test_nothing_is_written_before_the_start_and_after_the_end(on_terminal: Any) -> None:
    program = on_terminal(program=(sys.executable, "-c", EARLY))
    assert program.end() == 0
    assert b"crash: None" in program.written
    assert b"AssertionError" not in program.written


@pytest.mark.parametrize(
    ("how", "drawn"),
    [("closed", False), ("SIGHUP", True), ("SIGTERM, then SIGCONT", False)],  # the last as timeout does
)
def test_a_terminal_that_goes_away_while_keys_come_leaves_no_crash_file(how, drawn, on_terminal, tmp_path) -> None:
    dashboard = on_terminal("--demo", environ={"XDG_DATA_HOME": str(tmp_path)})
    dashboard.wait_for("Quit" if drawn else "\x1b[?1049h")
    dashboard.type("aif?\x1b\ta\rfjk" * 3)
    if how == "SIGHUP":
        os.kill(dashboard.pid, signal.SIGHUP)
    if how.startswith("SIGTERM"):
        os.kill(dashboard.pid, signal.SIGTERM)
        os.kill(dashboard.pid, signal.SIGCONT)
    dashboard.hang_up()
    until(dashboard.has_ended)
    assert not list(tmp_path.rglob("fault-*"))
    assert dashboard.code in (128 + signal.SIGHUP, 128 + signal.SIGTERM, -signal.SIGHUP, -signal.SIGTERM)
