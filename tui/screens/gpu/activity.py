"""A GPU's activity: utilisation, memory bandwidth, memory, power and temperature, with their history."""

import msgspec
from textual.content import Content

from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.board.board import GpuRow
from vramtop.monitor.snapshot.memory_history import GpuFigure, MemoryHistory
from vramtop.monitor.snapshot.mig_devices import MigDevice
from vramtop.monitor.snapshot.snapshot import GpuReading

from ...draw.gpu_bars import bar_content, held_cells_with_budget_mark
from ...draw.gpu_figures import power_words
from ...draw.labels import MUTED
from ...draw.memory_graph import Readings
from ...draw.palette import colour_of
from .lines import LineShape, bar_line, history_line, labelled, line_shape, share_bar, whole_figure

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
        return bar_line(label, bar, _known(whole_figure(percent, "%")), graph, self.shape)

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
        parts = [_known(whole_figure(degrees, "°C"))]
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
