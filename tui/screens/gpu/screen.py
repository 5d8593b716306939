"""The GPU screen: what one GPU does, what holds it back, its links and health, and the processes on it."""

import time
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content

from vramtop.estimator.common.records import replace
from vramtop.monitor.board.board import Board, GpuRow
from vramtop.monitor.snapshot.demand import Demand
from vramtop.monitor.snapshot.gpu_details import DetailLevel, clock_reasons
from vramtop.monitor.snapshot.snapshot import GpuKey, GpuReading

from ...draw.gpu_bars import reason_badge
from ...draw.labels import MUTED, format_duration, join_to_width, left_and_right, tag
from ...draw.text_output import printable
from ...keys import bind, shown_key
from ...widgets.content_lines import ContentLines, StaticLines
from ...widgets.keys_line import KeysLine
from ..base import BoardApp, BoardFeed, DrawnScreen, ShowsGpus, is_complete
from ..dashboard.gpu_panel import graph_span
from ..dashboard.gpu_rows import stale_seconds
from ..dashboard.process_table import PROCESS_KEYS, ProcessTable, ProcessTableScreen
from .activity import activity_lines
from .hardware import fact_lines, reason_lines

GPU_KEYS: list[BindingType] = [
    bind("app.back", "app.pop_screen", "Back"),
    bind("dashboard.gpu", "app.pop_screen", help_text=""),
    bind("gpu.previous", "step(-1)", group="GPU", priority=True),
    bind("gpu.next", "step(1)", group="GPU", priority=True),
    Binding(
        "tab", "app.focus_next", show=False, key_display="Tab",
        tooltip="switch between the figures (↑ ↓ scroll) and the processes",
    ),
]  # fmt: skip
GPU_SCREEN_KEYS: list[BindingType] = [
    *GPU_KEYS,
    *(key for key in PROCESS_KEYS if key.action not in ("view", "filter_by_user")),
]
"""With those that act on the processes of the GPU."""
_MIN_TABLE_LINES = 5
_TALL_LINES = 30
"""Lines of a terminal with room for a gap."""


class _Figures(ContentLines, can_focus=True):
    """The lines above the processes; with the focus (Tab), the arrow keys scroll them where there are too many."""

    DEFAULT_CSS = "_Figures { overflow-y: auto; }"


