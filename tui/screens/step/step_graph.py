"""The step graph: stacked components, the reserved memory above them, a scale at the left and the phases below.

The horizontal axis is the order of the step's allocations, not time: a long matrix product is one allocation.
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate

import msgspec

from vramtop.estimator.budget import Budget, ComponentName, Components, PhaseMark
from vramtop.estimator.common.sizes import format_gib

from ...draw.bars import Cell
from ...draw.memory_graph import EIGHTHS, GPU_TOTAL, MAX_GPU_TO_PEAK, STACK_ORDER, STEPS, cell_parts, split_cell
from ...draw.palette import COMPONENTS, Mark, colour_of, component_mark, ink_on
from ...widgets.cell_rows import AxesGraph
from ..base import is_ascii_only
from .areas import AreaLabel, label_areas, outline_areas

RESERVED = "─"
HEADROOM = 1.04
"""The top of a graph is this multiple of the most that it shows: the line of the most is not cut off."""


class StepMemory(msgspec.Struct, frozen=True, kw_only=True):
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
    device_bytes = tuple(size + line.outside_bytes for size in line.reserved_bytes)
    end = line.events[-1] + 1
    return StepMemory(positions=line.events, end=end, levels=line.levels, device_bytes=device_bytes, phases=line.phases)


def step_top_bytes(budget: Budget, gpu_bytes: int | None) -> int:
    """Return the bytes at the top of the graph: those of the GPU if the job fills enough of it, else the peak."""
    need = budget.peak.device_bytes
    if gpu_bytes is not None and gpu_bytes <= MAX_GPU_TO_PEAK * need:
        return round(max(gpu_bytes, need) * HEADROOM)
    return round(need * HEADROOM)


def step_rows(
    step: StepMemory,
    *,
    width: int,
    height: int,
    top: int,
    gpu_bytes: int | None = None,
    marks: Mapping[ComponentName, Mark] = COMPONENTS,
    outlined: bool = False,
) -> list[list[Cell]]:
    """Draw the step as one area of colour for each component, top row first.

    Each column shows the moment with the most memory among its moments. A cell shared by two components is split. An
    area is labelled with its component and the most GiB that it holds during the step, as far as there is room.

    Args:
        step: the memory to draw.
        width: columns.
        height: rows.
        top: bytes at the top of the graph; anything above is cut off.
        gpu_bytes: memory of the GPU, drawn as a line unless it is above the top.
        marks: the words and colours of the components.
        outlined: without colours or block characters: lines separate the areas; a shared cell is of the larger one.
    """
    if width <= 0 or height <= 0:
        return []
    unit = top / (height * STEPS)
    moments = list(_columns(step, width))
    totals = (accumulate(getattr(step.levels[moment], name) for name in STACK_ORDER) for moment in moments)
    edges = [  # the upper edge of each component, from the bottom, in eighths of a row
        [(name, round(total / unit)) for name, total in zip(STACK_ORDER, each, strict=True)] for each in totals
    ]
    parts = [[cell_parts(column, y) for column in edges] for y in reversed(range(height))]
    largest = [[max(each, key=lambda part: part[1])[0] for each in row] for row in parts]
    unshared = [[each[0][0] if len(each) == 1 else None for each in row] for row in parts]
    if outlined:
        rows = outline_areas(largest)
    else:
        rows = [
            [split_cell([(name and marks[name].colour, size) for name, size in each]) for each in row] for row in parts
        ]
    taken = []
    if step.device_bytes is not None:
        taken = [(_row(round(step.device_bytes[moment] / unit) - 1, height), x) for x, moment in enumerate(moments)]
    for y, x in taken:
        cell = rows[y][x]
        half_full = cell.char in EIGHTHS and EIGHTHS.index(cell.char) >= STEPS // 2
        ground = cell.ground or (cell.colour if half_full else None)  # it keeps its colour behind the line
        rows[y][x] = Cell(RESERVED, ground and ink_on(ground), ground)
    if gpu_bytes is not None and gpu_bytes <= top:
        y = _row(int(gpu_bytes / unit), height)
        rows[y] = [Cell(GPU_TOTAL, colour_of("bad"), cell.ground) for cell in rows[y]]
        taken += [(y, x) for x in range(width)]
    for owners in (unshared, largest):
        for y, x in taken:
            owners[y][x] = None
    return label_areas(
        rows, (largest,) if outlined else (unshared, largest), _labels(step, marks, coloured=not outlined)
    )


def _row(eighth: int, height: int) -> int:
    """Return the row, from the top, of a line that is this many eighths of a row above the bottom."""
    return height - 1 - min(height - 1, max(0, eighth) // STEPS)


def _labels(step: StepMemory, marks: Mapping[ComponentName, Mark], *, coloured: bool) -> dict[ComponentName, AreaLabel]:
    """Return what may be written in the area of each component."""
    labels = {}
    for name, mark in marks.items():
        most = format_gib(max(getattr(level, name) for level in step.levels))
        texts = (f"{mark.word} {most}", f"{mark.short_word} {most}", mark.short_word, mark.letter)
        labels[name] = AreaLabel(texts=texts, ground=mark.colour if coloured else None)
    return labels


def axis_rows(step: StepMemory, *, width: int) -> tuple[str, str]:
    """Return the two rows below the graph: ticks at phase starts with a mark at the peak, and the phase names."""
    marks, names, free = ["─"] * width, [" "] * width, 0
    if not step.phases:
        return "".join(marks), "".join(names)
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


class StepGraph(AxesGraph):
    """Draws the training step of a budget."""

    DEFAULT_CSS = "StepGraph { height: 1fr; min-height: 5; }"

    def show(self, budget: Budget, *, gpu_bytes: int | None) -> None:
        """Draw a budget.

        Args:
            budget: one with a timeline, or with phases only.
            gpu_bytes: memory of the GPU, drawn as a line; None: no line.
        """
        step, top = step_memory(budget), step_top_bytes(budget, gpu_bytes)
        marks = {name: component_mark(name, budget) for name in COMPONENTS}

        def draw(width: int, height: int) -> tuple[list[list[Cell]], tuple[str, str]]:
            rows = step_rows(
                step,
                width=width,
                height=height,
                top=top,
                gpu_bytes=gpu_bytes,
                marks=marks,
                outlined=self.app.no_color or is_ascii_only(self),
            )
            return rows, axis_rows(step, width=max(1, width))

        self.show_graph(top, draw, lines=() if gpu_bytes is None else (gpu_bytes,))
