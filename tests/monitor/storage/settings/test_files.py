"""Reading and changing ``config.toml``, with real files."""

import os
import stat
import threading
from pathlib import Path

import pytest

from vramtop.estimator.common.errors import CannotTellError
from vramtop.monitor.storage.settings.change import change_settings, save_setting
from vramtop.monitor.storage.settings.in_force import DEFAULT, SettingsInForce, settings_in_force
from vramtop.monitor.storage.settings.settings_file import config_file

COMMENTED = """\
# mine

[dashboard]  # what I look at
theme = "nord"   # in the evening
# interval = 1

[estimates]
method = "exact"
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in [name for name in os.environ if name.startswith("VRAMTOP_") or name == "TEXTUAL_THEME"]:
        monkeypatch.delenv(name)
    return tmp_path


def write(text: str) -> Path:
    file = Path(config_file())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o600)
    return file


def said(settings: SettingsInForce) -> list[str]:
    return [problem.sentence for problem in settings.problems]


def test_what_is_wrong_is_said_with_its_line_and_the_rest_is_used(folders: Path) -> None:
    file = write('[dashboard]\nintervall = 2\nview = "tree"\n\n# a\ncolumns = [\n "PID",\n "NO"]\n[hosts]\nssh = 1\n')
    settings = settings_in_force()
    assert settings.values["dashboard.view"] == "tree"
    assert settings.values["dashboard.columns"] == ()
    first, second, third = said(settings)
    assert first == f"{file}, line 2: there is no setting dashboard.intervall; did you mean dashboard.interval?"
    assert second.startswith(
        f'{file}, line 6: dashboard.columns = ["PID", "NO"]: "NO" is wrong; give a list of: "PID", '
    )
    assert second.endswith("until then [] is used")
    assert third.startswith(f"{file}, line 10: hosts.ssh = 1: give ")


def test_a_change_keeps_comments_order_and_permissions(folders: Path) -> None:
    file = write(COMMENTED)
    file.chmod(0o640)
    change_settings({"dashboard.theme": "gruvbox", "dashboard.view": "tree", "hosts.ssh": "ssh -4"})
    text = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert text.startswith('# mine\n\n[dashboard]  # what I look at\ntheme = "gruvbox"   # in the evening\n')
    assert "# interval = 1\n" in text
    settings = settings_in_force()
    assert settings.values["dashboard.view"] == "tree"
    assert settings.values["hosts.ssh"] == "ssh -4"
    change_settings({"dashboard.theme": None, "hosts.ssh": None})
    assert settings_in_force().origins["dashboard.theme"] == DEFAULT
    assert settings_in_force().values["hosts.ssh"] == "ssh"
    assert "# interval = 1\n" in file.read_text()


def test_a_new_file_is_private(folders: Path) -> None:
    change_settings({"dashboard.theme": "nord"})
    assert stat.S_IMODE(Path(config_file()).stat().st_mode) == 0o600


def test_what_runs_a_program_is_taken_only_from_a_file_that_nobody_else_may_write(folders: Path) -> None:
    file = write('[hosts]\nssh = "echo"\n[estimates]\nmethod = "exact"\n')
    assert settings_in_force().values["hosts.ssh"] == "echo"
    file.chmod(0o666)
    settings = settings_in_force()
    assert settings.values["hosts.ssh"] == "ssh"
    assert settings.values["estimates.method"] == "exact"
    assert "others may change it: anyone may write to it" in said(settings)[0]
    file.chmod(0o600)
    file.parent.chmod(0o777)
    assert settings_in_force().values["hosts.ssh"] == "ssh"
    file.parent.chmod(0o700)
    assert settings_in_force().values["hosts.ssh"] == "echo"


def test_a_folder_that_cannot_be_written_is_said_and_nothing_is_lost(folders: Path) -> None:
    (folders / "config").write_text("a file where the folder would be")
    heard: list[str] = []
    save_setting("dashboard.view", "tree", heard.append)
    for thread in [each for each in threading.enumerate() if each.name == "save settings"]:
        thread.join(10)
    (sentence,) = heard
    assert "cannot be written" in sentence


def test_the_device_null_is_no_file(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write('[dashboard]\ntheme = "nord"\n')
    monkeypatch.setenv("VRAMTOP_CONFIG", os.devnull)
    assert set(settings_in_force().origins.values()) == {DEFAULT}
    assert not settings_in_force().problems
    save_setting("dashboard.view", "tree", pytest.fail)
    assert not [thread for thread in threading.enumerate() if thread.name == "save settings"]
    with pytest.raises(CannotTellError, match="without a settings file"):
        change_settings({"dashboard.view": "tree"})


def test_nothing_is_read_from_the_current_folder_where_no_home_is_known(folders, monkeypatch) -> None:
    monkeypatch.chdir(folders)
    monkeypatch.setenv("XDG_CONFIG_HOME", "here")
    planted = folders / "here" / "vramtop"
    planted.mkdir(parents=True)
    (planted / "config.toml").write_text('[dashboard]\nview = "tree"\n')
    assert set(settings_in_force().origins.values()) == {DEFAULT}
    with pytest.raises(CannotTellError, match="HOME"):
        change_settings({"dashboard.view": "runs"})


def test_a_setting_that_there_is_not_is_named_and_stays_in_the_file(folders: Path) -> None:
    text = "[history]\nmax_runs = 5\nenabled = false\n"
    file = write(text)
    settings = settings_in_force()
    [sentence] = said(settings)
    assert sentence.startswith(f"{file}, line 2: there is no setting history.max_runs; ")
    assert settings.values["history.enabled"] is False
    change_settings({"history.enabled": None})
    assert file.read_text() == "[history]\nmax_runs = 5\n"


def test_a_file_that_a_change_would_damage_stays_and_the_sentence_says_what_to_do(folders: Path) -> None:
    file = write("hosts = 3\n")
    with pytest.raises(CannotTellError) as error:
        change_settings({"hosts.ssh": "c"})
    assert error.value.message.endswith('write into it yourself: hosts.ssh = "c".')
    assert file.read_text() == "hosts = 3\n"
