"""The help: keys, from the bindings of the screens, and how to read bars, letters, signs and statuses."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from ..draw.labels import shorten
from ..draw.palette import COMPONENTS, STATUSES, VERDICTS, Mark, on_colour
from ..keys import TERMINAL_KEYS, bind, key_name, keys_of, shown_key
from ..screens.dashboard.process_table import ProcessTable
from ..screens.dashboard.screen import DashboardScreen
from ..screens.registry import SCREENS

_SHORT_TEXT, _SHORT_ROWS = 27, 15
"""Cells of a key's few words, and lines of keys, on a terminal of 80 columns and 24 lines."""


class HelpScreen(ModalScreen[None]):
    """The help: the keys in a few words each, on one small screen, then all of it as one text to scroll through.

    Args:
        titles: titles of the open screens, topmost first: the keys of the first one that has a section come first.
        app_bindings: keys that work on every screen.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("app.back", "app.pop_screen", "Close"),
        bind("app.help", "more"),
        bind("app.quit", "app.pop_screen"),
    ]
    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen VerticalScroll {
        width: 92; max-width: 96%; height: auto; max-height: 94%;
        background: $surface; border: solid $primary; padding: 0 1;
    }
    """

    def __init__(self, titles: Sequence[str] = (), app_bindings: Sequence[BindingType] = ()) -> None:
        super().__init__()
        self._titles = titles
        self._app_bindings = app_bindings
        self._is_whole = False

    def compose(self) -> ComposeResult:
        """The text."""
        with VerticalScroll(can_focus=True) as box:
            box.border_title = "Help"
            box.border_subtitle = f"{shown_key('app.help')} shows the full help · {shown_key('app.back')} closes"
            yield Static(self.short(self.app.size.width))

    def action_more(self) -> None:
        """Show all of the help; where that is shown, close it."""
        box = self.query_one(VerticalScroll)
        if self._is_whole:
            self.app.pop_screen()
            return
        self._is_whole = True
        box.border_subtitle = f"{shown_key('app.back')} closes"
        self.query_one(Static).update(help_content(self._titles, self._app_bindings))

    def short(self, width: int = 80) -> Content:
        """Return the keys of the topmost screen in a few words each, and the statuses of runs.

        On a terminal of 80 columns these are at most 19 lines of 72 cells.
        """
        named = {screen.title: screen for screen in SCREENS if screen.keys}
        own = next((named[title] for title in self._titles if title in named), None)
        bindings = own.bindings() if own is not None else (*DashboardScreen.BINDINGS, *ProcessTable.BINDINGS)
        # each text up to its first pause
        texts = key_rows((*bindings, *self._app_bindings, *TERMINAL_KEYS))
        begun = ((key, re.split(r"[:;,]| \(", text, maxsplit=1)[0]) for key, text in texts)
        cells = [f"{key:7} {shorten(text, _SHORT_TEXT)}" for key, text in begun][: 2 * _SHORT_ROWS]
        half = len(cells) if width < 80 else -(-len(cells) // 2)
        lines = [
            Content(f"{left:{_SHORT_TEXT + 9}}{right}".rstrip())
            for left, right in zip_longest(cells[:half], cells[half:], fillvalue="")
        ]
        marks = [Content.styled(f"{mark.letter} {mark.word}", on_colour(mark.colour)) for mark in STATUSES.values()]
        third = (len(marks) + 2) // 3
        legend = [Content("  ").join(marks[at : at + third]) for at in range(0, len(marks), third)]
        return Content("\n").join([*lines, Content(""), *legend])


_OTHER_KEYS = (("Tab", "move to the GPUs and back; the arrow keys choose a GPU where GPUs are rows"),)
"""Keys of Textual on the dashboard."""
_ATTACH_GRAPH = (
    ("colours", "the budget by component: solid is in use, faint is still expected, red is over budget"),
    ("━ ┄ ═", "the budget, its lower and upper bound, the GPU"),
    ("below it", "the phases of the run (start, context, loading, first step, steady) and when it left its budget"),
    ("KNOWN BY", "who measured the peak: the probe, the driver, or readings at this interval"),
)
_BARS = (
    ("in use", "memory in use now: each process, ▓ unattributed, ░ reserved by the driver; red: over budget"),
    ("budget", "memory its jobs should use, by component; the scale is the whole GPU in both bars"),
    ("├──┤", "the range of that budget; a job outside it is OVER or UNDER; hatched: guessed settings"),
    ("·", "memory that PyTorch's allocator caches on top of the components"),
    ("━", "the budget in the graph; the top of the graph is the GPU's memory"),
    ("┃", "where the budget ends, on the one-line bars"),
    ("0:3", "a MIG device: GPU 0, GPU instance 3 (0:3:1: compute instance 1); its bars are scaled to its own memory"),
    ("n/a", "not available; the details say why"),
)
_TABLE = (
    ("▸ ▾", "a run, or all processes of one program; folded, or unfolded with its processes below"),
    ("MAX", "memory of a run's largest rank; BUDGET and DIFF are for this rank"),
    ("SPREAD", "a run's largest rank minus its smallest"),
    ("SM BW", "share of time with kernels of the process, and with reads or writes of GPU memory; of a run, the mean"),
    ("OVER 2/8", "2 of the run's 8 ranks have the worst status"),
)
STATUS_HELP = {
    "loading": "still loading its weights",
    "warming_up": "before the end of its first full step",
    "on_budget": "within the range of its budget",
    "over": "above the upper bound: different settings, or a leak",
    "under": "below the lower bound and not growing",
    "growing": "growing when it should be steady; without a known budget: on course to fill its GPU",
    "incomplete": "missing job settings, so its budget is a guess: open it to fill them in",
    "ended": "no longer on its GPU; listed until you dismiss it (without a budget, for a minute)",
    "out_of_memory": "ended; its last message or reading points to an out-of-memory error",
    "unknown": "using memory that vramtop cannot read",
}
"""What each status says of a run."""
_VERDICT_HELP = {
    "fits": "the upper bound fits, too",
    "tight": "the expected peak fits, the upper bound does not",
    "does_not_fit": "not even the lower bound fits into the available memory",
    "unknown": "only the lower bound fits, or the available GPU memory is unknown",
}


def help_content(titles: Sequence[str] = (), app_bindings: Sequence[BindingType] = ()) -> Content:
    """Return the help.

    Args:
        titles: titles of the open screens, topmost first.
        app_bindings: keys that work on every screen.
    """
    sections = {}
    for screen in SCREENS:
        if rows := [entry(keys, text) for keys, text in key_rows(screen.bindings())]:
            title = screen.title if screen.title.isupper() else screen.title.lower()
            sections[screen.title] = [heading(f"Keys of the {title} screen"), *rows]
    first = next((sections.pop(title) for title in titles if title in sections), [])
    dashboard_keys = (*DashboardScreen.BINDINGS, *ProcessTable.BINDINGS, *app_bindings, *TERMINAL_KEYS)
    lines = [heading("Keys"), *(entry(*row) for row in (*key_rows(dashboard_keys), *_OTHER_KEYS))]
    lines += [heading("Reading a panel"), *(entry(sign, text) for sign, text in _BARS)]
    lines += [heading("Reading the table"), *(entry(sign, text) for sign, text in _TABLE)]
    lines += [line for section in sections.values() for line in section]
    lines += [heading("Graph of a run"), *(entry(sign, text) for sign, text in _ATTACH_GRAPH)]
    lines += [heading("Components of a budget")]
    lines += [marked(f" {mark.letter} ", mark, mark.word) for mark in COMPONENTS.values()]
    lines += [heading("A running job is")]
    lines += [marked(f" {mark.letter} {mark.word} ", mark, STATUS_HELP[name]) for name, mark in STATUSES.items()]
    lines += [heading("A pending job")]
    lines += [marked(f" {mark.letter} {mark.word} ", mark, _VERDICT_HELP[name]) for name, mark in VERDICTS.items()]
    return Content("\n").join([*first, *lines])


def key_rows(bindings: Iterable[BindingType]) -> Iterator[tuple[str, str]]:
    """Yield keys and text of each binding that has a tooltip; other letters for the same action are added."""
    known = [binding for binding in bindings if isinstance(binding, Binding)]
    for binding in known:
        if not binding.tooltip:
            continue
        same = [other for other in known if other.action == binding.action]
        if binding.group is not None:
            together = [other for other in known if other.group == binding.group]
            yield "/".join(_keys_of(other)[0] for other in together), binding.tooltip
            continue
        first, *others = dict.fromkeys(key for other in (binding, *same) for key in _keys_of(other))
        # signs beside another key are there for other keyboards
        plain = [key for key in others if key.isascii() and key.isalnum() and (len(key) == 1 or key[0] == "F")]
        yield " ".join([first, *plain]), binding.tooltip


def _keys_of(binding: Binding) -> list[str]:
    """Return the names of the keys of a binding."""
    if binding.id is None:
        return [binding.key_display] if binding.key_display else [key_name(key) for key in binding.key.split(",")]
    return [key_name(key) for key in keys_of(binding.id)]


def heading(words: str) -> Content:
    """Return the heading of a section."""
    return Content.styled(f"\n{words}", "bold underline")


def entry(key: str, text: str) -> Content:
    """Return a key or sign with its meaning beside it, in as many lines as that takes on a terminal of 80 columns."""
    return Content.assemble((f" {key:9}", "bold"), " ", f"\n{' ' * 11}".join(wrap(text, 58)))


def marked(words: str, mark: Mark, text: str) -> Content:
    """Return words in the colour of a mark, with their meaning."""
    return Content.assemble(" ", (words, on_colour(mark.colour)), f"  {text}")
