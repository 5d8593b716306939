"""Reading and changing ``config.toml``, and taking over ``settings.json``, with real files."""

import json
import os
import stat
import threading
from pathlib import Path

import pytest
from platformdirs import user_config_dir, user_data_dir

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.monitor.storage.settings.change import change_settings, save_setting, settings_template
from vramtop.monitor.storage.settings.in_force import (
    DEFAULT,
    FILE,
    OLD_FILE,
    SettingsInForce,
    config_file,
    old_settings_file,
    settings_in_force,
)

COMMENTED = """\
# mine

[dashboard]  # what I look at
theme = "nord"   # in the evening
# interval = 1

[alerts]
quiet_hours = "22:00-07:00"
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


def write_old(**content: object) -> Path:
    file = Path(old_settings_file() or "")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"version": 1, "content": content}))
    return file


def said(settings: SettingsInForce) -> list[str]:
    return [problem.sentence for problem in settings.problems]


def test_without_a_file_all_defaults_are_in_force(folders: Path) -> None:
    settings = settings_in_force()
    assert not settings.problems
    assert set(settings.origins.values()) == {DEFAULT}
    assert settings.number("dashboard.interval") == 1
    assert not list(folders.iterdir())


def test_the_environment_comes_before_the_file_and_that_before_the_default(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write('[dashboard]\ninterval = 2\ntheme = "nord"\nview = "tree"\n')
    monkeypatch.setenv("VRAMTOP_DASHBOARD_INTERVAL", "3")
    monkeypatch.setenv("TEXTUAL_THEME", "gruvbox")
    settings = settings_in_force()
    assert settings.values["dashboard.interval"] == 3.0
    assert settings.origins["dashboard.interval"] == "VRAMTOP_DASHBOARD_INTERVAL"
    assert settings.values["dashboard.theme"] == "gruvbox"
    assert (settings.values["dashboard.view"], settings.origins["dashboard.view"]) == ("tree", FILE)
    assert settings.origins["dashboard.sort"] == DEFAULT


def test_what_is_wrong_is_said_with_its_line_and_the_rest_is_used(folders: Path) -> None:
    file = write('[dashboard]\nintervall = 2\nview = "tree"\n\n# a\ncolumns = [\n "PID",\n "NO"]\n[keys]\nsort = 1\n')
    settings = settings_in_force()
    assert settings.values["dashboard.view"] == "tree"
    assert settings.values["dashboard.columns"] == ()
    first, second, third = said(settings)
    assert first == f"{file}, line 2: there is no setting dashboard.intervall; did you mean dashboard.interval?"
    assert second.startswith(
        f'{file}, line 6: dashboard.columns = ["PID", "NO"]: "NO" is wrong; give a list of: "PID", '
    )
    assert second.endswith("until then [] is used")
    assert third.startswith(f"{file}, line 10: keys.sort = 1: give ")


def test_a_file_that_is_no_toml_is_said_with_its_line_and_is_never_overwritten(folders: Path) -> None:
    file = write("[dashboard]\ntheme = nord\n")
    settings = settings_in_force()
    assert set(settings.origins.values()) == {DEFAULT}
    (sentence,) = said(settings)
    assert sentence.startswith(f"{file}, line 2: ")
    with pytest.raises(InputError, match="line 2"):
        change_settings({"dashboard.view": "tree"})
    assert file.read_text() == "[dashboard]\ntheme = nord\n"


def test_a_change_keeps_comments_order_and_permissions(folders: Path) -> None:
    file = write(COMMENTED)
    file.chmod(0o640)
    change_settings({"dashboard.theme": "gruvbox", "dashboard.view": "tree", "hosts.groups.train": "node[01-16]"})
    text = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert text.startswith('# mine\n\n[dashboard]  # what I look at\ntheme = "gruvbox"   # in the evening\n')
    assert "# interval = 1\n" in text
    settings = settings_in_force()
    assert settings.values["dashboard.view"] == "tree"
    assert settings.values["hosts.groups"] == {"train": "node[01-16]"}
    change_settings({"dashboard.theme": None, "hosts.groups.train": None})
    assert settings_in_force().origins["dashboard.theme"] == DEFAULT
    assert settings_in_force().values["hosts.groups"] == {}
    assert "# interval = 1\n" in file.read_text()


def test_a_new_file_is_private(folders: Path) -> None:
    change_settings({"dashboard.theme": "nord"})
    assert stat.S_IMODE(Path(config_file()).stat().st_mode) == 0o600


def test_what_runs_a_program_is_taken_only_from_a_file_that_nobody_else_may_write(folders: Path) -> None:
    file = write('[alerts]\ncommand = "echo"\nsignal = "bell"\n')
    assert settings_in_force().values["alerts.command"] == "echo"
    file.chmod(0o666)
    settings = settings_in_force()
    assert settings.values["alerts.command"] == ""
    assert settings.values["alerts.signal"] == "bell"
    assert "others may decide what it says: anyone may write to it" in said(settings)[0]
    file.chmod(0o600)
    file.parent.chmod(0o777)
    assert settings_in_force().values["alerts.command"] == ""
    file.parent.chmod(0o700)
    assert settings_in_force().values["alerts.command"] == "echo"


def test_the_old_file_is_read_until_the_first_change_takes_it_over(folders: Path) -> None:
    old = write_old(
        theme="nord", process_view="tree", process_columns="PID,USER", host_line="off", attach="off", quiet_hours="off",
        later="kept",
    )  # fmt: skip
    before = settings_in_force()
    assert before.origins["dashboard.theme"] == OLD_FILE
    assert before.values["attach.automatic"] is False
    assert before.values["dashboard.host_line"] is False
    assert before.values["dashboard.columns"] == ("PID", "USER")
    change_settings({})
    after = settings_in_force()
    assert after.values == before.values
    assert after.origins["dashboard.view"] == FILE
    assert not old.exists()
    assert "later" in old.with_name("settings.json.taken-over").read_text()


def test_the_old_file_never_replaces_what_the_new_one_has(folders: Path) -> None:
    write('[dashboard]\ntheme = "gruvbox"\n')
    write_old(theme="nord", process_view="tree")
    assert settings_in_force().values["dashboard.theme"] == "gruvbox"
    change_settings({"dashboard.host_line": False})
    settings = settings_in_force()
    assert settings.values["dashboard.theme"] == "gruvbox"
    assert settings.values["dashboard.view"] == "tree"


@pytest.mark.parametrize(
    "text", ['{"version": 2, "content": {"theme": "nord"}}', "{", '{"version": 1, "content": 3}', "[" * 100_000]
)
def test_an_old_file_that_cannot_be_read_stays_and_is_said(folders: Path, text: str) -> None:
    old = write_old()
    old.write_text(text)
    assert len(said(settings_in_force())) == 1
    change_settings({"dashboard.theme": "nord"})
    assert old.read_text() == text
    assert settings_in_force().values["dashboard.theme"] == "nord"


def test_many_changes_at_once_are_all_kept(folders: Path) -> None:
    threads = [
        threading.Thread(target=change_settings, args=({f"hosts.groups.g{number}": f"n{number}"},))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert settings_in_force().mapping("hosts.groups") == {f"g{number}": f"n{number}" for number in range(8)}


def test_a_folder_that_cannot_be_written_is_said_and_nothing_is_lost(folders: Path) -> None:
    (folders / "config").write_text("a file where the folder would be")
    old = write_old(theme="nord")
    heard: list[str] = []
    save_setting("dashboard.view", "tree", heard.append)
    for thread in [each for each in threading.enumerate() if each.name == "save settings"]:
        thread.join(10)
    (sentence,) = heard
    assert "cannot be written" in sentence
    assert old.exists()
    assert settings_in_force().values["dashboard.theme"] == "nord"


def test_the_device_null_is_no_file(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write('[dashboard]\ntheme = "nord"\n')
    monkeypatch.setenv("VRAMTOP_CONFIG", os.devnull)
    assert set(settings_in_force().origins.values()) == {DEFAULT}
    assert not settings_in_force().problems
    save_setting("dashboard.view", "tree", pytest.fail)
    assert not [thread for thread in threading.enumerate() if thread.name == "save settings"]
    with pytest.raises(CannotTellError, match="no file"):
        change_settings({"dashboard.view": "tree"})


def test_in_a_filled_in_template_a_setting_takes_the_place_of_its_comment(folders: Path) -> None:
    file = write(settings_template())
    lines = file.read_text().splitlines()
    change_settings({"dashboard.theme": "nord", "alerts.off": ("growing",), "prometheus.interval": 10.0})
    after = file.read_text().splitlines()
    assert len(after) == len(lines)
    changed = [(old, new) for old, new in zip(lines, after, strict=True) if old != new]
    assert changed == [
        ('# theme = "vramtop-dark"', 'theme = "nord"'),
        ("# off = []", 'off = ["growing"]'),
        ("# interval = 5", "interval = 10"),
    ]
    settings = settings_in_force()
    assert settings.values["prometheus.interval"] == 10
    assert settings_in_force().origins["dashboard.interval"] == DEFAULT


def test_a_comment_of_the_user_is_never_taken_for_one_of_the_template(folders: Path) -> None:
    file = write('[dashboard]\n# view = nothing for me\nuser = [\n  "# view",\n]\n')
    change_settings({"dashboard.view": "tree"})
    assert file.read_text() == '[dashboard]\n# view = nothing for me\nuser = [\n  "# view",\n]\nview = "tree"\n'


def test_nothing_is_read_from_the_current_folder_where_no_home_is_known(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folders)
    monkeypatch.setenv("XDG_CONFIG_HOME", "here")
    monkeypatch.setenv("XDG_DATA_HOME", "here")
    planted = folders / "here" / "vramtop"
    planted.mkdir(parents=True)
    (planted / "config.toml").write_text('[dashboard]\nview = "tree"\n')
    (planted / "settings.json").write_text('{"version": 1, "content": {"theme": "nord"}}')
    assert set(settings_in_force().origins.values()) == {DEFAULT}
    with pytest.raises(CannotTellError, match="HOME"):
        change_settings({"dashboard.view": "runs"})


def test_the_files_are_where_platformdirs_has_them(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        for value in (str(folders / "x"), "", None):
            if value is None:
                monkeypatch.delenv(name)
            else:
                monkeypatch.setenv(name, value)
            assert Path(config_file()) == Path(user_config_dir("vramtop")) / "config.toml"
            assert Path(old_settings_file() or "") == Path(user_data_dir("vramtop")) / "settings.json"
