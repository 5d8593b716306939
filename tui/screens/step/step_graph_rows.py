"""Memory over one training step as plain data: stacked components, what is reserved above them, the card's line.

Left to right are the step's allocations in order, which is no time: a long product is one allocation. Pure, and free of
any terminal library.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vramtop.estimator.budget.budget import Budget, ComponentName, Components, PhaseMark

from ...draw.bars import Cell
from ...draw.palette import COMPONENTS, darker

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
"""From the bottom to the top: what stays lies below what comes and goes."""
RESERVED, CARD = "─", "═"
_CARD_COLOUR = "#ef4444"
_DARK = "#0b1220"
_LETTER_SHARE = 0.6
_EIGHTHS = " ▁▂▃▄▅▆▇"
_STEPS = 8
_CARD_IN_SIGHT = 2.0
"""A card that is larger than so many times the job's peak is not drawn: nothing could be seen of the job."""
_Parts = list[tuple[ComponentName, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Moments of a step, in order."""

    positions: tuple[int, ...]
    """Where each moment lies from left to right."""
    end: int
    """The position after the last."""
    levels: tuple[Components, ...]
    device_bytes: tuple[int, ...] | None
    """What NVML would show at each moment: reserved, and what never passes through torch. None: not known."""
    phases: tuple[PhaseMark, ...]
    """Their ``event`` is a position."""

    @property
    def peak(self) -> int:
        """Index of the fullest moment."""
        totals = [level.total_bytes for level in self.levels]
        return totals.index(max(totals))


def step_memory(budget: Budget) -> StepMemory:
    """The traced step; where there is none, each phase of the closed form at its fullest, all equally long."""
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


def step_top_bytes(budget: Budget, card_bytes: int | None) -> int:
    """What the graph's full height stands for: the card, where the job fills enough of it to be seen."""
    need = budget.peak.device_bytes
    if card_bytes is not None and card_bytes <= _CARD_IN_SIGHT * need:
        return round(max(card_bytes, need) * 1.04)
    return round(need * 1.04)


def step_rows(
    step: StepMemory, *, width: int, height: int, top: int, card_bytes: int | None = None, letters_only: bool = False
) -> list[list[Cell]]:
    """Draw the step, the highest row first.

    Each column shows the fullest of its moments. Where two components share a cell, it is split between them.

    Args:
        step: what to draw.
        width: columns.
        height: rows.
        top: bytes that the full height stands for; what is above is cut.
        card_bytes: where the card's line is drawn; left out where it is above the top.
        letters_only: where there is no colour, a cell that two components share has the larger one's letter.
    """
    if width <= 0 or height <= 0:
        return []
    unit = top / (height * _STEPS)
    rows = [[Cell(" ")] * width for _ in range(height)]
    card = None if card_bytes is None or card_bytes > top else min(height - 1, int(card_bytes / unit) // _STEPS)
    for x, moment in enumerate(_columns(step, width)):
        edges = _edges(step.levels[moment], unit)
        for y in range(height):
            rows[height - 1 - y][x] = _cell(edges, y, letters_only=letters_only)
        if step.device_bytes is not None:
            y = min(height - 1, max(0, round(step.device_bytes[moment] / unit) - 1) // _STEPS)
            rows[height - 1 - y][x] = _lined(rows[height - 1 - y][x], RESERVED)
        if card is not None:
            row = rows[height - 1 - card]
            row[x] = Cell(CARD, _CARD_COLOUR, row[x].ground)
    return rows


def axis_rows(step: StepMemory, *, width: int) -> tuple[str, str]:
    """Under the graph: a line with a tick where each phase begins and a sign at the peak; and the phases' names."""
    marks, names, free = ["─"] * width, [" "] * width, 0
    starts = [_column(step, phase.event, width) for phase in step.phases]
    for phase, start, end in zip(step.phases, starts, [*starts[1:], width + 1], strict=True):
        marks[start] = "┬"
        begin = start if end <= width else max(free, min(start, width - len(phase.name)))  # the last one may move left
        name = phase.name[: max(0, end - begin - 1)]
        names[begin : begin + len(name)] = name
        free = begin + len(name) + 1
    marks[_column(step, step.positions[step.peak], width)] = "▲"
    return "".join(marks), "".join(names)


def _column(step: StepMemory, position: int, width: int) -> int:
    first = step.positions[0]
    return min(width - 1, max(0, position - first) * width // max(1, step.end - first))


def _columns(step: StepMemory, width: int) -> Iterator[int]:
    """For each column the index of the fullest moment in it; where there is none, of the last one before it."""
    fullest: dict[int, int] = {}
    for at, position in enumerate(step.positions):
        column = _column(step, position, width)
        if column not in fullest or step.levels[at].total_bytes > step.levels[fullest[column]].total_bytes:
            fullest[column] = at
    shown = 0
    last: Mapping[int, int] = {_column(step, position, width): at for at, position in enumerate(step.positions)}
    for column in range(width):
        yield fullest.get(column, shown)
        shown = last.get(column, shown)


def _edges(level: Components, unit: float) -> _Parts:
    """Where each component ends, from the bottom, in eighths of a row."""
    total, edges = 0, []
    for name in STACK_ORDER:
        total += getattr(level, name)
        edges.append((name, round(total / unit)))
    return edges


def _cell(edges: _Parts, y: int, *, letters_only: bool) -> Cell:
    """The cell of row ``y`` from the bottom."""
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
    """A cell of one component: its letter, or a shade of its colour for it, where colours tell the components apart."""
    mark = COMPONENTS[name]
    return Cell(mark.letter, darker(mark.colour, _LETTER_SHARE) if faint else _DARK, mark.colour)


def _lined(cell: Cell, line: str) -> Cell:
    """The cell with the line of what is reserved through it; a cell that is mostly full keeps its ground."""
    if cell.char in _EIGHTHS:
        return Cell(line, None, cell.ground or (cell.colour if _EIGHTHS.index(cell.char) >= _STEPS // 2 else None))
    return Cell(line, _DARK, cell.ground)
