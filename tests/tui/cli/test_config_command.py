"""``vramtop config`` and the settings file, on the real command line and with real files."""

import json
import os
from pathlib import Path

import pytest
from command_line import vramtop
from json_schemas import valid_json

from vramtop.monitor.storage.settings.schema import SETTINGS
from vramtop.tui.app.app import VramtopApp


@pytest.fixture
def file() -> Path:
    """The settings file, with its folder."""
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "vramtop" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


def write(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)


def test_it_lists_every_setting_with_value_and_origin_at_80_columns(file, monkeypatch) -> None:
    command = "ssh -4 -F '/opt/a very long path that does not fit beside anything and has no end that anybody knows'"
    write(file, f'[dashboard]\n\nview = "tree"\n[hosts]\nssh = "{command}"\n')
    monkeypatch.setenv("TEXTUAL_THEME", "nord")
    code, out, err = vramtop("--interval", "3", "--no-mouse", "config")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == str(file)
    assert max(len(line) for line in lines[1:] if command not in line) <= 80
    rows = {tuple(line.split()[:3]) for line in lines if len(line.split()) > 2}
    assert ("interval", "3", "--interval") in rows
    assert ("mouse", "false", "--no-mouse") in rows
    assert ("view", '"tree"', "config.toml:3") in rows
    assert ("theme", '"nord"', "TEXTUAL_THEME") in rows
    assert any(command in line for line in lines)
    assert ("read_only", "false", "default") in rows
    for setting in SETTINGS:
        key = setting.name.rpartition(".")[2]
        assert any(line.startswith((f"  {key} ", f"[{setting.name}]")) for line in lines), setting.name


def test_one_setting_is_printed_changed_and_removed(file: Path) -> None:
    assert vramtop("config", "dashboard.interval") == (0, "1\n", "")
    changed = valid_json("config-change", vramtop("config", "dashboard.interval", "2.5", "--json").out)
    assert (changed["setting"], changed["value"]) == ("dashboard.interval", 2.5)
    assert vramtop("config", "dashboard.interval") == (0, "2.5\n", "")
    (found,) = valid_json("config", vramtop("config", "dashboard.interval", "--json").out)["settings"]
    assert (found["value"], found["origin"], found["line"] > 0) == (2.5, "file", True)
    assert vramtop("config", "dashboard.columns", "PID, VRAM GiB")[0] == 0
    assert vramtop("config", "dashboard.columns") == (0, "PID,VRAM GiB\n", "")
    assert vramtop("config", "dashboard.mouse", "off")[0] == 0
    unset = vramtop("config", "--unset", "dashboard.interval", "--json", code=0).out
    assert valid_json("config-change", unset)["value"] is None
    assert vramtop("config", "dashboard.interval")[1] == "1\n"
    text = file.read_text().partition("\n\n")[2]
    assert text == '[dashboard]\ncolumns = ["PID", "VRAM GiB"]\nmouse = false\n'


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["dashboard.intervall"], "there is no setting dashboard.intervall; did you mean dashboard.interval?"),
        (["dashboard.interval", "soon"], "dashboard.interval = soon: give a number between 0.1 and 86400"),
        (["dashboard", "1"], "dashboard is a table of settings, such as dashboard.interval"),
        (["--unset", "nonsense.at.all"], "there is no setting nonsense.at.all"),
        (["theme", "--unset", "dashboard.view"], "cannot be combined with another setting"),
    ],
)
def test_a_mistake_is_one_sentence_and_changes_nothing(file: Path, words: list[str], says: str) -> None:
    code, out, err = vramtop("config", *words)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
    assert not file.exists()


def test_a_variable_that_hides_a_change_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMTOP_DASHBOARD_VIEW", "runs")
    code, _, err = vramtop("config", "dashboard.view", "tree")
    assert (code, err) == (0, "vramtop: VRAMTOP_DASHBOARD_VIEW in the environment takes precedence over it\n")
    assert 'view = "tree"' in file.read_text()


def test_another_file_is_named_by_a_flag_or_a_variable(file, tmp_path, monkeypatch) -> None:
    write(file, '[dashboard]\nview = "tree"\n')
    other = tmp_path / "other.toml"
    write(other, '[dashboard]\nview = "processes"\n')
    monkeypatch.setenv("VRAMTOP_CONFIG", str(other))
    assert vramtop("config")[1].startswith(f"{other}\n")
    assert vramtop("config", "dashboard.view")[1] == "processes\n"
    assert vramtop("--config", str(file), "config", "dashboard.view")[1] == "tree\n"
    assert vramtop("config", "dashboard.view", "--config", str(file))[1] == "tree\n"
    assert vramtop("--config", "", "config", "dashboard.view")[1] == "runs\n"


