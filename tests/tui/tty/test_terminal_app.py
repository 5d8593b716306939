from pathlib import Path

import pytest
from waiting import until_shown

from vramtop.tui.tty.terminal_app import TerminalApp


@pytest.mark.parametrize("removed", [False, True])
async def test_a_picture_is_saved_where_the_dashboard_was_started_or_in_downloads_if_that_was_removed(
    removed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, folder = tmp_path / "home", tmp_path / "here"
    (home / "Downloads").mkdir(parents=True)
    folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(folder)
    if removed:
        folder.rmdir()
    app = TerminalApp(colours="true", ascii_only=False)
    async with app.run_test(size=(80, 24)) as pilot:
        app.deliver_screenshot("picture.svg")
        saved = home / "Downloads" / "picture.svg" if removed else folder / "picture.svg"
        await until_shown(pilot, lambda: saved.is_file() and "</svg>" in saved.read_text())
        assert removed or saved.stat().st_mode & 0o777 == 0o600
    assert app.crash is None
