"""WCAG contrast of every pair of text and background on the screen, in every theme of the palette."""

from collections.abc import Sequence

import pytest
from builders import make_budget, make_gpu, make_process, make_run, make_snapshot, make_watchlist
from rich.cells import cell_len
from rich.color import ColorType
from rich.segment import Segment
from rich.style import Style
from screen_host import app_of
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import BUILTIN_THEMES
from waiting import until_shown

from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import ModelSpec
from vramtop.monitor.snapshot.figures import Fault
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.themes import DEFAULT_THEME, THEMES
from vramtop.tui.draw.colours import BLACK, WHITE, contrast, parse_hex
from vramtop.tui.draw.palette import CHECKS, COMPONENTS, STATUSES, VERDICTS
from vramtop.tui.draw.text_output import to_ascii
from vramtop.tui.tty.line_filters import ColourlessFilter, ReadableFilter, is_text, to_harmless

NEEDS = {"over": 20.0, "right": 40.0, "under": 75.0, "waits": 70.0, "small": 5.0}
THEMES_BY_NAME = {**BUILTIN_THEMES, **{theme.name: theme for theme in THEMES}}
QUICK_THEMES = ["vramtop-dark"]
HIGH_CONTRAST = "vramtop-high-contrast"
RGB = tuple[int, int, int]


class Listener(LineFilter):
    """A line filter that records what is drawn, one text for each pair of style and background."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: dict[tuple[Style, Color, bool], str] = {}

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        for text, style, _ in segments:
            if style is not None and not text.isspace():
                self.drawn.setdefault((style, background, is_text(text)), text)
        return segments


def open_app(**options) -> VramtopApp:
    """Make a dashboard with a job of each status, pending jobs, a fault and an anomaly."""
    jobs = {name: Job(name=name, model=ModelSpec(id="meta-llama/Llama-3.1-8B")) for name in NEEDS}
    runs = [make_run(jobs[name], pid) for pid, name in enumerate(("over", "right", "under"), start=1)]
    waiting = [jobs[name] for name in ("waits", "small")]
    watchlist = make_watchlist(*runs, pending=waiting, estimate=lambda job: make_budget(job, device=NEEDS[job.label]))
    fault = Fault(field="temperature_c", code="UNKNOWN", message="GPU 2 does not tell its temperature")
    gpus = [make_gpu(at, [make_process(at + 1, 40), make_process(at + 11, 5)]) for at in range(3)]
    snapshot = make_snapshot([*gpus, make_gpu(3)], faults=(fault,))
    app = app_of([snapshot], watchlist, **options)
    theirs = app.get_line_filters

    def with_listener() -> list[LineFilter]:
        filters = list(theirs())
        filters.insert(filters.index(app.colour_filter), app.listener)
        return filters

    app.listener = Listener()
    app.get_line_filters = with_listener
    return app


async def record_all_screens(pilot, themes: Sequence[str]) -> dict[str, Listener]:
    """Open every screen in each of these themes; return the recorded drawings by theme."""
    app, heard = pilot.app, {theme: Listener() for theme in themes}

    async def in_all_themes() -> None:
        for theme in themes:
            app.listener = heard[theme]
            app.theme = theme
            await pilot.pause()

    await until_shown(pilot, lambda: app.board is not None)
    app.notify("A sentence", severity="error")
    for keys in (["tab", "down", "slash", "x"], ["escape", "question_mark"], ["escape", "f", "enter", "tab", "f6"]):
        await pilot.press(*keys)
        await pilot.pause(0.05)
        await in_all_themes()
    return heard


def displayed_colours(style: Style, background: Color, *, dark: bool) -> tuple[RGB, RGB] | None:
    """Return text and background colours; None where the theme leaves one to the terminal."""
    plain = (0, 0, 0) if dark else (255, 255, 255)

    def shown(colour) -> RGB:
        if colour is None or colour.type == ColorType.DEFAULT:
            return plain
        return tuple(colour.get_truecolor())

    if style.color is None or style.color.type == ColorType.DEFAULT:
        return None
    return shown(style.color), shown(background.rich_color if style.bgcolor is None else style.bgcolor)


def illegible_texts(heard: Listener, theme: str) -> list[tuple[float, str, str]]:
    """Return the texts that are not legible after vramtop's filter."""
    ours, dark = ReadableFilter(), THEMES_BY_NAME[theme].dark
    ours.dark = dark
    ours.text_contrast = 7.0 if theme == HIGH_CONTRAST else 4.5
    found = []
    for (style, background, text), words in heard.drawn.items():
        own_ground = style.bgcolor is not None and style.bgcolor != background.rich_color
        if (not text and own_ground) or (style.color and style.color.type == ColorType.STANDARD):
            continue
        (segment,) = ours.apply([Segment(words, style)], background)
        pair = displayed_colours(segment.style, background, dark=dark)
        best = max(contrast((0, 0, 0), pair[1]), contrast((255, 255, 255), pair[1])) if pair else 0
        if pair and contrast(*pair) < min(best, ours.text_contrast if text else 3.0) - 1e-9:
            found.append((round(contrast(*pair), 2), words, str(segment.style)))
    return found


