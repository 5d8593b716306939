"""Rows of the step graph as plain data: stacked components, the reserved memory above them, and a line for the GPU.

The horizontal axis is the order of the step's allocations, not time: a long matrix product is one allocation. This
module needs no terminal library.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vramtop.estimator.budget import Budget, ComponentName, Components, PhaseMark

from ...draw import BAD, COMPONENTS, Cell, darker, ink_on

STACK_ORDER: tuple[ComponentName, ...] = (
    "context",
    "weights",
    "optimizer",
    "gradients",
    "activations",
    "logits",
    "communication",
    "temporary",
)
"""Components from bottom to top: permanent memory lies below memory that comes and goes."""
RESERVED, GPU_TOTAL = "─", "═"
GPU_TOTAL_COLOUR = BAD
_LETTER_SHARE = 0.6
_EIGHTHS = " ▁▂▃▄▅▆▇"
_STEPS = 8
MAX_GPU_TO_PEAK = 2.0
"""A GPU larger than this multiple of the job's peak is not drawn: the job would be a thin line at the bottom."""
_Parts = list[tuple[ComponentName, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Memory at each moment of a step, in order."""

    positions: tuple[int, ...]
    """Horizontal position of each moment."""
    end: int
    """Position after the last moment."""
    levels: tuple[Components, ...]
    device_bytes: tuple[int, ...] | None
    """Memory that NVML would report at each moment: reserved by torch, plus memory outside torch. None: not known."""
    phases: tuple[PhaseMark, ...]
    """Start of each phase; ``event`` is a position."""

    @property
    def peak(self) -> int:
        """Index of the moment with the most memory."""
        totals = [level.total_bytes for level in self.levels]
        return totals.index(max(totals))


def step_memory(budget: Budget) -> StepMemory:
    """Return the traced step; without a trace, the closed form's phases at their peaks, all equally long."""
    line = budget.timeline
    if line is None:
        phases = [phase for phase in budget.phases if phase.name != "loading"] or list(budget.phases)
        return StepMemory(
            positions=tuple(range(len(phases))),
            end=len(phases),
            levels=tuple(phase.components for phase in phases),
            device_bytes=None,
            phases=tuple(PhaseMark(name=phase.name, event=at) for at, phase in enumerate(phases)),
        )
    return StepMemory(
        positions=line.events,
        end=line.events[-1] + 1,
        levels=line.levels,
        device_bytes=tuple(size + line.outside_bytes for size in line.reserved_bytes),
        phases=line.phases,
    )


def step_top_bytes(budget: Budget, gpu_bytes: int | None) -> int:
    """Return the bytes at the top of the graph: those of the GPU if the job fills enough of it, else the peak."""
    need = budget.peak.device_bytes
    if gpu_bytes is not None and gpu_bytes <= MAX_GPU_TO_PEAK * need:
        return round(max(gpu_bytes, need) * 1.04)
    return round(need * 1.04)


def step_rows(
    step: StepMemory, *, width: int, height: int, top: int, gpu_bytes: int | None = None, letters_only: bool = False
) -> list[list[Cell]]:
    """Draw the step, top row first.

    Each column shows the moment with the most memory among its moments. A cell shared by two components is split.

    Args:
        step: the memory to draw.
        width: columns.
        height: rows.
        top: bytes at the top of the graph; anything above is cut off.
        gpu_bytes: memory of the GPU, drawn as a line unless it is above the top.
        letters_only: for terminals without colour: a shared cell shows the letter of the larger component.
    """
    if width <= 0 or height <= 0:
        return []
    unit = top / (height * _STEPS)
    rows = [[Cell(" ")] * width for _ in range(height)]
    gpu_row = None if gpu_bytes is None or gpu_bytes > top else min(height - 1, int(gpu_bytes / unit) // _STEPS)
    for x, moment in enumerate(_columns(step, width)):
        edges = _edges(step.levels[moment], unit)
        for y in range(height):
            rows[height - 1 - y][x] = _cell(edges, y, letters_only=letters_only)
        if step.device_bytes is not None:
            y = min(height - 1, max(0, round(step.device_bytes[moment] / unit) - 1) // _STEPS)
            rows[height - 1 - y][x] = _lined(rows[height - 1 - y][x], RESERVED)
        if gpu_row is not None:
            row = rows[height - 1 - gpu_row]
            row[x] = Cell(GPU_TOTAL, GPU_TOTAL_COLOUR, row[x].ground)
    return rows


def axis_rows(step: StepMemory, *, width: int) -> tuple[str, str]:
    """Return the two rows below the graph: ticks at phase starts with a mark at the peak, and the phase names."""
    marks, names, free = ["─"] * width, [" "] * width, 0
    starts = [_column(step, phase.event, width) for phase in step.phases]
    for phase, start, end in zip(step.phases, starts, [*starts[1:], width + 1], strict=True):
        marks[start] = "┬"
        name_start = (
            start if end <= width else max(free, min(start, width - len(phase.name)))
        )  # the last one may move left
        name = phase.name[: max(0, end - name_start - 1)]
        names[name_start : name_start + len(name)] = name
        free = name_start + len(name) + 1
    marks[_column(step, step.positions[step.peak], width)] = "▲"
    return "".join(marks), "".join(names)


def _column(step: StepMemory, position: int, width: int) -> int:
    first = step.positions[0]
    return min(width - 1, max(0, position - first) * width // max(1, step.end - first))


def _columns(step: StepMemory, width: int) -> Iterator[int]:
    """Yield, per column, the index of its moment with the most memory; for an empty column, the last one before it."""
    highest: dict[int, int] = {}
    for at, position in enumerate(step.positions):
        column = _column(step, position, width)
        if column not in highest or step.levels[at].total_bytes > step.levels[highest[column]].total_bytes:
            highest[column] = at
    shown = 0
    last: Mapping[int, int] = {_column(step, position, width): at for at, position in enumerate(step.positions)}
    for column in range(width):
        yield highest.get(column, shown)
        shown = last.get(column, shown)


def _edges(level: Components, unit: float) -> _Parts:
    """Return the upper edge of each component, from the bottom, in eighths of a row."""
    total, edges = 0, []
    for name in STACK_ORDER:
        total += getattr(level, name)
        edges.append((name, round(total / unit)))
    return edges


def _cell(edges: _Parts, y: int, *, letters_only: bool) -> Cell:
    """Return the cell in row ``y``, counted from the bottom."""
    floor, below = y * _STEPS, 0
    parts: list[tuple[ComponentName | None, int]] = []
    for name, edge in edges:
        low, high = max(below, floor), min(edge, floor + _STEPS)
        if high > low:
            parts.append((name, high - low))
        below = edge
    empty = _STEPS - sum(size for _, size in parts)
    if empty:
        parts.append((None, empty))
    first, size = parts[0]
    if letters_only or size == _STEPS:
        most = max(parts, key=lambda part: part[1])[0]
        return Cell(" ") if most is None else _full(most, faint=not letters_only)
    rest = max(parts[1:], key=lambda part: part[1])[0]
    ground = None if rest is None else COMPONENTS[rest].colour
    return Cell(_EIGHTHS[size], None if first is None else COMPONENTS[first].colour, ground)


def _full(name: ComponentName, *, faint: bool) -> Cell:
    """Return a cell filled by one component: its letter on its colour; ``faint``: in a shade of that colour."""
    mark = COMPONENTS[name]
    return Cell(mark.letter, darker(mark.colour, _LETTER_SHARE) if faint else ink_on(mark.colour), mark.colour)


def _lined(cell: Cell, line: str) -> Cell:
    """Draw a line through a cell; a cell that is at least half full keeps its colour as background."""
    if cell.char in _EIGHTHS:
        return Cell(line, None, cell.ground or (cell.colour if _EIGHTHS.index(cell.char) >= _STEPS // 2 else None))
    return Cell(line, cell.ground and ink_on(cell.ground), cell.ground)
