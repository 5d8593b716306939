"""A GPU's activity: utilisation, memory bandwidth, memory, power and temperature, with their history."""

import msgspec
from textual.content import Content

from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.board.board import GpuRow
from vramtop.monitor.snapshot.memory_history import GpuFigure, MemoryHistory
from vramtop.monitor.snapshot.mig_devices import MigDevice
from vramtop.monitor.snapshot.snapshot import GpuReading

from ...draw.gpu_bars import bar_content, held_cells_with_budget_mark, power_words
from ...draw.labels import FAINT, MUTED
from ...draw.memory_graph import EIGHTHS, Readings, column_sizes
from ...draw.palette import colour_of

_HOT_MARGIN_C = 3
"""Degrees below the temperature at which a GPU slows down from which on it counts as hot."""
_SCALE_C = 100
"""Degrees of a full bar of a GPU that does not report at which temperature it slows down."""
LABEL_WIDTH = 12
_MIN_WIDTH_WITH_HISTORY = 70
_MAX_HISTORY_WIDTH = 60
_MIN_FIGURES_WIDTH = 30
_MAX_FIGURES_WIDTH = 46


def activity_lines(
    gpu: GpuRow, whole: GpuReading, history: MemoryHistory, width: int, *, span_seconds: float, now: float
) -> list[Content]:
    """Return the lines.

    Args:
        gpu: the GPU or MIG device.
        whole: the GPU, or that of the MIG device.
        history: of the figures.
        width: cells of a line.
        span_seconds: seconds of history that are drawn.
        now: Unix seconds at the right edge.
    """
    lines = _Lines(whole, history, line_shape(width), span_seconds, now)
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


class LineShape(msgspec.Struct, frozen=True):
    """Widths of the parts of a line, in cells."""

    bar: int
    figures: int
    history: int


class _Lines(msgspec.Struct, frozen=True):
    """Makes the lines of one GPU."""

    gpu: GpuReading
    history: MemoryHistory
    shape: LineShape
    span_seconds: float
    now: float

    def percent(self, label: str, figure: GpuFigure, colour: str) -> Content:
        percent: int | None = getattr(self.gpu, figure)
        share = None if percent is None else percent / 100
        return self._share_line(label, share, _known(whole_figure(percent, "%")), figure, top=100, colour=colour)

    def memory(self, gpu: GpuRow) -> Content:
        reading = gpu.reading
        used, total = reading.used_bytes, reading.total_bytes
        if used is None or not total:
            return self._line("memory", Content(" " * self.shape.bar), _known(None), (), top=0, colour="")
        words = Content.assemble(
            _known(f"{format_gib(used)} of {format_gib(total)} GiB"), f", free {format_gib(reading.free_bytes)}"
        )
        bar = bar_content(held_cells_with_budget_mark(gpu, self.shape.bar))
        history = self.history.gpu(reading.key)
        return self._line("memory", bar, words, history, top=total, colour=colour_of("activity"))

    def power(self) -> Content:
        power, limit = self.gpu.power_w, self.gpu.power_limit_w
        share = None if power is None or not limit else power / limit
        words = _known(None if power is None else power_words(self.gpu))
        if share is not None:
            words = Content.assemble(words, f" ({100 * share:.0f} %)")
        top = limit or max((watts or 0 for _, watts in self._readings("power_w")), default=0)
        return self._share_line("power", share, words, "power_w", top=top, colour=colour_of("activity"))

    def temperature(self) -> Content:
        degrees, limit = self.gpu.temperature_c, self._slowdown_c
        hot = limit is not None and degrees is not None and degrees >= limit - _HOT_MARGIN_C
        colour, scale = colour_of("hot") if hot else colour_of("activity"), limit or _SCALE_C
        parts = [_known(whole_figure(degrees, "°C"))]
        if limit is not None:
            parts.append(Content(f"slows at {limit}"))
        if self.gpu.details and self.gpu.details.memory_temperature_c is not None:
            parts.append(Content(f"memory {self.gpu.details.memory_temperature_c}"))
        share = None if degrees is None else degrees / scale
        words = Content(", ").join(parts)
        return self._share_line("temperature", share, words, "temperature_c", top=scale, colour=colour)

    @property
    def _slowdown_c(self) -> int | None:
        """The temperature at which the GPU slows down."""
        details, degrees = self.gpu.details, self.gpu.temperature_c
        if details is None or details.slowdown_c is not None:
            return details.slowdown_c if details else None
        margin = details.slowdown_margin_c
        return None if margin is None or degrees is None else degrees + margin

    def _readings(self, figure: GpuFigure) -> Readings:
        return self.history.activity(self.gpu.whole_gpu_key, figure)

    def _share_line(
        self, label: str, share: float | None, words: Content, figure: GpuFigure, *, top: float, colour: str
    ) -> Content:
        """Return a line with the bar of a share of 1, and the history of its figure."""
        bar = share_bar(share, self.shape.bar, colour)
        return self._line(label, bar, words, self._readings(figure), top=top, colour=colour)

    def _line(self, label: str, bar: Content, words: Content, history: Readings, *, top: float, colour: str) -> Content:
        """Return a line with a bar, its figure in words, and its history on a scale up to ``top``; 0: without it."""
        words = words.truncate(self.shape.figures, ellipsis=True)
        gap = " " * (self.shape.figures - words.cell_length)
        graph, width = Content(), self.shape.history
        if top:
            span, now = self.span_seconds, self.now
            graph = history_line(history, width, top=top, style=colour, span_seconds=span, now=now)
        return labelled(label, Content.assemble(bar, "  ", words, gap, graph))


def _known(text: str | None) -> Content:
    """Return a figure in bold; None: unknown."""
    return Content.styled("n/a", MUTED) if text is None else Content.styled(text, "bold")


def line_shape(width: int) -> LineShape:
    """Divide a line of this width."""
    room = width - LABEL_WIDTH - 2  # a gap
    figures = min(_MAX_FIGURES_WIDTH, max(_MIN_FIGURES_WIDTH, room * 2 // 5))
    history = min(_MAX_HISTORY_WIDTH, room // 5) if width >= _MIN_WIDTH_WITH_HISTORY else 0
    return LineShape(bar=max(8, room - figures - history), figures=figures, history=history)


def labelled(label: str, text: Content) -> Content:
    """Return a line with a label and a text."""
    return Content.assemble((f"{label:{LABEL_WIDTH}}", MUTED), text)


_BAR, _REST = "▆", "▁"


def share_bar(share: float | None, width: int, style: str) -> Content:
    """Return a bar of a share of 1, and a thin line to the end of the scale; nothing if the share is unknown."""
    if share is None:
        return Content(" " * width)
    full = round(min(1.0, max(0.0, share)) * width)
    return Content.assemble((_BAR * full, style), (_REST * (width - full), FAINT))


_NONE = "_"
"""Column of a history where the figure was 0."""


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


def whole_figure(figure: float | None, unit: str = "") -> str | None:
    """Return a whole figure with its unit; None: unknown."""
    return None if figure is None else f"{figure:.0f} {unit}".rstrip()
