"""A choice between a few words, as one widget of one line.

Textual's ``Select`` consists of six widgets, which makes a form of thirty slow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.geometry import Offset
from textual.message import Message
from textual.reactive import reactive
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import OptionList

from ..keys import bind


class Choice(Widget, can_focus=True):
    """Shows the chosen word; left and right step through the choices, Enter or a click lists them.

    Args:
        choices: the words.
        value: the word that is chosen at first.
        id: the widget's id in the DOM.
        classes: its CSS classes.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "list", "Choose"),
        Binding("left", "step(-1)", show=False),
        Binding("right", "step(1)", show=False),
    ]
    DEFAULT_CSS = """
    Choice { height: 1; width: 1fr; background: $surface; pointer: pointer; }
    Choice:focus { background: $primary; color: $text; }
    """

    value: reactive[str] = reactive("", init=False)
    """The chosen word."""

    @dataclass
    class Changed(Message):
        """Another word was chosen."""

        value: str

    def __init__(
        self,
        choices: Sequence[str],
        value: str,
        *,
        id: str | None = None,  # noqa: A002 - Textual's own name for it
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self.choices = tuple(choices)
        self.set_reactive(Choice.value, value)

    def render(self) -> Content:
        """Return the word, and a sign that there are others."""
        width = max(0, self.size.width - 2)
        return Content.assemble(f"{self.value[:width]:<{width}}", ("▼", "dim"))

    def watch_value(self, value: str) -> None:
        """Post the new word."""
        self.post_message(self.Changed(value))

    def on_click(self) -> None:
        """List the choices."""
        self.action_list()

    def action_step(self, by: int) -> None:
        """Choose the next word, or the previous one."""
        self.value = self.choices[(self.choices.index(self.value) + by) % len(self.choices)]

    def action_list(self) -> None:
        """List the choices below the word; if there are two, choose the other one."""
        if len(self.choices) == 2:
            self.action_step(1)
            return
        self.open_menu(ChoiceMenu)

    def open_menu(self, menu: "type[Menu]") -> None:
        """Open a menu of the choices below the word, and take the one that is chosen."""
        place, at = self.region, self.choices.index(self.value)

        def choose(chosen: int | None) -> None:
            if chosen is not None:
                self.value = self.choices[chosen]

        self.app.push_screen(menu(self.choices, Offset(place.x, place.bottom), at=at, width=place.width), choose)


class Menu(ModalScreen[int | None]):
    """Words, of which the index of the chosen one is returned, or None after Escape or a click beside them.

    Args:
        words: the choices.
        place: top left of the list; if the screen ends below, the list is above.
        at: index of the word that is highlighted at first.
        width: minimum width in cells.
    """

    BINDINGS: ClassVar[list[BindingType]] = [bind("app.back", "dismiss(None)", "Back")]
    DEFAULT_CSS = "Menu { background: transparent; }"

    def __init__(self, words: Sequence[str], place: Offset, *, at: int = 0, width: int = 0) -> None:
        super().__init__()
        self._words = tuple(words)
        self._at = at
        self._place = place
        self._width = width

    def on_click(self, event: Click) -> None:
        """Close without a choice after a click beside the words."""
        if event.widget is self:
            self.dismiss(None)


class ChoiceMenu(Menu):
    """A list of the words."""

    DEFAULT_CSS = "ChoiceMenu OptionList { position: absolute; height: auto; max-height: 12; background: $panel; }"

    def compose(self) -> ComposeResult:
        """Yield the list."""
        yield OptionList(*self._words, compact=True, markup=False)

    def on_mount(self) -> None:
        """Highlight the word, and place the list below or above."""
        options = self.query_one(OptionList)
        options.highlighted = self._at
        height = min(12, len(self._words))
        y = self._place.y if self._place.y + height <= self.app.size.height else max(0, self._place.y - 1 - height)
        options.styles.width = max(self._width, max(map(len, self._words)) + 3)
        options.styles.offset = (self._place.x, y)

    @on(OptionList.OptionSelected)
    def selected(self, event: OptionList.OptionSelected) -> None:
        """Return the index of the word."""
        self.dismiss(event.option_index)
