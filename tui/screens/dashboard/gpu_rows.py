"""Many GPUs, one line each; one of them is chosen, and can be shown as a panel."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click
from textual.message import Message
from textual.style import Style

from vramtop.monitor.board.board import GpuRow

from ...widgets.content_lines import ContentLines
from .gpu_row_text import gpu_row_line


class GpuRows(ContentLines, can_focus=True):
    """A scrolling list of GPUs with a cursor; none is ever left out."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Previous GPU", show=False),
        Binding("down,j", "move(1)", "Next GPU", show=False),
        Binding("home", "move(-1000)", "First GPU", show=False),
        Binding("end", "move(1000)", "Last GPU", show=False),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {"gpu-rows--chosen"}
    DEFAULT_CSS = """
    GpuRows { overflow-y: auto; }
    GpuRows:focus > .gpu-rows--chosen { background: $boost; }
    """

    class Chosen(Message):
        """The user has moved to another GPU."""

        def __init__(self, position: int) -> None:
            super().__init__()
            self.position = position
            """Of the GPU in the list."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._chosen = 0

    def show_gpus(
        self, gpus: Sequence[GpuRow], *, width: int, names: int, chosen: int, stale: Callable[[GpuRow], float | None]
    ) -> None:
        """Show these GPUs, ``stale`` saying how old a GPU's figures are where that is worth saying."""
        self._chosen = chosen
        self.show_lines([
            gpu_row_line(gpu, width, names=names, chosen=at == chosen, stale_seconds=stale(gpu))
            for at, gpu in enumerate(gpus)
        ])  # fmt: skip

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        self._choose(min(len(self.lines) - 1, max(0, self._chosen + by)))

    def on_click(self, event: Click) -> None:
        """Choose the GPU whose line was clicked on."""
        event.stop()
        self._choose(event.y + self.scroll_offset.y)

    def _choose(self, position: int) -> None:
        if 0 <= position < len(self.lines):
            self._chosen = position
            top, height = self.scroll_offset.y, self.size.height
            if not top <= position < top + height:
                self.scroll_to(y=position - (height - 1 if position > top else 0), animate=False)
            self.post_message(self.Chosen(position))

    def _style_of(self, at: int) -> Style:
        return self.get_visual_style("gpu-rows--chosen") if at == self._chosen and self.has_focus else self.visual_style
