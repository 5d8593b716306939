"""The what-if screen: memory of a job over its micro-batch or sequence length, against the GPU's memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.events import Resize
from textual.screen import Screen

from vramtop.estimator.budget import Budget, Peak
from vramtop.estimator.common.errors import Verdict, VramtopError
from vramtop.estimator.common.sizes import GIB, format_gib
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import with_changes

from ..draw.bars import Cell
from ..draw.labels import badge
from ..draw.memory_graph import EIGHTHS, level_of
from ..draw.palette import VERDICTS, colour_of, ink_on
from ..keys import bind
from ..widgets.cell_rows import AxesGraph
from ..widgets.keys_line import KeysLine
from ..widgets.row_table import StaticLines
from .base import is_ascii_only

# A sweep: quick estimates of a job over the values of one setting, compared with the memory of a GPU.


Axis = Literal["training.micro_batch", "training.sequence_length"]
AXES: dict[Axis, str] = {"training.micro_batch": "micro-batch", "training.sequence_length": "sequence length"}
_VALUE_STEP: dict[Axis, int] = {"training.micro_batch": 1, "training.sequence_length": 64}
_MIN_END: dict[Axis, int] = {"training.micro_batch": 4, "training.sequence_length": 1024}
"""The sweep ends no earlier, and beyond the job's own value: a plot of two values shows nothing."""
_MAX_VALUE: dict[Axis, int] = {"training.micro_batch": 4096, "training.sequence_length": 1 << 21}
_LIMIT_MARGIN = 1.15
"""The sweep goes beyond the limit by this factor, to show where the need crosses it."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """Memory of the job with one value."""

    value: int
    peak: Peak
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimits:
    """Memory of a GPU."""

    available_bytes: int | None = None
    """Available bytes, on the GPU of the job that would have the least memory left."""
    gpu_bytes: int | None = None
    """Total bytes of that GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Points in order of their values."""

    axis: Axis
    current_value: int
    """The job's own value."""
    points: tuple[SweepPoint, ...]
    limits: GpuLimits

    @property
    def largest(self) -> SweepPoint | None:
        """The last point that fits after points that all fit; if the job's own value fits, no less than that."""
        return self._last(("fits",))

    @property
    def largest_tight(self) -> SweepPoint | None:
        """The last point that fits or is tight after points that all do, likewise."""
        return self._last(("fits", "tight"))

    def at(self, value: int) -> SweepPoint | None:
        """Return the point of a value, or the one before it if that value was not estimated."""
        return next((point for point in reversed(self.points) if point.value <= value), None)

    def _last(self, verdicts: tuple[Verdict, ...]) -> SweepPoint | None:
        last = None
        own_fits = any(point.value == self.current_value and point.verdict in verdicts for point in self.points)
        for point in self.points:
            if own_fits and point.value < self.current_value:
                continue
            if point.verdict not in verdicts:
                break
            last = point
        return last


