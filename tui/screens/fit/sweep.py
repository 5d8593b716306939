"""What a job would take if one setting were larger or smaller: a sweep with a quick estimate, drawn against the card.

Pure, and free of any terminal library.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file import with_changes
from vramtop.monitor.fit.fit_result import Verdict

from ...draw.bars import Cell
from ...draw.memory_graph import EIGHTHS, level_of
from ...draw.palette import VERDICTS

Axis = Literal["training.micro_batch", "training.sequence_length"]
AXES: dict[Axis, str] = {"training.micro_batch": "micro-batch", "training.sequence_length": "sequence length"}
_GRAIN: dict[Axis, int] = {"training.micro_batch": 1, "training.sequence_length": 64}
_LEAST: dict[Axis, int] = {"training.micro_batch": 4, "training.sequence_length": 1024}
"""The plot goes at least so far, and beyond the job's own value: a sweep of two values shows nothing."""
_MOST: dict[Axis, int] = {"training.micro_batch": 4096, "training.sequence_length": 1 << 21}
_BEYOND = 1.15
"""So far beyond the limit the plot goes, to show where it is crossed."""
_ASCII_FILL: dict[Verdict, str] = {"fits": "+", "tight": "!", "does_not_fit": "x", "unknown": "?"}
_LIMIT, _CARD = "━", "╌"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """What the job takes with one value."""

    value: int
    device_bytes: int
    low_bytes: int
    high_bytes: int
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimits:
    """What the card gives."""

    available_bytes: int | None = None
    """Free and not spoken for, on the fullest GPU that the job would go to."""
    card_bytes: int | None = None
    """All that this card has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Points by growing value."""

    axis: Axis
    present: int
    points: tuple[SweepPoint, ...]
    limits: GpuLimits

    @property
    def largest(self) -> SweepPoint | None:
        """The last that fits with its upper bound, where all before it do."""
        return self._last(("fits",))

    @property
    def largest_tight(self) -> SweepPoint | None:
        """The last whose expected peak fits."""
        return self._last(("fits", "tight"))

    def at(self, value: int) -> SweepPoint | None:
        """The point of a value; of those that were not swept, the one before it."""
        return next((point for point in reversed(self.points) if point.value <= value), None)

    def _last(self, verdicts: tuple[Verdict, ...]) -> SweepPoint | None:
        last = None
        for point in self.points:
            if point.verdict not in verdicts:
                break
            last = point
        return last


