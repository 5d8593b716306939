"""The GPUs of the dashboard: a panel for each, or a list with the panel of one GPU below it."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Container
from textual.events import Click
from textual.screen import Screen

from vramtop.monitor.board.board import Board, GpuRow
from vramtop.monitor.snapshot.gpu_details import DetailLevel
from vramtop.monitor.snapshot.memory_history import MemoryHistory
from vramtop.monitor.snapshot.snapshot import GpuKey

from ...draw.labels import WORST_FIRST, severity_rank
from ...widgets.content_lines import ContentLines
from ...widgets.static_lines import StaticLines
from ..feed import BoardFeed
from .gpu_panel import panel_lines
from .gpu_rows import GpuRows, gpu_name_width, gpu_row_titles, names_jobs, shows_hardware, stale_seconds
from .layout import DashboardLayout
from .panel_places import PanelPlace
from .panel_shape import PanelShape

_MIN_DETAILS_WIDTH = 100
"""Cells of a panel that has room for more than utilisation, power and temperature."""


class GpuArea:
    """The widgets of a screen that show GPUs.

    Args:
        screen: the screen that yields ``compose``.
    """

    def __init__(self, screen: Screen[None]) -> None:
        self._screen = screen
        self._panels: list[GpuPanel] = []
        self._selected: tuple[GpuKey, int] | None = None
        """The GPU or MIG device that the user selected, and its position; None: the one with the worst status."""
        self.detailed: dict[GpuKey, DetailLevel] = {}
        """GPUs of which details are shown."""

    def compose(self) -> ComposeResult:
        """The panels; the titles, the rows, and the panel of the selected row."""
        yield Container(id="panels")
        yield StaticLines(id="titles")
        yield GpuRows(id="rows")
        yield GpuPanel(id="open")

    def select(self, board: Board, position: int) -> None:
        """Select the GPU or MIG device at this position."""
        self._selected = board.displayed_gpus[position].reading.key, position

    def show(
        self, board: Board, layout: DashboardLayout, *, width: int, feed: BoardFeed, history: MemoryHistory
    ) -> None:
        """Show the GPUs of the board.

        Args:
            board: the latest board.
            layout: panels or rows, and their heights.
            width: cells of the screen.
            feed: how readings arrive, which decides when one is stale.
            history: memory of the GPUs over time.
        """
        screen = self._screen
        panels, rows = screen.query_one("#panels", Container), screen.query_one(GpuRows)
        titles, opened = screen.query_one("#titles", StaticLines), screen.query_one("#open", GpuPanel)
        panels.display = bool(layout.panels)
        rows.display = layout.panels is None
        titles.display = layout.titles
        opened.display = layout.open_panel
        stale = [stale_seconds(gpu, board, feed) for gpu in board.displayed_gpus]
        self.detailed = {}
        if layout.panels is not None:
            self._fill_panels(panels, layout, len(board.displayed_gpus))
            self._demand_details(board.displayed_gpus, layout.panels[0].width if layout.panels else 0)
            for panel, place, gpu, age in zip(self._panels, layout.panels, board.displayed_gpus, stale, strict=True):
                panel.stand_at(place)
                panel.show_gpu(gpu, board, place, age, history)
            return
        selected = self._selected_position(board.displayed_gpus)
        row_width = width - (layout.gpu_height < len(board.displayed_gpus))  # the scrollbar
        name_width = gpu_name_width(board.displayed_gpus)
        rows.styles.height = layout.gpu_height
        jobs = names_jobs(board.displayed_gpus)
        titles.show(gpu_row_titles(row_width, names=name_width, jobs=jobs, hosts=board.sums is not None))
        rows.show_gpus(board.displayed_gpus, width=row_width, name_width=name_width, selected=selected, stale=stale)
        if shows_hardware(row_width - name_width, jobs=jobs):
            self._demand_details(board.displayed_gpus, row_width)
        if layout.open_panel:
            shape = PanelShape(width=width, graph_height=layout.graph_height)
            gpu = board.displayed_gpus[selected]
            opened.styles.height = shape.height
            if not self.detailed:
                self._demand_details([gpu], shape.width)
            opened.show_gpu(gpu, board, shape, stale[selected], history)

    def _demand_details(self, gpus: Sequence[GpuRow], panel_width: int) -> None:
        """Ask for fans and clock reasons of the GPUs in panels that have room for them."""
        if panel_width >= _MIN_DETAILS_WIDTH:
            self.detailed = {gpu.reading.whole_gpu_key: "compact" for gpu in gpus}

    def _fill_panels(self, container: Container, layout: DashboardLayout, count: int) -> None:
        while len(self._panels) > count:
            self._panels.pop().remove()
        while len(self._panels) < count:
            self._panels.append(GpuPanel())
            container.mount(self._panels[-1])
        container.styles.height = layout.gpu_height

    def _selected_position(self, shown: Sequence[GpuRow]) -> int:
        """Return the position of the selected GPU; if it is gone, of the GPU in its place."""
        if self._selected is not None:
            key, before = self._selected
            position = next((at for at, gpu in enumerate(shown) if gpu.reading.key == key), before)
            return min(position, len(shown) - 1)
        worst = [min((severity_rank(row) for row in gpu.rows), default=len(WORST_FIRST)) for gpu in shown]
        return worst.index(min(worst)) if worst else 0


class GpuPanel(ContentLines):
    """A GPU's panel; a click opens the GPU."""

    _gpu: GpuRow | None = None

    def on_click(self, event: Click) -> None:
        """Open the GPU."""
        event.stop()
        if self._gpu is not None:
            self.post_message(GpuRows.Opened(self._gpu))

    def show_gpu(self, gpu: GpuRow, board: Board, shape: PanelShape, age: float | None, history: MemoryHistory) -> None:
        """Show this GPU of the board; ``age`` is that of the reading if it is stale."""
        self._gpu = gpu
        self.set_class(age is not None, "-stale")
        readings = history.gpu(gpu.reading.key) if shape.graph_height else ()
        self.show_lines(panel_lines(gpu, readings, shape, now=board.snapshot.time, stale_seconds=age))

    def stand_at(self, place: PanelPlace) -> None:
        """Move it to this place, if it is not there yet."""
        if self._place != place:
            self._place = place
            self.styles.position = "absolute"
            self.styles.offset = place.x, place.y
            self.styles.width, self.styles.height = place.width, place.height

    _place: PanelPlace | None = None