def test_a_file_that_a_flag_names_must_be_there_except_for_config(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VRAMTOP_CONFIG", "")
    missing = tmp_path / "none.toml"
    code, _, err = vramtop("--config", str(missing), "estimate", "gpt2")
    assert code == 2
    assert str(missing) in err
    assert vramtop("--config", str(missing), "config", "dashboard.view", "tree")[0] == 0
    assert missing.read_text().endswith('view = "tree"\n')


def test_a_file_that_cannot_be_written_is_exit_code_three(file: Path) -> None:
    file.mkdir()
    code, out, err = vramtop("config", "dashboard.view", "tree")
    assert (code, out) == (3, "")
    assert str(file) in err


def test_a_broken_file_is_exit_code_two_and_stays_as_it_is(file: Path) -> None:
    write(file, "[dashboard]\nview = tree\n")
    for words in (["config"], ["config", "dashboard.view"], ["config", "dashboard.view", "tree"]):
        code, _, err = vramtop(*words)
        assert code == 2
        assert f"{file}, line 2: " in err
    assert file.read_text() == "[dashboard]\nview = tree\n"
    write(file, '[dashboard]\ninterval = "often"\n')
    (problem,) = valid_json("config", vramtop("config", "--json", code=2).out)["problems"]
    assert (problem["setting"], problem["line"]) == ("dashboard.interval", 2)


def test_a_broken_file_stops_no_other_command_and_says_so_once(file: Path) -> None:
    write(file, "[dashboard]\nview = tree\n")
    code, out, err = vramtop("estimate", "gpt2", "--method", "formula", "--json")
    assert code == 0
    assert json.loads(out)
    assert err.count("\n") == 1
    assert f"{file}, line 2: " in err


def notices_of(app: VramtopApp) -> tuple[str, ...]:
    return app._options.notices.show_on(lambda _: None)


def test_a_broken_file_opens_the_dashboard_with_defaults_and_a_notice(file: Path, opened: list[VramtopApp]) -> None:
    write(file, '[dashboard]\ninterval = "fast"\nsort = "USER"\n')
    code, _, err = vramtop()
    assert (code, err) == (0, "")
    (app,) = opened
    assert app.settings["dashboard.interval"] == 1
    assert app.settings["dashboard.sort"] == "USER"
    (notice,) = notices_of(app)
    assert notice.startswith(f"{file}, line 2: dashboard.interval = ")
    write(file, "[dashboard]\na = 1\nb = 1\nc = 1\nd = 1\ne = 1\n")
    assert vramtop()[0] == 0
    assert len(notices_of(opened[1])) == 4
    assert notices_of(opened[1])[-1] == "2 more problems in the settings; vramtop config lists them."
    write(file, '[dashboard]\ngpu = ["3-2"]\n[estimates]\nmethod = "loud"\n')  # refused where they are typed
    assert vramtop()[0] == 0
    assert len(notices_of(opened[2])) == 2
    assert opened[2].watchlist.display_filter is None


def test_flags_come_before_the_environment_and_that_before_the_file_for_the_dashboard(file, opened, monkeypatch):
    write(
        file,
        '[dashboard]\ninterval = 4\nread_only = true\nascii = "on"\n'
        "[history]\nenabled = false\n[attach]\nautomatic = false\n",
    )
    monkeypatch.setenv("VRAMTOP_DASHBOARD_INTERVAL", "3")
    assert vramtop()[0] == 0
    assert vramtop("--interval", "5", "--no-read-only", "--no-ascii", "--attach", "--history")[0] == 0
    first, second = (app._options for app in opened)
    assert (first.interval, first.read_only, first.ascii_only) == (3, True, True)
    assert not first.attach.enabled
    assert (second.interval, second.read_only, second.ascii_only) == (5, False, False)
    assert second.attach.enabled


def test_a_python_that_is_not_there_is_said_and_one_that_is_typed_is_refused(file: Path) -> None:
    write(file, '[estimates]\npython = "/nowhere/python"\n')
    code, _, err = vramtop("estimate", "gpt2", "--method", "formula")
    assert code == 0
    assert err.startswith(f'vramtop: {file}, line 2: estimates.python = "/nowhere/python": no such program')


def test_a_prometheus_without_an_address_is_that_of_the_settings_and_its_token_goes_to_no_other(file, tmp_path) -> None:
    token = tmp_path / "token"
    assert "or set prometheus.url" in vramtop("--prometheus", "--once")[2]
    write(file, f'[prometheus]\nurl = "http://127.0.0.1:9"\ntoken_file = "{token}"\n')
    code, _, err = vramtop("--once", "--prometheus")
    assert code != 0
    assert str(token) in err  # which is not there
    code, _, err = vramtop("--once", "--prometheus", "http://127.0.0.1:19")
    assert code != 0
    assert str(token) not in err


def test_what_the_dashboard_remembers_comes_back(file: Path, opened: list[VramtopApp]) -> None:
    write(file, '[dashboard]\ntheme = "nord"\nview = "tree"\n')
    assert vramtop()[0] == 0
    (app,) = opened
    assert app.theme == "nord"
    assert app.settings["dashboard.view"] == "tree"


def test_secrets_are_masked_but_where_the_setting_itself_is_asked_for(file: Path) -> None:
    token = "hf_" + "aB3dE6gH9" * 4
    write(file, f'[hosts]\nssh = "ssh --token {token}"\n')
    assert token not in vramtop("config")[1]
    listed = vramtop("config", "--json", code=0).out
    assert valid_json("config", listed)["file_exists"]
    assert token not in listed
    assert vramtop("config", "hosts.ssh")[1] == f"ssh --token {token}\n"
    code, _, err = vramtop("config", "prometheus.url", "http://ann:secret@prometheus:9090")
    assert code == 2
    assert "secret" not in err


def test_the_doctor_says_that_the_settings_are_wrong_without_their_text(file: Path) -> None:
    write(file, '[estimates]\nmethod = "loud-host-7"\n')
    code, out, _ = vramtop("doctor", "--json")
    assert code in (0, 3)
    assert "something is wrong in the settings; vramtop config shows the details" in out
    assert "loud-host-7" not in out