def sweep_setting(
    job: Job,
    axis: Axis,
    estimate: Callable[[Job], Budget],
    verdict: Callable[[Budget], Verdict],
    limits: GpuLimits,
    *,
    max_positions: int | None = None,
    points: int = 96,
) -> Sweep:
    """Estimate the job over one setting, from the smallest value to beyond the largest that fits.

    Args:
        job: the job with its current value.
        axis: key of the setting.
        estimate: a quick estimate; values for which it raises an error are left out.
        verdict: decides whether a budget fits.
        limits: the GPU's memory, which the sweep should exceed.
        max_positions: the longest sequence of the model: the sweep ends there, or at the job's own value.
        points: maximum number of values.
    """
    current_value: int = getattr(job.training, axis.partition(".")[2])
    value_step = _VALUE_STEP[axis]

    def need(value: int) -> Budget | None:
        try:
            return estimate(with_changes(job, {axis: value}))
        except VramtopError:
            return None

    most = _MAX_VALUE[axis]
    if axis == "training.sequence_length" and max_positions:
        most = max(min(most, max_positions), current_value)
    end = _end(need, limits, least=min(most, max(_MIN_END[axis], current_value + -(-current_value // 4))), most=most)
    step = max(value_step, -(-end // points // value_step) * value_step)
    values = sorted({value_step, current_value, *range(step, end + 1, step)})
    found = ((value, need(value)) for value in values)
    return Sweep(
        axis=axis,
        current_value=current_value,
        points=tuple(SweepPoint(value, budget.peak, verdict(budget)) for value, budget in found if budget is not None),
        limits=limits,
    )


def point_words(sweep: Sweep, point: SweepPoint) -> str:
    """Return a point in words: ``micro-batch 8: 61.2 GiB (58.0 to 66.1)``."""
    low, high = format_gib(point.peak.low_bytes), format_gib(point.peak.high_bytes)
    return f"{AXES[sweep.axis]} {point.value:,}: {format_gib(point.peak.device_bytes)} GiB ({low} to {high})"


def _end(need: Callable[[int], Budget | None], limits: GpuLimits, *, least: int, most: int) -> int:
    """Return the last value: just beyond the limits, found by doubling and then by linear interpolation."""
    limit = max(limits.available_bytes or 0, limits.gpu_bytes or 0) * _LIMIT_MARGIN
    last, size = least, _size(need(least))
    while size is not None and size < limit and last < most:
        further = min(2 * last, most)
        larger = _size(need(further))
        if larger is None:
            break
        if larger >= limit and larger > size:
            return round(last + (further - last) * (limit - size) / (larger - size))
        last, size = further, larger
    return last


def _size(budget: Budget | None) -> int | None:
    return None if budget is None else budget.peak.device_bytes


# Rows of the what-if plot as plain data: memory over one setting, with the limits of the GPU as lines.
#
# This module needs no terminal library.


_ASCII_FILL: dict[Verdict, str] = {"fits": "+", "tight": "!", "does_not_fit": "x", "unknown": "?"}
_LIMIT, _GPU_TOTAL = "━", "╌"
_HEADROOM = 1.04
"""The top of the plot is this multiple of the most that it shows: the line of the most is not cut off."""


def what_if_rows(
    sweep: Sweep, *, width: int, height: int, top: int, cursor: int | None = None, ascii_only: bool = False
) -> list[list[Cell]]:
    """Draw memory over the values, top row first, with the limits as lines across.

    Each column shows the last value in its range. A dot marks the upper bound of its peak.

    Args:
        sweep: the points to draw.
        width: columns.
        height: rows.
        top: bytes at the top of the plot; anything above is cut off.
        cursor: the value whose column is marked; None: no mark.
        ascii_only: draw with ASCII characters; the fill then shows the verdict.
    """
    if width <= 0 or height <= 0 or not sweep.points:
        return []
    steps = len(EIGHTHS) - 1
    rows = [[Cell(" ")] * width for _ in range(height)]
    lines = _lines(sweep.limits, height, top, ascii_only=ascii_only)
    marked = None if cursor is None else column_of(sweep, cursor, width)
    for x in range(width):
        point = _point_of(sweep, x, width)
        mark, peak = VERDICTS[point.verdict], point.peak
        level, high = level_of(peak.device_bytes, height * steps, top), level_of(peak.high_bytes, height, top)
        for y in range(height):
            fill = min(steps, max(0, level - y * steps))
            char = EIGHTHS[fill] if not ascii_only else (_ASCII_FILL[point.verdict] if fill * 2 >= steps else " ")
            cell = Cell(char, mark.colour if char != " " else None)
            if char == " " and y == high - 1:
                cell = Cell("." if ascii_only else "·", mark.colour)
            if y in lines:
                sign, colour = lines[y]
                full = not ascii_only and fill == steps
                cell = Cell(sign, ink_on(mark.colour) if full else colour, mark.colour if full else None)
            if x == marked and char == " " and y not in lines:
                cell = Cell("|" if ascii_only else "┊")
            rows[height - 1 - y][x] = cell
    return rows


def axis_rows(sweep: Sweep, *, width: int, cursor: int | None = None, ascii_only: bool = False) -> tuple[str, str]:
    """Return the two rows below the plot: marks at the current value and the cursor, and values of some columns."""
    line, tick, here, there = ("-", "+", "^", "*") if ascii_only else ("─", "┬", "▲", "◆")
    marks, names = [line] * width, [" "] * width
    if not sweep.points or width <= 0:
        return "", ""
    first = column_of(sweep, sweep.current_value, width)
    words = [(first, f"now {sweep.current_value:,}")]
    if cursor is not None and cursor != sweep.current_value:
        words.insert(0, (column_of(sweep, cursor, width), f"{cursor:,}"))
    columns = {_point_of(sweep, at, width).value: at for at in reversed((0, *range(16, width - 8, 16), width - 1))}
    words += [(at, f"{value:,}") for value, at in columns.items() if value not in (sweep.current_value, cursor)]
    for at, word in words:
        start_column = max(0, min(at, width - len(word)))
        around = names[max(0, start_column - 1) : start_column + len(word) + 1]
        if all(char == " " for char in around):
            names[start_column : start_column + len(word)] = word
            marks[at] = tick
    marks[first] = here
    if cursor is not None and cursor != sweep.current_value:
        marks[column_of(sweep, cursor, width)] = there
    return "".join(marks), "".join(names).rstrip()


def plot_top(sweep: Sweep) -> int:
    """Return the bytes at the top of the plot: the largest need, or a limit that is less than twice as large."""
    need = max((point.peak.high_bytes for point in sweep.points), default=0)
    lines = [sweep.limits.available_bytes or 0, sweep.limits.gpu_bytes or 0]
    return max(1, round(max([need, *(line for line in lines if line <= 2 * need)]) * _HEADROOM))


def column_of(sweep: Sweep, value: int, width: int) -> int:
    """Return the column whose range contains a value."""
    end = sweep.points[-1].value
    return min(width - 1, max(0, -(-value * width // end) - 1))


def _point_of(sweep: Sweep, column: int, width: int) -> SweepPoint:
    """Return the last point in a column's range, or the one before it if the range has none."""
    return sweep.at((column + 1) * sweep.points[-1].value // width) or sweep.points[0]


def _lines(limits: GpuLimits, height: int, top: int, *, ascii_only: bool) -> dict[int, tuple[str, str]]:
    """Return sign and colour of each limit by row, counted from the bottom; the available bytes take precedence."""
    found: dict[int, tuple[str, str]] = {}
    signs = (
        (limits.gpu_bytes, "-" if ascii_only else _GPU_TOTAL, colour_of("neutral")),
        (limits.available_bytes, "=" if ascii_only else _LIMIT, colour_of("bad")),
    )
    for size, sign, colour in signs:
        if size is not None and size <= top:
            found[min(height - 1, size * height // top)] = (sign, colour)
    return found


# Widget: memory of a job over one of its settings, with a scale at the left and the values below.


class WhatIfPlot(AxesGraph):
    """Plots a sweep."""

    DEFAULT_CSS = "WhatIfPlot { height: 1fr; min-height: 6; }"
    sweep: Sweep | None = None
    """The sweep that is plotted."""

    def show(self, sweep: Sweep, *, cursor: int | None = None) -> None:
        """Plot this sweep; ``cursor``: the value to mark."""
        self.sweep = sweep
        if not sweep.points:
            return
        top, ascii_only = max(plot_top(sweep), GIB // 10), self._ascii_only

        def draw(width: int, height: int) -> tuple[list[list[Cell]], tuple[str, str]]:
            rows = what_if_rows(sweep, width=width, height=height, top=top, cursor=cursor, ascii_only=ascii_only)
            return rows, axis_rows(sweep, width=width, cursor=cursor, ascii_only=ascii_only)

        limits = (sweep.limits.gpu_bytes, sweep.limits.available_bytes)
        self.show_graph(top, draw, lines=[size for size in limits if size is not None])


# Keys of the what-if screen.


WHAT_IF_KEYS: list[BindingType] = [
    bind("app.back", "dismiss(None)", "Back"),
    bind("fit.what_if", "dismiss(None)", help_text=""),
    bind("what_if.axis", "next_setting", "Axis", priority=True),
    bind("what_if.less", "step(-1)", "Less"),
    bind("what_if.more", "step(1)", "More"),
    bind("what_if.much_less", "step(-8)"),
    bind("what_if.much_more", "step(8)"),
    bind("what_if.largest", "largest", "Largest"),
    bind("what_if.reset", "reset", "Now"),
    bind("what_if.apply", "apply", "Apply"),
]


# The what-if screen: memory of a job over its micro-batch or sequence length, compared with the GPU's memory.


_NEED_SWEEPS = frozenset(("next_setting", "step", "largest", "reset", "apply"))
_WAITING = "… estimating the job over its micro-batch and sequence length"


class WhatIfScreen(Screen[tuple[Axis, int] | None]):
    """Plots one sweep at a time, with a cursor; returns the setting and the value that the user applies.

    Args:
        sweeps: one for each setting; none: they are being estimated, and ``show_sweeps`` brings them.
        label: the job's name.
    """

    TITLE = "What-if"
    BINDINGS: ClassVar[list[BindingType]] = WHAT_IF_KEYS
    DEFAULT_CSS = """
    WhatIfScreen #title { height: 1; padding: 0 1; text-style: bold; background: $panel; }
    WhatIfScreen #facts { padding: 0 1; text-wrap: wrap; }
    WhatIfScreen WhatIfPlot { margin: 1 1 0 1; }
    WhatIfScreen #legend { padding: 0 1; height: 1; }
    """

    def __init__(self, sweeps: Sequence[Sweep], *, label: str) -> None:
        super().__init__()
        self._sweeps = tuple(sweeps)
        self._label = label
        self._shown = 0
        """Index of the sweep that is plotted."""
        self._cursor: int | None = None
        """The value under the cursor; None: the job's current value."""

    @property
    def sweep(self) -> Sweep:
        """The sweep that is plotted."""
        return self._sweeps[self._shown]

    def compose(self) -> ComposeResult:
        """The figures, the plot, and its legend."""
        yield StaticLines(id="title")
        yield StaticLines(id="facts")
        yield WhatIfPlot(id="plot", ascii_only=is_ascii_only(self))
        yield StaticLines(id="legend")
        yield KeysLine(show_command_palette=False)

    def on_resize(self, _: Resize) -> None:
        """Draw for the new size."""
        self._draw()

    @property
    def is_waiting(self) -> bool:
        """True until there are sweeps."""
        return not self._sweeps

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Without sweeps there is nothing to choose from: those keys are dim."""
        return None if self.is_waiting and action in _NEED_SWEEPS else True

    def show_sweeps(self, sweeps: Sequence[Sweep]) -> None:
        """Plot these sweeps: they are there at last, or the GPUs have changed."""
        self._sweeps = tuple(sweeps)
        self.refresh_bindings()
        if self.query("#title"):  # new sweeps may arrive before the screen is composed, or after it is closed
            self._draw()

    def action_next_setting(self) -> None:
        """Plot the other setting."""
        self._shown = (self._shown + 1) % len(self._sweeps)
        self._cursor = None
        self._draw()

    def action_step(self, by: int) -> None:
        """Move the cursor by this number of values."""
        values = [point.value for point in self.sweep.points]
        at = values.index(self._value) if self._value in values else 0
        self._cursor = values[min(len(values) - 1, max(0, at + by))]
        self._draw()

    def action_largest(self) -> None:
        """Move the cursor to the largest value that fits, or else to the largest tight one."""
        found = self.sweep.largest or self.sweep.largest_tight
        if found is None:
            self.notify(f"No {AXES[self.sweep.axis]} fits.", severity="warning")
            return
        self._cursor = found.value
        self._draw()

    def action_reset(self) -> None:
        """Move the cursor back to the job's current value."""
        self._cursor = None
        self._draw()

    def action_apply(self) -> None:
        """Return the value under the cursor."""
        self.dismiss((self.sweep.axis, self._value))

    @property
    def _value(self) -> int:
        return self.sweep.current_value if self._cursor is None else self._cursor

    def _draw(self) -> None:
        self.query_one("#plot").visible = self.query_one("#legend").visible = not self.is_waiting
        if self.is_waiting:
            self.query_one("#title", StaticLines).show(Content(f"What-if: {self._label}"))
            self.query_one("#facts", StaticLines).show(Content(_WAITING), layout=True)
            return
        sweep = self.sweep
        title = f"What-if: {self._label} with another {AXES[sweep.axis]}"
        self.query_one("#title", StaticLines).show(Content(title))
        self.query_one("#facts", StaticLines).show(Content("\n").join(facts(sweep, self._value)), layout=True)
        self.query_one("#plot", WhatIfPlot).show(sweep, cursor=self._value)
        self.query_one("#legend", StaticLines).show(self._legend())

    def _legend(self) -> Content:
        limit, total, high = ("=", "-", ".") if is_ascii_only(self) else ("━", "╌", "·")
        words = f"{limit} available  {total} the GPU  {high} upper bound"
        marks = [VERDICTS[name] for name in ("fits", "tight", "does_not_fit")]
        return Content.assemble(
            (words, "dim"), *((f"  {mark.letter} {mark.word.lower()}", mark.colour) for mark in marks)
        )


def facts(sweep: Sweep, value: int) -> list[Content]:
    """Return the figures: the value under the cursor, the largest value that fits, and the GPU's memory."""
    lines = []
    point = sweep.at(value)
    if point is not None:
        lines.append(Content.assemble(badge(VERDICTS[point.verdict], point.verdict), f" {point_words(sweep, point)}"))
    largest, tight = sweep.largest, sweep.largest_tight
    name, end = AXES[sweep.axis], sweep.points[-1].value
    sentence = f"no {name} fits" if tight is None else f"tight up to {name} {tight.value:,}; none surely fits"
    if largest is not None:
        fits = f"every {name} up to {end:,} fits" if largest.value == end else f"fits up to {name} {largest.value:,}"
        more = f"; up to {tight.value:,} it is tight" if tight and tight.value > largest.value else ""
        sentence = f"{fits}{more}"
    lines.append(Content(sentence))
    limits = sweep.limits
    if limits.available_bytes is not None and limits.gpu_bytes is not None:
        can = f"{format_gib(limits.available_bytes)} of {format_gib(limits.gpu_bytes)} GiB available"
        lines.append(Content.styled(f"{can} on the GPU with the least available memory", "dim"))
    return lines
