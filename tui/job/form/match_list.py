"""The list that opens below a field while its text is searched for: names, and a word about each."""

from collections.abc import Sequence

from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.widgets import Static

from ...draw import MUTED

MAX_MATCHES = 8
_NOTE_GAP = 2


class MatchList(Static):
    """Names with notes, one of them highlighted; drawn over what is below the field."""

    DEFAULT_CSS = """
    MatchList {
        overlay: screen; constrain: none inside; display: none; column-span: 2; width: auto; height: auto;
        margin: 0 0 0 3; padding: 0 1; background: $panel; text-wrap: nowrap;
    }
    """

    class Taken(Message):
        """A name was clicked."""

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._names: tuple[str, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._at = 0

    @property
    def highlighted(self) -> str | None:
        """The name that Enter takes; None while the list is closed."""
        return self._names[self._at] if self.display and self._names else None

    def open(self, names: Sequence[str], notes: Sequence[str]) -> None:
        """List these names, the first one highlighted; none: close the list."""
        self._names, self._notes, self._at = tuple(names[:MAX_MATCHES]), tuple(notes[:MAX_MATCHES]), 0
        if self.display != bool(names):
            self.display = bool(names)
        self._draw()

    def close(self) -> None:
        """Close the list."""
        if self.display:
            self.display = False

    def move(self, by: int) -> None:
        """Highlight another name."""
        self._at = (self._at + by) % len(self._names)
        self._draw()

    def on_click(self, event: Click) -> None:
        """Take the name that was clicked."""
        event.stop()
        if event.y < len(self._names):
            self._at = event.y
            self.post_message(self.Taken())

    def _draw(self) -> None:
        width = max(map(len, self._names), default=0) + _NOTE_GAP
        lines = []
        for at, (name, note) in enumerate(zip(self._names, self._notes, strict=True)):
            line = Content.assemble(f"{name:<{width}}", (note, MUTED))
            lines.append(line.stylize("reverse") if at == self._at else line)
        self.update(Content("\n").join(lines))