class GpuScreen(DrawnScreen[None], ProcessTableScreen):
    """Shows one GPU or MIG device; its details are read only while this screen is in front.

    Args:
        key: of the GPU or MIG device.
    """

    app: BoardApp
    TITLE = "GPU"
    AUTO_FOCUS = "ProcessTable"
    BINDINGS: ClassVar[list[BindingType]] = GPU_SCREEN_KEYS
    DEFAULT_CSS = """
    GpuScreen #title { height: 1; padding: 0 1; background: $panel; }
    GpuScreen #state { padding: 0 1; height: 1; }
    GpuScreen #note { height: 1; padding: 0 1; }
    GpuScreen #figures { margin: 0 1; }
    GpuScreen #processes { width: 100%; }
    GpuScreen .-stale { text-opacity: 60%; }
    """

    def __init__(self, key: GpuKey) -> None:
        super().__init__()
        self._key = key
        self._gpu: GpuRow | None = None
        """The GPU on the latest board that had it."""
        self._position = 0
        """Its place among the GPUs and MIG devices of that board."""
        self._feed: BoardFeed | None = None
        """How readings arrived when the screen was drawn."""

    @property
    def demand(self) -> Demand:
        """All details of this GPU, and the figures of its processes that the table shows."""
        gpus: dict[GpuKey, DetailLevel] = {} if self._gpu is None else {self._gpu.reading.whole_gpu_key: "full"}
        return replace(self.table.demand, gpus=gpus)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Offer only keys that do something; if no process can be terminated, k says why."""
        return is_complete(self) and self.offers(action)

    def compose(self) -> ComposeResult:
        """The figures and the processes."""
        yield StaticLines(id="title")
        yield StaticLines(id="state")
        yield _Figures(id="figures")
        yield StaticLines(id="note")
        yield ProcessTable(id="processes")
        yield KeysLine()

    def on_mount(self) -> None:
        """Draw the latest board."""
        if not is_complete(self):  # the app is being closed
            return
        self.set_up_table("processes")
        if self.app.board:
            self.show_board(self.app.board)

    def show_board(self, board: Board) -> None:
        """Show the GPU as it is on this board."""
        shown = board.displayed_gpus
        self._gpu = next((gpu for gpu in shown if gpu.reading.key == self._key), None)
        if self._gpu is not None:
            self._position = shown.index(self._gpu)
        self.redraw()

    def action_step(self, by: int) -> None:
        """Show the next GPU (1), or the previous one (-1); after the last comes the first."""
        board = self.app.board
        if board is None or not board.displayed_gpus:
            return
        self._key = board.displayed_gpus[(self._position + by) % len(board.displayed_gpus)].reading.key
        self.show_board(board)
        self.app.update_demand()

    def show_feed(self) -> None:
        """Draw the age of the readings."""
        if self.app.feed != self._feed:
            self.redraw()

    def draw(self) -> None:
        """Draw the GPU as it is on the latest board."""
        board, size = self.app.board, self.size
        if board is None:
            return
        self._feed = self.app.feed
        title, state = self.query_one("#title", StaticLines), self.query_one("#state", StaticLines)
        if self._gpu is None:
            title.show(Content.styled("GPU", "bold"))
            state.show(tag("! this GPU is no longer listed"))
            return
        wholes = (each.reading for each in board.gpus if each.reading.key == self._gpu.reading.whole_gpu_key)
        gpu, whole = self._gpu, next(wholes, self._gpu.reading)
        age = stale_seconds(gpu, board, self._feed)
        width = size.width - 2
        title.show(_title(gpu.reading, board, age, width))
        state.show(_state_line(whole, board, width, paused=self._feed.paused))
        history, now = self.app.watchlist.history, board.snapshot.time
        span = graph_span(history.activity(whole.key, "utilisation_percent"), now)
        figures = self.query_one(_Figures)
        inside = width - figures.scrollbar_size_vertical
        lines = activity_lines(gpu, whole, history, inside, span_seconds=span, now=now)
        lines += fact_lines(whole, width - 1) or reason_lines(whole, width - 1)
        figures.set_class(age is not None, "-stale")
        with self.app.batch_update():
            tall = size.height >= _TALL_LINES
            room = size.height - 3 - tall  # title, state, keys, and the gap above the processes
            self.table.styles.margin = (int(tall), 0, 0, 0)
            figures.styles.height = min(len(lines), room - _MIN_TABLE_LINES)
            figures.show_lines(lines)
            runs = (replace(run, rows=tuple(row for row in run.rows if row.gpu.key == self._key)) for run in board.runs)
            alone = replace(board, gpus=(gpu,), pending=(), runs=tuple(run for run in runs if run.rows), anomalies=())
            self.table.show_board(alone, width=size.width)
            self.show_table_note()


def _title(gpu: GpuReading, board: Board, age: float | None, width: int) -> Content:
    name = printable(gpu.name or "GPU").removeprefix("NVIDIA ")
    left = Content.assemble((f"GPU {gpu.label}", "bold"), f" · {name}")
    source, shown = board.snapshot.source, len(board.displayed_gpus)
    right: list[Content | str] = [] if age is None else [tag(f"! {format_duration(age)} old")]
    right += [f"one of {shown}"] if shown > 1 else []
    right += [printable(source.host or "this machine")] if width >= 90 else []
    right += [f"driver {printable(source.driver_version)}"] if source.driver_version and width >= 100 else []
    right.append(time.strftime("%H:%M:%S", time.localtime(board.snapshot.time)))
    return left_and_right(left, join_to_width(right, width - 12), width)


def _state_line(gpu: GpuReading, board: Board, width: int, *, paused: bool) -> Content:
    """Return the most important sentence: a fault of the GPU, what slows it down, or why that is unknown."""
    fault = next((fault for fault in gpu.faults if fault.field is None), None)
    if fault is not None:
        return Content.assemble(tag("!"), f" {printable(fault.message)}").truncate(width, ellipsis=True)
    details = gpu.details
    if details is None or details.level != "full":
        if not board.snapshot.source.is_live:
            known = gpu.memory_utilisation_percent is not None
            whose = "the recording has" if board.sums is None else "readings of other hosts have"
            words = f"{whose} no {'' if known else 'bandwidth, '}clocks, links or health of this GPU"
        elif paused:
            words = f"paused: press {shown_key('app.pause')} to resume the readings"
        else:
            words = "… reading clocks, links and health"
        return Content.styled(words, MUTED).truncate(width, ellipsis=True)
    if details.clock_reasons is None:
        reason = details.reason("clock_reasons") or "not reported"
        return Content.styled(f"clock throttle reasons n/a: {printable(reason)}", MUTED).truncate(width)
    reasons = clock_reasons(details.clock_reasons)
    if not reasons:
        return Content.styled("✓ clocks are not throttled", "$text-success")
    parts = [
        Content.assemble(reason_badge(reason), f"{' ' if reason.kind == 'slowed' else ': '}{reason.sentence}")
        for reason in reasons
    ]
    line = join_to_width(parts, width)
    return line if line else parts[0].truncate(width, ellipsis=True)


def open_gpu(app: BoardApp) -> None:
    """Show the GPU under the cursor, or that of the process under it."""
    front, row = app.screen, app.selected_process
    open_gpu_on(app, front.selected_gpu if isinstance(front, ShowsGpus) else row.gpu.key if row else None)


def open_gpu_on(app: BoardApp, key: GpuKey | None) -> None:
    """Show a GPU or MIG device; None: there is none, and a notification says so."""
    if key is None:
        app.notify("There is no GPU to show.", severity="warning")
    else:
        app.push_once(GpuScreen(key))
