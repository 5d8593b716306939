"""A list of names that match what is being typed, one of them highlighted, and the search for them."""

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click
from textual.fuzzy import FuzzySearch
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Static

from ..draw.labels import MUTED
from .choice import Choice, Menu

_MAX_LINES = 8
_NOTE_GAP = 2


class MatchList(Static):
    """Names with notes; drawn over what is below and right of its place, without moving it.

    Args:
        owner: receives ``Taken``; None: the list itself.
    """

    DEFAULT_CSS = """
    MatchList {
        overlay: screen; constrain: none inside; position: absolute; display: none;
        width: auto; height: auto; padding: 0 1; background: $panel; text-wrap: nowrap;
    }
    """

    class Taken(Message):
        """A name was clicked."""

    def __init__(self, owner: Widget | None = None) -> None:
        super().__init__(markup=False)
        self._owner = owner
        self._names: tuple[str, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._at = self._first = 0

    @property
    def highlighted(self) -> str | None:
        """The name that Enter takes; None while the list is closed."""
        return self._names[self._at] if self.display and self._names else None

    def open(self, names: Sequence[str], notes: Sequence[str], *, at: int = 0) -> None:
        """List these names, one of them highlighted; none: close the list."""
        self._names, self._notes, self._at, self._first = tuple(names), tuple(notes), at, 0
        if self.display != bool(names):
            self.display = bool(names)
        self._draw()

    def close(self) -> None:
        """Close the list."""
        if self.display:
            self.display = False

    def move(self, by: int) -> None:
        """Highlight another name."""
        if self._names:
            self._at = (self._at + by) % len(self._names)
            self._draw()

    def on_click(self, event: Click) -> None:
        """Take the name that was clicked."""
        event.stop()
        if self._first + event.y < len(self._names):
            self._at = self._first + event.y
            (self._owner or self).post_message(self.Taken())

    def _draw(self) -> None:
        self._first = min(max(self._first, self._at - _MAX_LINES + 1), self._at)
        shown = range(self._first, min(len(self._names), self._first + _MAX_LINES))
        width = max(map(len, self._names), default=0) + _NOTE_GAP
        lines = [Content.assemble(f"{self._names[at]:<{width}}", (self._notes[at], MUTED)) for at in shown]
        marked = [line.stylize("reverse") if at == self._at else line for at, line in zip(shown, lines, strict=True)]
        self.update(Content("\n").join(marked))


def best_matches(typed: str, candidates: Sequence[Sequence[str]]) -> list[int]:
    """Return the indices of the candidates that have the letters of each typed word in their order, best first.

    Args:
        typed: one or more words; none: every candidate matches.
        candidates: the names that each of them has.
    """
    words = typed.casefold().split()
    scores = [max((_score(words, name) for name in names), default=0.0) for names in candidates]
    return sorted((at for at, score in enumerate(scores) if score or not words), key=lambda at: -scores[at])


_MAX_FUZZY_CHARACTERS = 8
"""Longer words are compared by their beginning: the matcher tries every way to spread the letters."""
_MAX_SPREAD = 2
"""Letters that are farther apart than this many times their number match by chance."""
_SEARCH = FuzzySearch()


def _score(words: Sequence[str], name: str) -> float:
    """Return how well the words match; 0 if one of them does not."""
    total, folded = 0.0, name.casefold()
    for word in words:
        rest = iter(folded)
        if not all(letter in rest for letter in word):
            return 0.0
        score, places = _SEARCH.match(word if word in folded else word[:_MAX_FUZZY_CHARACTERS], name)
        if not places or places[-1] - places[0] > _MAX_SPREAD * len(places):
            return 0.0
        total += score
    return total / (1 + len(name) / 1000)  # of two names that match equally, the shorter one


class SearchChoice(Choice):
    """Shows the chosen word; Enter or a click opens the list of all words, in which typing searches."""

    def action_list(self) -> None:
        """Open the list below the word."""
        self.open_menu(SearchMenu)


class SearchMenu(Menu):
    """A field and the words that match what is typed in it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", show=False, priority=True),
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("pagedown", "move(8)", show=False, priority=True),
        Binding("pageup", "move(-8)", show=False, priority=True),
    ]
    DEFAULT_CSS = """
    SearchMenu Vertical { position: absolute; height: auto; background: $panel; }
    SearchMenu MatchList { display: block; overlay: none; position: relative; width: 1fr; }
    """

    def compose(self) -> ComposeResult:
        """Yield the field and the list."""
        with Vertical():
            yield Input(placeholder="type to search", compact=True)
            yield MatchList()

    def on_mount(self) -> None:
        """Place the menu below the word, and list all words."""
        box = self.query_one(Vertical)
        box.styles.width = max(self._width, max(map(len, self._words)) + 4)
        box.styles.offset = (self._place.x, max(0, min(self._place.y, self.app.size.height - 10)))
        self._list("")
        self.query_one(Input).focus()

    @on(Input.Changed)
    def typed(self, event: Input.Changed) -> None:
        """List the words that match."""
        self._list(event.value)

    @on(Input.Submitted)
    @on(MatchList.Taken)
    def taken(self) -> None:
        """Return the highlighted word, if there is one."""
        if (word := self.query_one(MatchList).highlighted) is not None:
            self.dismiss(self._words.index(word))

    def action_move(self, by: int) -> None:
        """Highlight another word."""
        self.query_one(MatchList).move(by)

    def _list(self, typed: str) -> None:
        """List the words that match, the best first; where nothing is typed all, with the chosen one highlighted."""
        found = best_matches(typed, [(word,) for word in self._words])
        at = 0 if typed else found.index(self._at)
        self.query_one(MatchList).open([self._words[each] for each in found], [""] * len(found), at=at)
