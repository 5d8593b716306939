"""The step graph: stacked, labelled components, the reserved memory above, a scale at the left and the phases below.

The horizontal axis is the order of the step's allocations, not time: a long matrix product is one allocation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import msgspec

from vramtop.estimator.budget import Budget, ComponentName, Components, PhaseMark
from vramtop.estimator.common.sizes import format_gib

from ...draw.bars import Cell, inked
from ...draw.memory_graph import EIGHTHS, GPU_TOTAL, MAX_GPU_TO_PEAK, STACK_ORDER, STEPS, cell_parts, split_cell
from ...draw.palette import COMPONENTS, Mark, colour_of, component_mark
from ...widgets.cell_rows import AxesGraph
from ..base import is_ascii_only

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
        rows = _outline_areas(largest)
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
        rows[y][x] = inked(RESERVED, ground)
    if gpu_bytes is not None and gpu_bytes <= top:
        y = _row(int(gpu_bytes / unit), height)
        rows[y] = [Cell(GPU_TOTAL, colour_of("bad"), cell.ground) for cell in rows[y]]
        taken += [(y, x) for x in range(width)]
    for owners in (unshared, largest):
        for y, x in taken:
            owners[y][x] = None
    return _label_areas(
        rows, (largest,) if outlined else (unshared, largest), _labels(step, marks, coloured=not outlined)
    )


def _row(eighth: int, height: int) -> int:
    """Return the row, from the top, of a line that is this many eighths of a row above the bottom."""
    return height - 1 - min(height - 1, max(0, eighth) // STEPS)


def _labels(
    step: StepMemory, marks: Mapping[ComponentName, Mark], *, coloured: bool
) -> dict[ComponentName, _AreaLabel]:
    """Return what may be written in the area of each component."""
    labels: dict[ComponentName, _AreaLabel] = {}
    for name, mark in marks.items():
        most = format_gib(max(getattr(level, name) for level in step.levels))
        texts = (f"{mark.word} {most}", f"{mark.short_word} {most}", mark.short_word, mark.letter)
        labels[name] = texts, mark.colour if coloured else None
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


_Owners = Sequence[Sequence[ComponentName | None]]
"""The component of each cell, top row first; None: no component, or none that may be labelled there."""


def _outline_areas(owners: _Owners) -> list[list[Cell]]:
    """Draw a line wherever two areas meet: below a cell, and at its left."""
    below = [*owners[1:], owners[-1]] if owners else []
    rows = []
    for row, next_row in zip(owners, below, strict=True):
        left = (row[0], *row) if row else ()
        chars = (
            "▏" if owner != before else "_" if owner != under else " "
            for owner, before, under in zip(row, left, next_row, strict=False)
        )
        rows.append([Cell(char) for char in chars])
    return rows


_AreaLabel = tuple[Sequence[str], str | None]
"""What may be written in the area of a component, the longest first, and the colour of the area; None: no colour."""


def _label_areas(
    rows: Sequence[Sequence[Cell]], owners: Sequence[_Owners], labels: Mapping[ComponentName, _AreaLabel]
) -> list[list[Cell]]:
    """Write one label in each area: the first of its texts that has room in some row, near the middle of the area.

    Args:
        rows: the drawn cells.
        owners: whose cells they are, of the same size: first the cells that are preferred, then others that also serve
            for a word.
        labels: of each component.
    """
    drawn = [list(row) for row in rows]
    choices = [_runs(each) for each in owners]
    for name, (texts, area) in labels.items():
        places = [_place(runs.get(name, ()), texts) for runs in choices]
        found = max(
            (place for at, place in enumerate(places) if place and (at == 0 or len(place[0]) > 1)),
            key=lambda place: len(place[0]),
            default=None,
        )
        if found is None:
            continue
        text, y, x = found
        drawn[y][x : x + len(text)] = [inked(char, area) for char in text]
    return drawn


_Run = tuple[int, int, int]
"""Row, first column and number of neighbouring cells of one component."""


def _runs(owners: _Owners) -> dict[ComponentName, list[_Run]]:
    found: dict[ComponentName, list[_Run]] = {}
    for y, row in enumerate(owners):
        start = 0
        for x in range(1, len(row) + 1):
            if x < len(row) and row[x] == row[start]:
                continue
            name = row[start]
            if name is not None:
                found.setdefault(name, []).append((y, start, x - start))
            start = x
    return found


def _place(runs: Sequence[_Run], labels: Sequence[str]) -> tuple[str, int, int] | None:
    """Return the label to write, with its row and column; None if no label has room."""
    if not runs:
        return None
    middle = sum(y * size for y, _, size in runs) / sum(size for *_, size in runs)
    for label in labels:
        margin = 2 if len(label) > 1 else 0
        roomy = [run for run in runs if run[2] >= len(label) + margin]
        if roomy:
            y, x, size = min(roomy, key=lambda run: (abs(run[0] - middle), -run[2]))
            return label, y, x + (size - len(label)) // 2
    return None
