"""Colours of the user: checked, in force on screens and in printed text, for themes and terminals of every depth."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import until_shown

from vramtop.monitor.board.watchlist import Watchlist
from vramtop.tui.app.app import AppOptions, VramtopApp
from vramtop.tui.cli.main import main
from vramtop.tui.draw.palette import CHANGEABLE, COMPONENTS, DEFAULT_COLOURS, STATUSES, check_colours
from vramtop.tui.screens.settings import SettingsScreen
from vramtop.tui.widgets.row_table import tone_style

MakeApp = Callable[..., VramtopApp]


@pytest.fixture
def make_app(make_snapshot: Any, make_gpu: Any, make_process: Any, make_budget: Any, scripted_source: Any) -> MakeApp:
    def make(colours: dict[str, str], **options: Any) -> VramtopApp:
        snapshot = make_snapshot([make_gpu(0, [make_process(4711)])])
        settings = {"colours": colours}
        return VramtopApp(scripted_source([snapshot]), Watchlist(make_budget), AppOptions(settings=settings, **options))

    return make


def problem(**wanted: Any) -> str:
    found = check_colours({name.replace("__", "."): value for name, value in wanted.items()})
    assert not found.chosen
    (sentence,) = found.problems.values()
    return sentence


def test_colours_are_taken_as_hexadecimal_numbers_and_names() -> None:
    found = check_colours({"bad": "#F0a", "weights": "Orange", "good": "#008000"})
    assert not found.problems
    assert found.chosen == {"bad": "#ff00aa", "weights": "#ffa500", "good": "#008000"}


def test_what_is_wrong_with_a_colour_is_one_sentence() -> None:
    assert problem(wieghts="red") == "colours.wieghts: nothing has this colour; the nearest is weights"
    assert problem(bad="rot").startswith("colours.bad: 'rot' is not a colour; write it as #e5534b, or a name")
    assert "is not a colour" in problem(bad="#12345")
    assert "is not a colour" in problem(bad=("red", "blue"))
    for former in ("over", "hot", "light.bad"):
        sentence = problem(**{former.replace(".", "__"): "red"})
        assert sentence.startswith(
            f"colours.{former} is no longer a setting and is ignored; the colours are good, bad, "
        )


def test_every_component_and_every_status_has_a_colour_that_can_be_chosen() -> None:
    assert {mark.colour_name for mark in (*COMPONENTS.values(), *STATUSES.values())} <= set(CHANGEABLE)


async def test_colours_are_in_force_on_every_theme(make_app: MakeApp) -> None:
    app = make_app({"neutral": "#ffa500", "bad": "#ff00ff"})
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, lambda: app.board is not None)
        await until_shown(pilot, lambda: "#ffa500" in app.export_screenshot())
        assert STATUSES["over"].colour == "#ff00ff"  # that of bad
        assert STATUSES["on_budget"].colour == DEFAULT_COLOURS["good"]
        app.theme = "vramtop-light"
        await until_shown(pilot, lambda: "#ffa500" in app.export_screenshot())
        assert STATUSES["over"].colour == "#ff00ff"


async def test_a_colour_that_hardly_stands_out_is_a_warning(make_app: MakeApp) -> None:
    app = make_app({"weights": "#111418", "bad": "#ff00ff"})
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, lambda: app.board is not None)
        notices = [notice.message for notice in app._notifications]
        assert len(notices) == 1
        assert re.match(
            r"colours\.weights = #111418 has a contrast of only 1\.\d with the background of vramtop-dark", notices[0]
        )
        assert STATUSES["over"].letter == "▲"  # the sign stays


@pytest.mark.slow
async def test_a_colour_is_changed_on_the_settings_screen(make_app: MakeApp) -> None:
    saved: dict[str, Any] = {}
    app = make_app({}, save_setting=saved.__setitem__)
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, lambda: app.board is not None)
        await pilot.press("comma")
        await until_shown(pilot, lambda: isinstance(app.screen, SettingsScreen) and app.screen.settings_list.rows)
        screen = app.screen
        assert isinstance(screen, SettingsScreen)
        await pilot.press("slash", *"logits", "enter")
        await until_shown(pilot, lambda: (row := screen.settings_list.setting) and row.name == "colours.logits")
        await pilot.press("enter", *"nope")
        await until_shown(pilot, lambda: "✗ 'nope' is not a colour" in str(screen.query_one("#details").render()))
        await pilot.press("enter")
        assert not saved
        await pilot.press("ctrl+u", *"tomato", "enter")
        await until_shown(pilot, lambda: saved == {"colours.logits": "#ff6347"})
        assert COMPONENTS["logits"].colour == "#ff6347"
        await pilot.press("d")
        await until_shown(pilot, lambda: saved == {"colours.logits": None})
        assert COMPONENTS["logits"].colour == DEFAULT_COLOURS["logits"]


async def test_the_table_has_the_users_colours(make_app: MakeApp) -> None:

    app = make_app({"bad": "#ff00ff"})
    async with app.run_test(size=(80, 24)):
        assert tone_style("over", dark=True) == "bold #ff00ff"
        assert tone_style("good", dark=True) == "#22c55e"


def test_config_names_what_is_wrong_and_refuses_what_is_no_colour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[colours]\nbad = "#ff00ff"\nwieghts = "red"\ngood = "rot"\n')
    monkeypatch.setenv("VRAMTOP_CONFIG", str(file))
    assert main(["config", "colours"]) == 2
    err = capsys.readouterr().err
    assert f"{file}, line 3: colours.wieghts: nothing has this colour; the nearest is weights; ignoring it" in err
    assert f"{file}, line 4: colours.good: 'rot' is not a colour" in err
    assert main(["config", "colours.bad", "rot"]) == 2
    assert "'rot' is not a colour" in capsys.readouterr().err
    assert main(["config", "colours.bad", "tomato"]) == 0
    assert 'bad = "tomato"' in file.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environ", "code"),
    [
        ({"COLORTERM": "truecolor"}, b"48;2;255;165;0"),
        ({"COLORTERM": None}, b"48;5;214"),
        ({"COLORTERM": None, "TERM": "xterm"}, b"43m"),
        ({"COLORTERM": "truecolor", "NO_COLOR": "1"}, None),
    ],
    ids=["true", "256", "16", "none"],
)
def test_each_terminal_gets_the_nearest_colour_that_it_has(
    on_terminal: Any, tmp_path: Path, environ: dict[str, str | None], code: bytes | None
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[colours]\nweights = "#ffa500"\n')
    played = on_terminal("--demo", environ={**environ, "VRAMTOP_CONFIG": str(file)})
    played.wait_for("weights")
    if code is not None:
        played.until(lambda: code in played.written)
    played.type("q")
    assert played.end() == 0
    if code is None:
        assert not re.search(rb"[34]8;[25];", played.written)
