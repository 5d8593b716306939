"""A choice of one of many words: a list that typing narrows down."""

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Click
from textual.geometry import Offset
from textual.screen import ModalScreen
from textual.widgets import Input

from ..keys import bind
from .choice import Choice
from .match_list import MatchList, best_matches


class SearchChoice(Choice):
    """Shows the chosen word; Enter or a click opens the list of all words, in which typing searches."""

    def action_list(self) -> None:
        """Open the list below the word."""
        place = self.region

        def choose(word: str | None) -> None:
            if word is not None:
                self.value = word

        at = Offset(place.x, place.bottom)
        self.app.push_screen(SearchMenu(self.choices, at, value=self.value, width=place.width), choose)


class SearchMenu(ModalScreen[str | None]):
    """A field and the words that match what is typed in it; returns the chosen word, or None after Escape.

    Args:
        words: the choices.
        place: top left of the menu.
        value: the word that is highlighted at first.
        width: in cells.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("app.back", "dismiss(None)", "Back"),
        Binding("down", "move(1)", show=False, priority=True),
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("pagedown", "move(8)", show=False, priority=True),
        Binding("pageup", "move(-8)", show=False, priority=True),
    ]
    DEFAULT_CSS = """
    SearchMenu { background: transparent; }
    SearchMenu Vertical { position: absolute; height: auto; background: $panel; }
    SearchMenu MatchList { display: block; overlay: none; position: relative; width: 1fr; }
    """

    def __init__(self, words: Sequence[str], place: Offset, *, value: str, width: int) -> None:
        super().__init__()
        self._words = tuple(words)
        self._place = place
        self._value = value
        self._width = width

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
            self.dismiss(word)

    def on_click(self, event: Click) -> None:
        """Close without a choice after a click beside the menu."""
        if event.widget is self:
            self.dismiss(None)

    def action_move(self, by: int) -> None:
        """Highlight another word."""
        self.query_one(MatchList).move(by)

    def _list(self, typed: str) -> None:
        """List the words that match, the best first; where nothing is typed all, with the chosen one highlighted."""
        found = [self._words[at] for at in best_matches(typed, [(word,) for word in self._words])]
        at = found.index(self._value) if not typed and self._value in found else 0
        self.query_one(MatchList).open(found, [""] * len(found), at=at)
