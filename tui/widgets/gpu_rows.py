"""Many GPUs, one line each; one of them is chosen, and can be shown as a panel."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Click
from textual.message import Message

from vramtop.monitor.board import GpuRow

from ..row_text import row_line
from .lines import Lines


class GpuRows(VerticalScroll):
    """A scrolling list of GPUs with a cursor; none is ever left out."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Previous GPU", show=False),
        Binding("down,j", "move(1)", "Next GPU", show=False),
        Binding("home", "move(-1000)", "First GPU", show=False),
        Binding("end", "move(1000)", "Last GPU", show=False),
    ]
    DEFAULT_CSS = """
    GpuRows { scrollbar-size-vertical: 1; }
    GpuRows Lines { height: 1; }
    GpuRows:focus Lines.-chosen { background: $boost; }
    """

    class Chosen(Message):
        """The user has moved to another GPU."""

        def __init__(self, position: int) -> None:
            super().__init__()
            self.position = position
            """Of the GPU in the list."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._lines: list[_GpuLine] = []
        self._chosen = 0

    def show_gpus(
        self, gpus: Sequence[GpuRow], *, width: int, names: int, chosen: int, stale: Callable[[GpuRow], float | None]
    ) -> None:
        """Show these GPUs, ``stale`` saying how old a GPU's figures are where that is worth saying."""
        self._chosen = chosen
        self._grow_to(len(gpus))
        for at, (line, gpu) in enumerate(zip(self._lines, gpus, strict=True)):
            line.set_class(at == chosen, "-chosen")
            line.show(row_line(gpu, width, names=names, chosen=at == chosen, stale_seconds=stale(gpu)))

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        self._choose(min(len(self._lines) - 1, max(0, self._chosen + by)))

    def compose(self) -> ComposeResult:
        """Lines come with the GPUs."""
        yield from self._lines

    def _choose(self, position: int) -> None:
        if 0 <= position < len(self._lines):
            self._chosen = position
            self.scroll_to_widget(self._lines[position], animate=False)
            self.post_message(self.Chosen(position))

    def _grow_to(self, count: int) -> None:
        while len(self._lines) > count:
            self._lines.pop().remove()
        while len(self._lines) < count:
            line = _GpuLine(len(self._lines))
            self._lines.append(line)
            if self.is_mounted:
                self.mount(line)


class _GpuLine(Lines):
    def __init__(self, position: int) -> None:
        super().__init__()
        self._position = position

    def on_click(self, event: Click) -> None:
        event.stop()
        if isinstance(self.parent, GpuRows):
            self.parent._choose(self._position)
