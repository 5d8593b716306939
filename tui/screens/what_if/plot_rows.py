"""Rows of the what-if plot as plain data: memory over one setting, with the limits of the GPU as lines.

This module needs no terminal library.
"""

from vramtop.monitor.board.fit import Verdict

from ...draw import EIGHTHS, VERDICTS, Cell, colour_of, ink_on, level_of
from .sweep import GpuLimits, Sweep, SweepPoint

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
    need = max((point.high_bytes for point in sweep.points), default=0)
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