def sweep_setting(
    job: Job,
    axis: Axis,
    estimate: Callable[[Job], Budget],
    judge: Callable[[Budget], Verdict],
    limits: GpuLimits,
    *,
    max_positions: int | None = None,
    points: int = 96,
) -> Sweep:
    """Estimate the job with so many values of one setting, from the smallest to beyond what fits.

    Args:
        job: as it is.
        axis: the setting.
        estimate: a quick one; a value that it refuses is left out.
        judge: whether a budget fits.
        limits: what to go beyond.
        max_positions: the longest sequence that the model was made for: no plot goes further, but for the job's own.
        points: how many values at most.
    """
    present: int = getattr(job.training, axis.partition(".")[2])
    grain = _GRAIN[axis]

    def need(value: int) -> Budget | None:
        try:
            return estimate(with_changes(job, {axis: value}))
        except VramtopError:
            return None

    most = _MOST[axis]
    if axis == "training.sequence_length" and max_positions:
        most = max(min(most, max_positions), present)
    end = _end(need, limits, least=min(most, max(_LEAST[axis], present + -(-present // 4))), most=most)
    step = max(grain, -(-end // points // grain) * grain)
    values = sorted({grain, present, *range(step, end + 1, step)})
    found = ((value, need(value)) for value in values)
    return Sweep(
        axis=axis,
        present=present,
        points=tuple(_point(value, budget, judge) for value, budget in found if budget is not None),
        limits=limits,
    )


def what_if_rows(
    swept: Sweep, *, width: int, height: int, top: int, cursor: int | None = None, ascii_only: bool = False
) -> list[list[Cell]]:
    """Draw the need over the values, the highest row first; the limits lie as lines behind and before it.

    Each column shows the last value in its stretch. What may be taken beyond the expected peak is a dot at its height.

    Args:
        swept: what to draw.
        width: columns.
        height: rows.
        top: bytes that the full height stands for; what is above is cut.
        cursor: a value whose column is marked.
        ascii_only: with ASCII characters; the fill then says the verdict.
    """
    if width <= 0 or height <= 0 or not swept.points:
        return []
    steps = len(EIGHTHS) - 1
    rows = [[Cell(" ")] * width for _ in range(height)]
    lines = _lines(swept.limits, height, top, ascii_only=ascii_only)
    marked = None if cursor is None else column_of(swept, cursor, width)
    for x in range(width):
        point = _point_of(swept, x, width)
        mark = VERDICTS[point.verdict]
        level, high = level_of(point.device_bytes, height * steps, top), level_of(point.high_bytes, height, top)
        for y in range(height):
            fill = min(steps, max(0, level - y * steps))
            char = EIGHTHS[fill] if not ascii_only else (_ASCII_FILL[point.verdict] if fill * 2 >= steps else " ")
            cell = Cell(char, mark.colour if char != " " else None)
            if char == " " and y == high - 1:
                cell = Cell("." if ascii_only else "·", mark.colour)
            if y in lines:
                sign, colour = lines[y]
                full = not ascii_only and fill == steps
                cell = Cell(sign, "#0b1220" if full else colour, mark.colour if full else None)
            if x == marked and char == " " and y not in lines:
                cell = Cell("|" if ascii_only else "┊")
            rows[height - 1 - y][x] = cell
    return rows


def axis_rows(swept: Sweep, *, width: int, cursor: int | None = None, ascii_only: bool = False) -> tuple[str, str]:
    """Under the plot: a line with the value as it is (and the cursor) marked, and the values of a few columns."""
    line, tick, here, there = ("-", "+", "^", "*") if ascii_only else ("─", "┬", "▲", "◆")
    marks, names = [line] * width, [" "] * width
    if not swept.points or width <= 0:
        return "", ""
    first = column_of(swept, swept.present, width)
    words = [(first, f"now {swept.present:,}")]
    if cursor is not None and cursor != swept.present:
        words.insert(0, (column_of(swept, cursor, width), f"{cursor:,}"))
    columns = {_point_of(swept, at, width).value: at for at in reversed((0, *range(16, width - 8, 16), width - 1))}
    words += [(at, f"{value:,}") for value, at in columns.items() if value not in (swept.present, cursor)]
    for at, word in words:
        begin = max(0, min(at, width - len(word)))
        around = names[max(0, begin - 1) : begin + len(word) + 1]
        if all(char == " " for char in around):
            names[begin : begin + len(word)] = word
            marks[at] = tick
    marks[first] = here
    if cursor is not None and cursor != swept.present:
        marks[column_of(swept, cursor, width)] = there
    return "".join(marks), "".join(names).rstrip()


def plot_top(swept: Sweep) -> int:
    """What the plot's full height stands for: the largest need, and the limits where they are near."""
    need = max((point.high_bytes for point in swept.points), default=0)
    lines = [swept.limits.available_bytes or 0, swept.limits.card_bytes or 0]
    return max(1, round(max([need, *(line for line in lines if line <= 2 * need)]) * 1.04))


def column_of(swept: Sweep, value: int, width: int) -> int:
    """The column in whose stretch a value lies."""
    end = swept.points[-1].value
    return min(width - 1, max(0, -(-value * width // end) - 1))


def point_words(swept: Sweep, point: SweepPoint) -> str:
    """A point as a sentence's part: ``micro-batch 8: 61.2 GiB (58.0 to 66.1)``."""
    low, high = format_gib(point.low_bytes), format_gib(point.high_bytes)
    return f"{AXES[swept.axis]} {point.value:,}: {format_gib(point.device_bytes)} GiB ({low} to {high})"


def _point_of(swept: Sweep, column: int, width: int) -> SweepPoint:
    """The last point in a column's stretch; of a stretch without any, the one before it."""
    return swept.at((column + 1) * swept.points[-1].value // width) or swept.points[0]


def _end(need: Callable[[int], Budget | None], limits: GpuLimits, *, least: int, most: int) -> int:
    """Where to stop: beyond what can be had, by doubling and then by the straight line between."""
    limit = max(limits.available_bytes or 0, limits.card_bytes or 0) * _BEYOND
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


def _point(value: int, budget: Budget, judge: Callable[[Budget], Verdict]) -> SweepPoint:
    peak = budget.peak
    return SweepPoint(
        value=value,
        device_bytes=peak.device_bytes,
        low_bytes=peak.low_bytes,
        high_bytes=peak.high_bytes,
        verdict=judge(budget),
    )


def _lines(limits: GpuLimits, height: int, top: int, *, ascii_only: bool) -> dict[int, tuple[str, str]]:
    """The rows of the limits, from the bottom, with the sign and the colour of each; what is available comes first."""
    found: dict[int, tuple[str, str]] = {}
    signs: Sequence[tuple[int | None, str, str]] = (
        (limits.card_bytes, "-" if ascii_only else _CARD, "#788497"),
        (limits.available_bytes, "=" if ascii_only else _LIMIT, "#ef4444"),
    )
    for size, sign, colour in signs:
        if size is not None and size <= top:
            found[min(height - 1, size * height // top)] = (sign, colour)
    return found
