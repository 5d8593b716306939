"""The GPU screen: everything that the driver reports of one GPU, read only while it is open."""

from __future__ import annotations

import time
from itertools import takewhile
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar

import msgspec
from textual import on
from textual.binding import Binding, BindingType
from textual.content import Content

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.snapshot.clock_reasons import clock_reasons
from vramtop.monitor.snapshot.snapshot import GpuKey, MigDevice
from vramtop.monitor.storage.settings.schema import COLUMNS, SORT

from ..draw.bars import Cell
from ..draw.labels import (
    FAINT,
    MUTED,
    SEPARATOR,
    alarm,
    bar_content,
    format_duration,
    held_cells_with_budget_mark,
    join_to_width,
    left_and_right,
    power_words,
    reason_badge,
)
from ..draw.memory_graph import EIGHTHS, column_sizes, graph_levels, level_rows
from ..draw.palette import colour_of
from ..draw.text_output import printable
from ..keys import bind, shown_key
from ..widgets.cell_rows import CellRows
from ..widgets.keys_line import KeysLine
from ..widgets.row_table import ContentLines, StaticLines
from .base import BoardApp, DrawnScreen, ShowsGpus, is_complete
from .dashboard.gpus import graph_span, stale_seconds
from .dashboard.process_columns import columns_named
from .dashboard.process_table import PROCESS_KEYS, ProcessTable, ProcessTableScreen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult
    from textual.geometry import Size

    from vramtop.monitor.board.board import Board, GpuRow
    from vramtop.monitor.snapshot.gpu_details import DetailLevel, EccErrors, GpuDetails, NvLinks, PcieLink, RemappedRows
    from vramtop.monitor.snapshot.snapshot import Demand, GpuFigure, GpuReading, MemoryHistory, ProcessKey

    from ..draw.memory_graph import Readings
    from .base import BoardFeed

# The graphs of utilisation and memory bandwidth over the last minutes, side by side.


_MIN_GRAPH_LINES = 5
"""Rows below which nothing can be read from the graphs."""
_GAP = 4
_AXIS_WIDTH = 6


