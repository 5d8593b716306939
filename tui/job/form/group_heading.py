"""The heading of a group of fields: Enter, space or a click unfolds the fields below it, and folds them again."""

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.widget import Widget

_FOLDED, _UNFOLDED = "▸", "▾"


class GroupHeading(Widget, can_focus=True):
    """A heading that folds the fields below it.

    Args:
        text: the title, with the number of changed values.
        id: the widget's id in the DOM.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "fold", "Unfold"),
        Binding("right", "set(True)", show=False),
        Binding("left", "set(False)", show=False),
    ]
    DEFAULT_CSS = """
    GroupHeading { height: 1; color: $text-primary; pointer: pointer; }
    GroupHeading:focus { background: $primary; color: $text; }
    """

    @dataclass
    class Toggled(Message):
        """The fields are to be shown or hidden."""

        heading: "GroupHeading"

    def __init__(self, text: str, *, id: str) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._text = text
        self.is_open = False
        """True while the fields are shown."""

    def show(self, text: str) -> None:
        """Show another text."""
        if text != self._text:
            self._text = text
            self.refresh()

    def render(self) -> Content:
        """Return the sign and the text; what is changed is bold."""
        title, dot, changed = self._text.partition(" · ")
        sign = _UNFOLDED if self.is_open else _FOLDED
        return Content.assemble(f"{sign} {title}", dot, (changed, "bold"))

    def on_click(self, _: Click) -> None:
        """Fold or unfold."""
        self.action_fold()

    def action_fold(self) -> None:
        """Fold or unfold."""
        self.action_set(not self.is_open)

    def action_set(self, is_open: bool) -> None:
        """Unfold (True) or fold (False)."""
        if is_open != self.is_open:
            self.is_open = is_open
            self.refresh()
            self.post_message(self.Toggled(self))
