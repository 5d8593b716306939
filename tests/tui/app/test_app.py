"""The app: notices from before it is open, the saved theme, screenshots, and pending jobs of the command line."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from builders import ScriptedSource, make_gpu, make_snapshot
from waiting import until_shown

from vramtop.monitor.board.watchlist import Watchlist
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.options import AppOptions
from vramtop.tui.background.notices import Notices
from vramtop.tui.cli.main import main


def make_app(**options: Any) -> VramtopApp:
    watchlist = Watchlist(lambda job: pytest.fail("no job is known"))
    return VramtopApp(ScriptedSource([make_snapshot([make_gpu()])]), watchlist, AppOptions(**options))


async def test_a_chosen_theme_is_saved() -> None:
    kept: list[tuple[str, str]] = []
    app = make_app(theme="nord", save_setting=lambda *setting: kept.append(setting))
    async with app.run_test() as pilot:
        assert app.theme == "nord"
        await pilot.pause()
        assert kept == []
        app.theme = "textual-light"
        await pilot.pause()
        assert kept == [("dashboard.theme", "textual-light")]


async def test_a_saved_theme_that_no_longer_exists_is_said() -> None:
    app = make_app(theme="of-another-version")
    async with app.run_test() as pilot:
        assert app.theme in app.available_themes
        await pilot.pause()
        (notice,) = app._notifications
        assert notice.message.startswith("There is no theme of-another-version; ")


async def test_notices_from_before_the_dashboard_opens_are_shown_once_it_is_open() -> None:
    notices = Notices(["first"])
    app = make_app(notices=notices)
    notices.add("second")
    async with app.run_test() as pilot:
        await pilot.pause()
        assert [note.message for note in app._notifications] == ["first", "second"]


async def test_a_screenshot_is_saved_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = make_app()
    async with app.run_test() as pilot:
        app.action_screenshot()
        await until_shown(pilot, lambda: app._notifications)
        assert [path.suffix for path in tmp_path.iterdir()] == [".svg"]


def test_a_job_of_the_command_line_is_pending_while_the_dashboard_is_open(monkeypatch, tmp_path) -> None:
    waiting = []
    monkeypatch.setattr(VramtopApp, "run", lambda self, **_: waiting.append(self.watchlist.pending()))
    monkeypatch.setenv("TERM", "xterm-256color")
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    file = tmp_path / "job.toml"
    file.write_text('name = "once"\n[model]\nid = "gpt2"\n')
    assert main(["--job", str(file)]) == 0
    for thread in threading.enumerate():
        if thread.name == "save pending jobs":
            thread.join(10)
    assert main([]) == 0
    assert [[job.label for job in jobs] for jobs in waiting] == [["once"], []]