@pytest.mark.parametrize(
    "themes", [QUICK_THEMES, pytest.param(sorted(set(THEMES_BY_NAME) - set(QUICK_THEMES)), marks=pytest.mark.slow)]
)
async def test_all_text_is_legible_in_every_theme(themes) -> None:
    app = open_app()
    async with app.run_test(size=(150, 50)) as pilot:
        heard = await record_all_screens(pilot, themes)
    assert all(len(heard[theme].drawn) > 40 for theme in themes)
    assert {theme: faint for theme in themes if (faint := illegible_texts(heard[theme], theme))} == {}


async def test_the_app_uses_the_filter_with_its_theme() -> None:
    app = open_app()
    async with app.run_test() as pilot:
        (ours,) = (each for each in app.get_line_filters() if isinstance(each, ReadableFilter))
        assert ours.dark
        app.theme = "textual-light"
        await pilot.pause()
        assert not ours.dark
    (segment,) = ours.apply([Segment("words", Style.parse("#444444 on #333333"))], Color.parse("#333333"))
    assert contrast(tuple(segment.style.color.get_truecolor()), (51, 51, 51)) >= 4.5


@pytest.mark.slow
async def test_without_colour_none_is_sent_and_the_selection_stands_out() -> None:
    app = open_app(colours="none")
    async with app.run_test(size=(150, 50)) as pilot:
        heard = await record_all_screens(pilot, ["textual-dark"])
        (ours,) = (each for each in app.get_line_filters() if isinstance(each, ColourlessFilter))
    lines = [ours.apply([Segment(words, key[0])], key[1])[0] for key, words in heard["textual-dark"].drawn.items()]
    assert {line.style.color.type for line in lines if line.style.color} <= {ColorType.DEFAULT}
    assert {line.style.bgcolor.type for line in lines if line.style.bgcolor} <= {ColorType.DEFAULT}
    badges = [line for line in lines if line.text in (" ▲ OVER ", " ▼ UNDER ", " ✗ DOES NOT FIT ")]
    assert badges
    assert all(badge.style.reverse for badge in badges)


async def test_text_of_the_high_contrast_theme_has_a_contrast_of_seven() -> None:
    app = open_app(colours="true", theme=HIGH_CONTRAST)
    async with app.run_test() as pilot:
        ours = app.colour_filter
        (segment,) = ours.apply([Segment("words", Style.parse("#777777 on #000000"))], Color.parse("#000000"))
        assert contrast(tuple(segment.style.color.get_truecolor()), (0, 0, 0)) >= 7
        app.theme = DEFAULT_THEME
        await pilot.pause()
        (segment,) = ours.apply([Segment("words", Style.parse("#777777 on #000000"))], Color.parse("#000000"))
        assert contrast(tuple(segment.style.color.get_truecolor()), (0, 0, 0)) < 7


@pytest.mark.parametrize(
    ("saved", "variable", "theme"),
    [
        (None, None, DEFAULT_THEME),
        ("nord", None, "nord"),
        ("no-such-theme", None, DEFAULT_THEME),
        (None, "vramtop-light", "vramtop-light"),
        (None, "nord", "nord"),
    ],
)
async def test_the_theme_is_the_saved_one_or_that_of_the_environment(monkeypatch, saved, variable, theme):
    if variable:
        monkeypatch.setenv("TEXTUAL_THEME", variable)
    assert open_app(theme=saved).theme == theme


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_components_and_statuses_stand_out_from_the_grounds_of_the_themes(theme) -> None:
    for mark in (*COMPONENTS.values(), *STATUSES.values(), *VERDICTS.values()):
        for ground in (theme.background, theme.surface):
            assert contrast(parse_hex(mark.colour), parse_hex(ground)) >= 3


def test_statuses_differ_without_colour() -> None:
    for marks in (STATUSES, VERDICTS, CHECKS):
        words = [mark.letter + mark.word for mark in marks.values()]
        assert len(set(words)) == len(words)
    assert len({mark.letter for mark in COMPONENTS.values()}) == len(COMPONENTS)


@pytest.mark.parametrize(
    "text", ["\x1b[31mred", "title\x1b]0;x\x07", "\x9b2J", "a\x00b", "a\u202eb", "\u200bx", "soft\xadhyphen", "\x7f"]
)
def test_control_characters_are_removed_and_the_width_is_kept(text):
    assert to_harmless(text).isprintable()
    assert cell_len(to_harmless(text)) == cell_len(text)


def test_harmless_text_stays_as_it_is():
    assert to_harmless("żółć ▲ OVER 你好 ├──┤") == "żółć ▲ OVER 你好 ├──┤"


def test_ascii_keeps_the_width_of_wide_characters():
    assert to_ascii("你 ▲") == "?? ^"


@pytest.mark.parametrize("dark", [False, True], ids=["light theme", "dark theme"])
@pytest.mark.parametrize("text", ["#15803d", "#b91c1c", "#22c55e", "#f87171", "#111111", "#fefefe"])
def test_text_on_the_terminals_own_ground_is_readable_on_dark_and_on_light(dark, text):
    keeper = ReadableFilter()
    keeper.dark = dark
    (segment,) = keeper.apply([Segment("word", Style.parse(text))], Color(0, 0, 0, ansi=-1))
    shown = segment.style.color.get_truecolor()
    assert contrast(tuple(shown), WHITE) >= 2.9
    assert contrast(tuple(shown), BLACK) >= 2.9
