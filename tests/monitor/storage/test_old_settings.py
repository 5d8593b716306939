import stat
import threading
from pathlib import Path

from vramtop.monitor.storage.old_settings import HOST_LINE, OFF, ON, Settings, is_on


def wait_until_written() -> None:
    for thread in threading.enumerate():
        if thread.name == "save settings":
            thread.join(10)


def test_a_theme_is_kept_in_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "vramtop" / "settings.json"
    assert Settings(path).read() == {}
    Settings(path).save("theme", "nord")
    wait_until_written()
    assert Settings(path).read()["theme"] == "nord"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_settings_of_a_later_version_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"version": 1, "content": {"theme": "nord", "other": "kept"}}')
    Settings(path).save("theme", "gruvbox")
    wait_until_written()
    assert '"other": "kept"' in path.read_text()
    path.write_text('{"version": 2, "content": {}}')
    said: list[str] = []
    assert Settings(path, said.append).read() == {}
    Settings(path, said.append).save("theme", "nord")
    wait_until_written()
    assert path.read_text() == '{"version": 2, "content": {}}'
    assert all("another version of vramtop" in sentence for sentence in said)
    assert len(said) == 2


def test_a_damaged_file_is_renamed_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"version": 1, "content": {"theme": 7}}')
    said: list[str] = []
    assert Settings(path, said.append).read() == {}
    Settings(path, said.append).save("theme", "nord")
    wait_until_written()
    assert Settings(path).read()["theme"] == "nord"
    assert "is damaged" in said[0]
    assert "was kept as settings.json.damaged-" in said[1]


def test_the_line_about_the_host_is_shown_until_it_is_switched_off() -> None:
    assert is_on({"theme": "nord"}, HOST_LINE)
    assert not is_on({HOST_LINE: OFF}, HOST_LINE)
    assert is_on({HOST_LINE: ON}, HOST_LINE)


def test_a_file_that_cannot_be_read_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"version": 2, "content": {}}')
    said: list[str] = []
    settings = Settings(path, said.append)
    assert settings.read() == {}
    assert settings.attaches()
    assert len(said) == 1