class _Graph(msgspec.Struct, frozen=True):
    """One of the graphs."""

    figure: GpuFigure
    name: str
    meaning: str
    colour_name: str

    def rows(self, gpu: GpuReading, histories: Histories, *, width: int, height: int) -> list[list[Cell]]:
        """Return title, graph with its scale, and time axis as cells, each row as wide as asked."""
        inner = width - _AXIS_WIDTH
        levels = graph_levels(
            histories.figure(gpu, self.figure),
            width=inner,
            height=height,
            top_bytes=100,
            span_seconds=histories.span_seconds,
            now=histories.now,
        )
        scale = {height // 2: " 50 %", height - 1: "  0 %", 0: "100 %"}
        rows = [
            [*_text(f"{scale.get(at, ''):{_AXIS_WIDTH - 1}}{'┤' if at in scale else '│'}", _AXIS_WIDTH), *row]
            for at, row in enumerate(level_rows(levels, height, colour_of(self.colour_name)))
        ]
        before = f"{histories.span_seconds / 60:.0f} min ago"
        axis = f"{'':{_AXIS_WIDTH}}{before}{'now':>{max(3, inner - len(before))}}"
        title = f"{self.name}: {self.meaning}"
        return [_text(title if len(title) <= width else self.name, width), *rows, _text(axis, width)]


_GRAPHS = (
    _Graph("utilisation_percent", "compute", "share of time with a running kernel", "compute"),
    _Graph("memory_utilisation_percent", "bandwidth", "share of time with memory reads or writes", "bandwidth"),
)


class ActivityGraph(CellRows):
    """Draws both graphs, and repaints only when they have changed."""

    DEFAULT_CSS = "ActivityGraph { height: 1fr; }"

    _shown: tuple[GpuReading, Histories] | None = None

    def show(self, gpu: GpuReading, histories: Histories) -> None:
        """Draw the history of a whole GPU."""
        if self._shown != (gpu, histories):
            self._shown = gpu, histories
            self._draw()

    def _draw(self) -> None:
        height = self.size.height - 2  # a title above, the time below
        width = (self.size.width - _GAP) // 2
        if self._shown is None or height < 1 or width <= _AXIS_WIDTH:
            return
        gpu, histories = self._shown
        left, right = (graph.rows(gpu, histories, width=width, height=height) for graph in _GRAPHS)
        gap = [Cell(" ")] * _GAP
        self._show_rows([[*one, *gap, *other] for one, other in zip(left, right, strict=True)])


def _text(words: str, width: int) -> list[Cell]:
    return [Cell(char) for char in words[:width].ljust(width)]


# A line with a label, a bar on a fixed scale, a figure in words, and its recent history.


LABEL_WIDTH = 12
_BAR, _REST = "▆", "▁"
_NONE = "_"
"""Column of a history where the figure was 0."""
_MIN_WIDTH_WITH_HISTORY = 70
_MAX_HISTORY_WIDTH = 60
_MIN_FIGURES_WIDTH = 30
_MAX_FIGURES_WIDTH = 46


class LineShape(msgspec.Struct, frozen=True):
    """Widths of the parts of a line, in cells."""

    bar: int
    figures: int
    history: int


def line_shape(width: int) -> LineShape:
    """Divide a line of this width."""
    room = width - LABEL_WIDTH - 2  # a gap
    figures = min(_MAX_FIGURES_WIDTH, max(_MIN_FIGURES_WIDTH, room * 2 // 5))
    history = min(_MAX_HISTORY_WIDTH, room // 5) if width >= _MIN_WIDTH_WITH_HISTORY else 0
    return LineShape(bar=max(8, room - figures - history), figures=figures, history=history)


def labelled(label: str, text: Content) -> Content:
    """Return a line with a label and a text."""
    return Content.assemble((f"{label:{LABEL_WIDTH}}", MUTED), text)


def bar_line(label: str, bar: Content, words: Content, graph: Content, shape: LineShape) -> Content:
    """Return a line with a bar.

    Args:
        label: at the left.
        bar: as wide as the shape says.
        words: the figure in words.
        graph: its history.
        shape: widths of the parts.
    """
    words = words.truncate(shape.figures, ellipsis=True)
    gap = " " * (shape.figures - words.cell_length)
    return Content.assemble((f"{label:{LABEL_WIDTH}}", MUTED), bar, "  ", words, gap, graph)


def share_bar(share: float | None, width: int, style: str) -> Content:
    """Return a bar of a share of 1, and a thin line to the end of the scale; nothing if the share is unknown."""
    if share is None:
        return Content(" " * width)
    full = round(min(1.0, max(0.0, share)) * width)
    return Content.assemble((_BAR * full, style), (_REST * (width - full), FAINT))


def history_line(history: Readings, width: int, *, top: float, style: str, span_seconds: float, now: float) -> Content:
    """Return the history as one row of columns, the latest at the right; a gap where nothing is known.

    Args:
        history: what to draw.
        width: in columns.
        top: the figure of a full column.
        style: of the columns.
        span_seconds: seconds of the full width.
        now: Unix seconds at the right edge.
    """
    if width <= 0:
        return Content()
    steps = len(EIGHTHS) - 2  # full columns would run into those of the line above
    columns = (
        " " if size is None else EIGHTHS[max(1, min(steps, round(size / top * steps)))] if size else _NONE
        for size in column_sizes(history, width, span_seconds, now)
    )
    return Content.styled("".join(columns), style)


# Lines about a GPU's activity: utilisation, memory bandwidth, memory, power and temperature, with their history.


_HOT_MARGIN_C = 3
"""Degrees below the temperature at which a GPU slows down from which on it counts as hot."""
_SCALE_C = 100
"""Degrees of a full bar of a GPU that does not report at which temperature it slows down."""


class Histories(msgspec.Struct, frozen=True):
    """Where the history of the figures comes from, and how much of it is drawn."""

    history: MemoryHistory
    span_seconds: float
    now: float
    """Unix seconds at the right edge."""

    def figure(self, gpu: GpuReading, figure: GpuFigure) -> Readings:
        """Return the history of a figure of a whole GPU."""
        return self.history.activity(gpu.whole_gpu_key, figure)


def activity_lines(gpu: GpuRow, whole: GpuReading, histories: Histories, width: int) -> list[Content]:
    """Return the lines.

    Args:
        gpu: the GPU or MIG device.
        whole: the GPU, or that of the MIG device.
        histories: of the figures.
        width: cells of a line.
    """
    lines = _Lines(whole, histories, line_shape(width))
    part = isinstance(gpu.reading, MigDevice)
    remark = Content.styled(f"the figures below are for the whole GPU {whole.label}", MUTED)
    return [
        lines.memory(gpu),
        *([labelled("", remark)] if part else []),
        lines.percent("compute", "utilisation_percent", colour_of("compute")),
        lines.percent("bandwidth", "memory_utilisation_percent", colour_of("bandwidth")),
        lines.power(),
        lines.temperature(),
    ]


class _Lines(msgspec.Struct, frozen=True):
    """Makes the lines of one GPU."""

    gpu: GpuReading
    histories: Histories
    shape: LineShape

    def percent(self, label: str, figure: GpuFigure, colour: str) -> Content:
        percent: int | None = getattr(self.gpu, figure)
        bar = share_bar(None if percent is None else percent / 100, self.shape.bar, colour)
        graph = self._graph(self.histories.figure(self.gpu, figure), 100, colour)
        return bar_line(label, bar, _known(_with_unit(percent, "%")), graph, self.shape)

    def memory(self, gpu: GpuRow) -> Content:
        reading = gpu.reading
        used, total = reading.used_bytes, reading.total_bytes
        if used is None or not total:
            return bar_line("memory", Content(" " * self.shape.bar), _known(None), Content(), self.shape)
        words = Content.assemble(
            _known(f"{format_gib(used)} of {format_gib(total)} GiB"), f", free {format_gib(reading.free_bytes)}"
        )
        bar = bar_content(held_cells_with_budget_mark(gpu, self.shape.bar))
        graph = self._graph(self.histories.history.gpu(reading.key), total, colour_of("activity"))
        return bar_line("memory", bar, words, graph, self.shape)

    def power(self) -> Content:
        power, limit = self.gpu.power_w, self.gpu.power_limit_w
        share = None if power is None or not limit else power / limit
        words = _known(None if power is None else power_words(self.gpu))
        if share is not None:
            words = Content.assemble(words, f" ({100 * share:.0f} %)")
        top = limit or max((watts or 0 for _, watts in self.histories.figure(self.gpu, "power_w")), default=0)
        graph = self._graph(self.histories.figure(self.gpu, "power_w"), top, colour_of("activity"))
        return bar_line("power", share_bar(share, self.shape.bar, colour_of("activity")), words, graph, self.shape)

    def temperature(self) -> Content:
        degrees, limit = self.gpu.temperature_c, self._slowdown_c
        hot = limit is not None and degrees is not None and degrees >= limit - _HOT_MARGIN_C
        colour, scale = colour_of("hot") if hot else colour_of("activity"), limit or _SCALE_C
        parts = [_known(_with_unit(degrees, "°C"))]
        if limit is not None:
            parts.append(Content(f"slows at {limit}"))
        if self.gpu.details and self.gpu.details.memory_temperature_c is not None:
            parts.append(Content(f"memory {self.gpu.details.memory_temperature_c}"))
        bar = share_bar(None if degrees is None else degrees / scale, self.shape.bar, colour)
        graph = self._graph(self.histories.figure(self.gpu, "temperature_c"), scale, colour)
        return bar_line("temperature", bar, Content(", ").join(parts), graph, self.shape)

    @property
    def _slowdown_c(self) -> int | None:
        """The temperature at which the GPU slows down."""
        details, degrees = self.gpu.details, self.gpu.temperature_c
        if details is None or details.slowdown_c is not None:
            return details.slowdown_c if details else None
        margin = details.slowdown_margin_c
        return None if margin is None or degrees is None else degrees + margin

    def _graph(self, history: Readings, top: float, colour: str) -> Content:
        if not top:
            return Content()
        span, now = self.histories.span_seconds, self.histories.now
        return history_line(history, self.shape.history, top=top, style=colour, span_seconds=span, now=now)


def _known(text: str | None) -> Content:
    """Return a figure in bold; None: unknown."""
    return Content.styled("n/a", MUTED) if text is None else Content.styled(text, "bold")


# Clocks, links, health and settings of a GPU in words, one subject a line, and why figures are unknown.


_MIN_COMMON_WORDS = 3
"""Sentences whose beginnings have fewer words in common stay whole."""
_COMPUTE_MODES = {"default": "default", "exclusive_process": "one process only", "prohibited": "no processes allowed"}


def fact_lines(gpu: GpuReading, width: int) -> list[Content]:
    """Return the lines; none if the details have not been read.

    Args:
        gpu: the whole GPU.
        width: cells of a line.
    """
    details = gpu.details
    if details is None or details.level != "full":
        return []
    return [
        *_wrapped("clocks", _clocks(details), width),
        *_wrapped("fans", _fans(details), width),
        *_wrapped("PCIe", _pcie(details.pcie), width),
        *_wrapped("NVLink", _nvlink(details.nvlink, details), width),
        *_wrapped("ECC", _ecc(details), width),
        *_wrapped("settings", _settings(gpu, details), width),
        *_wrapped("board", _board(details), width),
        *reason_lines(gpu, width),
    ]


def reason_lines(gpu: GpuReading, width: int) -> list[Content]:
    """Return why figures are unknown; the same reason for several figures is one sentence."""
    faults = [*(fault for fault in gpu.faults if fault.field), *(gpu.details.faults if gpu.details else ())]
    by_code: dict[str, list[str]] = {}
    for fault in faults:
        messages = by_code.setdefault(fault.code, [])
        if fault.message not in messages:
            messages.append(fault.message)
    lines = []
    for messages in by_code.values():
        lines += wrap(printable(f"n/a: {_joined(messages)}"), max(20, width - 2), subsequent_indent="     ")
    return [Content.styled(line, MUTED) for line in lines]


def _joined(messages: list[str]) -> str:
    """Return sentences with a common beginning as one: ``this GPU does not report its fans, NVLinks``."""
    columns = takewhile(
        lambda words: len(set(words)) == 1, zip(*(message.split() for message in messages), strict=False)
    )
    start = " ".join(words[0] for words in columns)
    if len(messages) == 1 or len(start.split()) < _MIN_COMMON_WORDS:
        return "; ".join(messages)
    return f"{start} " + ", ".join(message.removeprefix(start).strip() for message in messages)


def _wrapped(label: str, parts: Iterable[Content], width: int) -> list[Content]:
    """Return the parts joined by dots, on as many lines as they need."""
    lines: list[Content] = []
    line = Content()
    for part in parts:
        longer = Content.assemble(line, SEPARATOR, part) if line else part
        if line and LABEL_WIDTH + longer.cell_length > width:
            lines.append(line)
            longer = part
        line = longer
    lines.append(line)
    return [labelled("" if at else label, each) for at, each in enumerate(lines)]


def _figure(name: str, text: str | None) -> Content:
    """Return a name with its figure; None: unknown."""
    return Content.assemble((f"{name} ", MUTED) if name else "", (text, "") if text is not None else ("n/a", MUTED))


def _clocks(details: GpuDetails) -> list[Content]:
    state = details.performance_state
    return [
        _figure("SM", _of(details.sm_mhz, details.sm_max_mhz, "MHz")),
        _figure("memory", _of(details.memory_mhz, details.memory_max_mhz, "MHz")),
        _figure("" if state is not None else "state", None if state is None else _state(state)),
    ]


def _state(state: int) -> str:
    return f"P{state}{' (fastest)' if state == 0 else ''}"


def _fans(details: GpuDetails) -> list[Content]:
    speeds = details.fan_percents
    if speeds is None:
        words = None
    elif not speeds:
        words = "none"
    else:
        words = ", ".join(f"{speed} %" for speed in speeds)
    return [
        _figure("", words),
        _figure("encoder", _with_unit(details.encoder_percent, "%")),
        _figure("decoder", _with_unit(details.decoder_percent, "%")),
    ]


def _pcie(link: PcieLink | None) -> list[Content]:
    if link is None:
        return [_figure("", None)]
    now, most = _width(link.generation, link.width), _width(link.max_generation, link.max_width)
    words = now if now is None or most in (None, now) else f"{now} (at most {most})"
    return [
        _figure("", words),
        _figure("to host", _rate(link.sent_per_second)),
        _figure("from host", _rate(link.received_per_second)),
        _alarm(f"{link.replays} replays") if link.replays else _figure("replays", _with_unit(link.replays)),
    ]


def _nvlink(links: NvLinks | None, details: GpuDetails) -> list[Content]:
    if links is None:
        return [_figure("", None if details.reason("nvlink") else "none")]
    to = " and ".join("switches" if peer == "switch" else f"{printable(peer)}s" for peer in links.peers)
    up = f"{'n/a' if links.active is None else links.active} of {links.count} links up{f', to {to}' if to else ''}"
    down = links.active is not None and links.active < links.count
    speed = None if links.link_bytes_per_second is None else f"{_rate(links.link_bytes_per_second)} each"
    unknown = None if details.reason("nvlink.traffic") else "…"  # a rate needs two readings
    return [
        _alarm(up) if down else _figure("", up),
        _figure("version", _with_unit(links.version)),
        _figure("", speed),
        _figure("sent", _rate(links.sent_per_second) or unknown),
        _figure("received", _rate(links.received_per_second) or unknown),
    ]


def _ecc(details: GpuDetails) -> list[Content]:
    if details.ecc_enabled is None:
        parts = [_figure("", None)]
    elif not details.ecc_enabled:
        parts = [Content("off")]
    else:
        parts = [Content("on"), *_errors(details.ecc)]
    return [*parts, *_rows(details.remapped_rows)]


def _errors(ecc: EccErrors | None) -> list[Content]:
    if ecc is None:
        return [_figure("errors", None)]
    counts = (ecc.recent_corrected, ecc.recent_uncorrected, ecc.lifetime_corrected, ecc.lifetime_uncorrected)
    if counts == (0, 0, 0, 0):
        return [Content("no errors")]
    uncorrected = f"{_count(counts[1])} since load, {_count(counts[3])} ever"
    if counts[1] or counts[3]:
        first = _alarm(f"uncorrected errors: {uncorrected}")
    else:
        first = Content("no uncorrected errors") if counts[1] == counts[3] == 0 else _figure("uncorrected", uncorrected)
    return [
        first,
        _figure("corrected", f"{_count(counts[0])} since load, {_count(counts[2])} ever"),
    ]


def _rows(rows: RemappedRows | None) -> list[Content]:
    if rows is None:
        return [_figure("remapped rows", None)]
    count = rows.after_corrected + rows.after_uncorrected
    parts = [_figure("remapped rows", f"{count}" if count else "none")]
    if rows.pending:
        parts.append(_alarm("a row is remapped at the next reset"))
    if rows.failed:
        parts.append(_alarm("remapping failed: replace the GPU"))
    return parts


def _settings(gpu: GpuReading, details: GpuDetails) -> list[Content]:
    mode = None if gpu.compute_mode is None else _COMPUTE_MODES[gpu.compute_mode]
    limit = _with_unit(gpu.power_limit_w, "W")
    if limit is not None and details.power_default_w is not None:
        highest = details.power_max_w
        usual = {round(gpu.power_limit_w or 0), round(details.power_default_w), round(highest or 0)}
        most = "" if highest is None else f", at most {highest:.0f}"
        limit += " (the highest)" if len(usual) == 1 else f" (default {details.power_default_w:.0f}{most})"
    persistence = None if details.persistence is None else ("on" if details.persistence else "off")
    return [
        _figure("persistence", persistence),
        _figure("compute mode", mode),
        _figure("power limit", limit),
        _figure("off at", _with_unit(details.shutdown_c, "°C")),
    ]


def _board(details: GpuDetails) -> list[Content]:
    used, total = details.bar1_used_bytes, details.bar1_total_bytes
    bar1 = None if used is None or total is None else f"{format_gib(used)} of {format_gib(total)} GiB"
    parts = [
        _figure("PCI", details.pci_address and printable(details.pci_address)),
        _figure("VBIOS", details.vbios and printable(details.vbios)),
        _figure("compute capability", details.compute_capability and printable(details.compute_capability)),
        _figure("BAR1", bar1),
    ]
    if details.numa_node is not None:
        parts.append(_figure("NUMA node", f"{details.numa_node}"))
    if details.near_cpus is not None:
        parts.append(_figure("nearest CPUs", printable(details.near_cpus)))
    return parts


def _alarm(words: str) -> Content:
    return Content.styled(f" ! {words} ", alarm())


def _of(figure: int | None, most: int | None, unit: str) -> str | None:
    if figure is None:
        return None
    return f"{figure} {unit}" if most is None else f"{figure} of {most} {unit}"


def _with_unit(figure: float | None, unit: str = "") -> str | None:
    """Return a whole figure with its unit; None: unknown."""
    return None if figure is None else f"{figure:.0f} {unit}".rstrip()


def _count(figure: int | None) -> str:
    return "n/a" if figure is None else f"{figure:,}"


def _width(generation: int | None, width: int | None) -> str | None:
    return None if generation is None or width is None else f"gen {generation} x{width}"


def _rate(figure: int | None) -> str | None:
    """Return bytes a second in GB/s, as links are rated."""
    return None if figure is None else f"{figure / 1e9:.2f} GB/s"


# Keys of the GPU screen.


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
    bind("dashboard.process", "app.open_screen('process')", "Info", show=False),
]
"""With those that act on the processes of the GPU."""


# The GPU screen: what one GPU does, what holds it back, its links and health, and the processes on it.


_MIN_TABLE_LINES = 5
_MAX_GRAPH_LINES = 20
_TALL_LINES = 30
"""Lines of a terminal with room for a gap."""
_FEED_SECONDS = 1.0
"""Interval of looking whether readings still arrive."""


class _Figures(ContentLines, can_focus=True):
    """The lines above the graphs; with the focus (Tab), the arrow keys scroll them where there are too many."""

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
    GpuScreen #graph { margin: 1 1 0 1; }
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
        self._drawn: tuple[Board, GpuKey, Size] | None = None
        """What was drawn last."""

    @property
    def demand(self) -> Demand:
        """All details of this GPU, and the figures of its processes that the table shows."""
        gpus: dict[GpuKey, DetailLevel] = {} if self._gpu is None else {self._gpu.reading.whole_gpu_key: "full"}
        return replace(self.table.demand, gpus=gpus)

    @property
    def shown_process(self) -> ProcessKey | None:
        """The process under the cursor."""
        row = self.selected_process
        return row.process.key if row else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Offer only keys that do something; if no process can be terminated, k says why."""
        return is_complete(self) and self.offers(action)

    def compose(self) -> ComposeResult:
        """The figures, the graphs, and the processes."""
        yield StaticLines(id="title")
        yield StaticLines(id="state")
        yield _Figures(id="figures")
        yield ActivityGraph(id="graph")
        yield StaticLines(id="note")
        yield ProcessTable(id="processes")
        yield KeysLine()

    def on_mount(self) -> None:
        """Draw the latest board, and look every second whether it is old."""
        if not is_complete(self):  # the app is being closed
            return
        self.table.show_view("processes")
        self.table.show_columns(columns_named(self.app.settings.get(COLUMNS)))
        self.table.sort_at_start(self.app.settings.get(SORT))
        if self.app.board:
            self.show_board(self.app.board)
        self.set_interval(_FEED_SECONDS, self._show_feed)

    def show_board(self, board: Board) -> None:
        """Show the GPU as it is on this board."""
        shown = board.displayed_gpus
        self._gpu = next((gpu for gpu in shown if gpu.reading.key == self._key), None)
        if self._gpu is not None:
            self._position = shown.index(self._gpu)
        if self._drawn != (board, self._key, self.size) or self._feed != self.app.feed:
            self.redraw()

    def action_step(self, by: int) -> None:
        """Show the next GPU (1), or the previous one (-1); after the last comes the first."""
        board = self.app.board
        if board is None or not board.displayed_gpus:
            return
        count = len(board.displayed_gpus)
        self._key = board.displayed_gpus[(self._position + by) % count].reading.key
        self.show_board(board)
        self.app.update_demand()

    @on(ProcessTable.Opened)
    def _open_process(self, event: ProcessTable.Opened) -> None:
        self.app.show_process(event.row)

    def _show_feed(self) -> None:
        if self.app.feed != self._feed:
            self.redraw()

    def draw(self) -> None:
        """Draw the GPU as it is on the latest board."""
        board, size = self.app.board, self.size
        if board is None:
            return
        self._feed, self._drawn = self.app.feed, (board, self._key, size)
        title, state = self.query_one("#title", StaticLines), self.query_one("#state", StaticLines)
        if self._gpu is None:
            title.show(Content.styled("GPU", "bold"))
            state.show(Content.styled(" ! this GPU is no longer listed ", alarm()))
            return
        gpu, whole = self._gpu, _whole_gpu(board, self._gpu)
        age = stale_seconds(gpu, board, self._feed)
        width = size.width - 2
        title.show(_title(gpu.reading, board, age, width))
        state.show(_state_line(whole, board, width, paused=self._feed.paused))
        history, now = self.app.watchlist.history, board.snapshot.time
        histories = Histories(history, graph_span(history.activity(whole.key, "utilisation_percent"), now), now)
        figures = self.query_one(_Figures)
        lines = activity_lines(gpu, whole, histories, width - figures.scrollbar_size_vertical)
        lines += fact_lines(whole, width - 1) or reason_lines(whole, width - 1)
        figures.set_class(age is not None, "-stale")
        with self.app.batch_update():
            self._arrange(len(lines), len(gpu.rows))
            figures.show_lines(lines)
            graph = self.query_one(ActivityGraph)
            if graph.display:
                graph.show(whole, histories)
            self.table.show_board(_board_of(board, gpu), width=size.width)
            self.show_table_note()

    def _arrange(self, lines: int, processes: int) -> None:
        """Give the figures their lines, the processes theirs, and the graphs what is left, if that is enough."""
        tall = self.size.height >= _TALL_LINES
        room = self.size.height - 3 - tall  # title, state, keys, and the gap above the processes
        table = min(max(_MIN_TABLE_LINES, processes + 2), max(_MIN_TABLE_LINES, room // 3))
        height = min(lines, room - _MIN_TABLE_LINES)
        left = room - height - table - 1
        graph = self.query_one(ActivityGraph)
        graph.display = left >= _MIN_GRAPH_LINES
        graph.styles.height = min(left, _MAX_GRAPH_LINES)
        self.table.styles.margin = (int(tall), 0, 0, 0)
        self.query_one(_Figures).styles.height = height


def _whole_gpu(board: Board, gpu: GpuRow) -> GpuReading:
    """Return the GPU itself, or that of a MIG device."""
    wholes = (each.reading for each in board.gpus if each.reading.key == gpu.reading.whole_gpu_key)
    return next(wholes, gpu.reading)


def _board_of(board: Board, gpu: GpuRow) -> Board:
    """Return the board with this GPU alone."""
    key = gpu.reading.key
    runs = (replace(run, rows=tuple(row for row in run.rows if row.gpu.key == key)) for run in board.runs)
    return replace(board, gpus=(gpu,), pending=(), runs=tuple(run for run in runs if run.rows), anomalies=())


def _title(gpu: GpuReading, board: Board, age: float | None, width: int) -> Content:
    name = printable(gpu.name or "GPU").removeprefix("NVIDIA ")
    left = Content.assemble((f"GPU {gpu.label}", "bold"), f" · {name}")
    source, shown = board.snapshot.source, len(board.displayed_gpus)
    right: list[Content | str] = [] if age is None else [Content.styled(f" ! {format_duration(age)} old ", alarm())]
    right += [f"one of {shown}"] if shown > 1 else []
    right += [printable(source.host or "this machine")] if width >= 90 else []
    right += [f"driver {printable(source.driver_version)}"] if source.driver_version and width >= 100 else []
    right.append(time.strftime("%H:%M:%S", time.localtime(board.snapshot.time)))
    return left_and_right(left, join_to_width(right, width - 12), width)


def _state_line(gpu: GpuReading, board: Board, width: int, *, paused: bool) -> Content:
    """Return the most important sentence: a fault of the GPU, what slows it down, or why that is unknown."""
    fault = next((fault for fault in gpu.faults if fault.field is None), None)
    if fault is not None:
        return Content.assemble((" ! ", alarm()), f" {printable(fault.message)}").truncate(width, ellipsis=True)
    details = gpu.details
    if details is None or details.level != "full":
        if not board.snapshot.source.is_live:
            known = gpu.memory_utilisation_percent is not None
            words = f"{'' if known else 'bandwidth, '}the recording has no clocks, links or health of this GPU"
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


# Opens the GPU screen on the GPU under the cursor of the dashboard.


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
