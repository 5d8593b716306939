"""List of GPUs, one line each, with a cursor; the dashboard shows the selected one as a panel."""

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType
from textual.events import Click
from textual.message import Message
from textual.style import Style

from vramtop.monitor.board import GpuRow
from vramtop.monitor.snapshot import GpuKey

from ....widgets import ContentLines, scroll_to_row
from .gpu_row_text import gpu_row_line
from .keys import GPU_ROW_KEYS


class GpuRows(ContentLines, can_focus=True):
    """A scrolling list of all GPUs."""

    BINDINGS: ClassVar[list[BindingType]] = [*GPU_ROW_KEYS]
    COMPONENT_CLASSES: ClassVar[set[str]] = {"gpu-rows--selected"}
    DEFAULT_CSS = """
    GpuRows { overflow-y: auto; }
    GpuRows:focus > .gpu-rows--selected { background: $primary 35%; }
    """

    class Selected(Message):
        """The user has moved the cursor to another GPU."""

        def __init__(self, position: int) -> None:
            super().__init__()
            self.position = position
            """Position of the GPU in the list."""

    class Opened(Message):
        """The user opens a GPU."""

        def __init__(self, key: GpuKey) -> None:
            super().__init__()
            self.key = key

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._selected = 0
        self._keys: tuple[GpuKey, ...] = ()
        """The GPUs and MIG devices of the lines."""

    @property
    def selected_key(self) -> GpuKey | None:
        """The GPU or MIG device under the cursor."""
        return self._keys[self._selected] if self._selected < len(self._keys) else None

    def show_gpus(
        self, gpus: Sequence[GpuRow], *, width: int, name_width: int, selected: int, stale: Sequence[float | None]
    ) -> None:
        """Show these GPUs; ``stale``: the age in seconds of each reading that is stale, else None."""
        self._selected = selected
        self._keys = tuple(gpu.reading.key for gpu in gpus)
        self.show_lines([
            gpu_row_line(gpu, width, names=name_width, selected=at == selected, stale_seconds=age)
            for at, (gpu, age) in enumerate(zip(gpus, stale, strict=True))
        ])  # fmt: skip

    def notify_style_update(self) -> None:
        """Draw again: it has received the focus, or lost it."""
        super().notify_style_update()
        self.refresh()

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        self._select(min(len(self.lines) - 1, max(0, self._selected + by)))

    def action_open(self) -> None:
        """Open the GPU under the cursor."""
        if self.selected_key is not None:
            self.post_message(self.Opened(self.selected_key))

    def on_click(self, event: Click) -> None:
        """Select the clicked GPU; open it if the cursor is there."""
        event.stop()
        position = event.y + self.scroll_offset.y
        if position == self._selected:
            self.action_open()
        else:
            self._select(position)

    def _select(self, position: int) -> None:
        if 0 <= position < len(self.lines):
            self._selected = position
            scroll_to_row(self, position, page=self.size.height)
            self.post_message(self.Selected(position))

    def _style_of(self, at: int) -> Style:
        return (
            self.get_visual_style("gpu-rows--selected")
            if at == self._selected and self.has_focus
            else self.visual_style
        )
