"""The step screen: memory by component over one training step, and the largest tensors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, TypeVar

import msgspec
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.screen import Screen

from vramtop.estimator.budget import Budget, ComponentName, Components, LargeTensor, PhaseMark, Timeline
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.common.untrusted_files import read_file
from vramtop.estimator.estimation import UNTRACED, why_untraced

from ..background.latest_only_task import JobEstimates, LatestOnlyTask
from ..draw.bars import PAINTED, Cell
from ..draw.labels import legend_line
from ..draw.memory_graph import EIGHTHS
from ..draw.palette import COMPONENTS, Mark, colour_of, component_mark, ink_on, on_colour
from ..draw.text_output import printable
from ..keys import bind
from ..reports.budget_text import line_text, shortened, tensor_rows
from ..widgets.budget_view import peak_line
from ..widgets.cell_rows import AxesGraph
from ..widgets.keys_line import KeysLine
from ..widgets.row_table import StaticLines
from .base import BoardApp, is_ascii_only

# Areas of the step graph as plain data: the label of each component, and lines around areas where there is no colour.
#
# An area is all cells of one component; this module needs no terminal library.


Owners = Sequence[Sequence[ComponentName | None]]
"""The component of each cell, top row first; None: no component, or none that may be labelled there."""


def outline_areas(owners: Owners, *, ascii_only: bool = False) -> list[list[Cell]]:
    """Draw a line wherever two areas meet: below a cell, and at its left."""
    side = "|" if ascii_only else "▏"
    below = [*owners[1:], owners[-1]] if owners else []
    rows = []
    for row, next_row in zip(owners, below, strict=True):
        left = (row[0], *row) if row else ()
        chars = (
            side if owner != before else "_" if owner != under else " "
            for owner, before, under in zip(row, left, next_row, strict=False)
        )
        rows.append([Cell(char) for char in chars])
    return rows


class AreaLabel(msgspec.Struct, frozen=True, kw_only=True):
    """What may be written in the area of a component."""

    texts: tuple[str, ...]
    """The longest first, in characters of one cell."""
    ground: str | None
    """The colour of the area; None: no colour."""


def label_areas(
    rows: Sequence[Sequence[Cell]], owners: Sequence[Owners], labels: Mapping[ComponentName, AreaLabel]
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
    for name, label in labels.items():
        places = [_place(runs.get(name, ()), label.texts) for runs in choices]
        found = max(
            (place for at, place in enumerate(places) if place and (at == 0 or len(place[0]) > 1)),
            key=lambda place: len(place[0]),
            default=None,
        )
        if found is None:
            continue
        text, y, x = found
        ink = label.ground and ink_on(label.ground)
        drawn[y][x : x + len(text)] = [Cell(char, ink, label.ground) for char in text]
    return drawn


_Run = tuple[int, int, int]
"""Row, first column and number of neighbouring cells of one component."""


def _runs(owners: Owners) -> dict[ComponentName, list[_Run]]:
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


# Rows of the step graph as plain data: stacked components, the reserved memory above them, and a line for the GPU.
#
# The horizontal axis is the order of the step's allocations, not time: a long matrix product is one allocation. This
# module needs no terminal library.


STACK_ORDER: tuple[ComponentName, ...] = (
    "context",
    "other_models",
    "weights",
    "optimizer",
    "gradients",
    "inputs",
    "activations",
    "logits",
    "communication",
    "temporary",
)
"""Components from bottom to top: permanent memory lies below memory that comes and goes."""
RESERVED, GPU_TOTAL = "─", "═"
_STEPS = 8
MAX_GPU_TO_PEAK = 2.0
"""A GPU larger than this multiple of the job's peak is not drawn: the job would be a thin line at the bottom."""
HEADROOM = 1.04
"""The top of a graph is this multiple of the most that it shows: the line of the most is not cut off."""
Layer = TypeVar("Layer")


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
    return _traced(line, tuple(size + line.outside_bytes for size in line.reserved_bytes))


def _traced(line: Timeline, device_bytes: tuple[int, ...]) -> StepMemory:
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
    ascii_only: bool = False,
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
        outlined: for terminals without colour: lines separate the areas; a shared cell is of the larger component.
        ascii_only: draw lines with ASCII characters.
    """
    if width <= 0 or height <= 0:
        return []
    unit = top / (height * _STEPS)
    moments = list(_columns(step, width))
    edges = [_edges(step.levels[moment], unit) for moment in moments]
    parts = [[cell_parts(column, y) for column in edges] for y in reversed(range(height))]
    largest = [[max(each, key=lambda part: part[1])[0] for each in row] for row in parts]
    unshared = [[each[0][0] if len(each) == 1 else None for each in row] for row in parts]
    if outlined:
        rows = outline_areas(largest, ascii_only=ascii_only)
    else:
        rows = [[_painted_cell(each, marks) for each in row] for row in parts]
    taken = []
    if step.device_bytes is not None:
        taken = [(_row(round(step.device_bytes[moment] / unit) - 1, height), x) for x, moment in enumerate(moments)]
    for y, x in taken:
        rows[y][x] = _lined(rows[y][x], RESERVED)
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
    return height - 1 - min(height - 1, max(0, eighth) // _STEPS)


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


def _edges(level: Components, unit: float) -> list[tuple[ComponentName, int]]:
    """Return the upper edge of each component, from the bottom, in eighths of a row."""
    totals = accumulate(getattr(level, name) for name in STACK_ORDER)
    return [(name, round(total / unit)) for name, total in zip(STACK_ORDER, totals, strict=True)]


def cell_parts(edges: Sequence[tuple[Layer, int]], y: int) -> list[tuple[Layer | None, int]]:
    """Return the layers in the cells of a row, from the bottom, in eighths; None: empty.

    Args:
        edges: the layers from the bottom, each with its upper edge in eighths of a row.
        y: the row, counted from the bottom.
    """
    floor, below = y * _STEPS, 0
    parts: list[tuple[Layer | None, int]] = []
    for layer, edge in edges:
        low, high = max(below, floor), min(edge, floor + _STEPS)
        if high > low:
            parts.append((layer, high - low))
        below = edge
    empty = _STEPS - sum(size for _, size in parts)
    return [*parts, (None, empty)] if empty else parts


def split_cell(parts: Sequence[tuple[str | None, int]]) -> Cell:
    """Return a cell of (colour, eighths): the lowest at the bottom, and the largest of the others above it."""
    (first, size), rest = parts[0], parts[1:]
    if not rest:
        return Cell(PAINTED, None, first)
    return Cell(EIGHTHS[size], first, max(rest, key=lambda part: part[1])[0])


def _painted_cell(parts: Sequence[tuple[ComponentName | None, int]], marks: Mapping[ComponentName, Mark]) -> Cell:
    return split_cell([(name and marks[name].colour, size) for name, size in parts])


def _lined(cell: Cell, line: str) -> Cell:
    """Draw a line through a cell; a cell that is at least half full keeps its colour as background."""
    half_full = cell.char in EIGHTHS and EIGHTHS.index(cell.char) >= _STEPS // 2
    ground = cell.ground or (cell.colour if half_full else None)
    return Cell(line, ground and ink_on(ground), ground)


# Keys of the step screen.


STEP_KEYS: list[BindingType] = [
    bind("app.back", "dismiss", "Back"),
    bind("dashboard.step", "dismiss", help_text=""),
    bind("step.lines", "lines", "Lines"),
    Binding("up", "mark(-1)", show=False, priority=True),
    Binding("down", "mark(1)", show=False, priority=True),
]


# Widget: memory of one training step by component, with a scale at the left and the phases below.


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
                outlined=self._ascii_only or self.app.no_color,
                ascii_only=self._ascii_only,
            )
            return rows, axis_rows(step, width=max(1, width))

        self.show_graph(top, draw, lines=() if gpu_bytes is None else (gpu_bytes,))


# The largest tensors at a budget's peak, by module, as text.


_MAX_SOURCE_BYTES, _LINES_AROUND = 1 << 22, 3
_TENSOR_TABLE_WIDE_COLUMNS = 100
"""From this width on the component is written in full."""


def tensor_lines(budget: Budget, *, width: int, marked: int = 0, opened: bool = False) -> list[Content]:
    """Return a line per tensor: component, GiB, module (shortened at its start), line of the program, dtype and shape.

    Args:
        budget: its largest tensors.
        width: of a line.
        marked: index of the tensor with the mark, where a program's lines are known.
        opened: below it stand the lines around the one that made it.
    """
    if not budget.largest:
        return []
    share = sum(tensor.bytes for tensor in budget.largest) / max(1, budget.peak.allocated_bytes)
    percent = f"{100 * share:.0f} %"
    head = f"The {len(budget.largest)} largest tensors at the peak, in the {budget.peak.phase}: {percent} of it"
    lines = [Content.styled(head, "bold")]
    for at, tensor in enumerate(budget.largest):
        mark = "" if not tensor.line else "▸ " if at == marked else "  "
        lines.append(Content.assemble(mark, _line(tensor, width - len(mark))))
        if opened and at == marked:
            for line in filter(None, (tensor.own_line, tensor.line)):
                lines += _source_lines(line, width)
    return lines


def _line(tensor: LargeTensor, width: int) -> Content:
    mark = COMPONENTS[tensor.component]
    ((letter, size, module, dtype, shape),) = tensor_rows((tensor,))
    word = f"{mark.word:<16}" if width >= _TENSOR_TABLE_WIDE_COLUMNS else ""
    tail = f"{dtype:<9} {shape}"
    room = max(12, width - 11 - len(word) - 30)
    if not tensor.line:
        return Content.assemble(
            (letter, on_colour(mark.colour)), f" {word}{size:>7}  {shortened(module, room):<{room}}  ", (tail, "dim")
        )
    half = (room - 2) // 2
    places = f"{shortened(line_text(tensor.own_line or tensor.line), half):<{half}}  {shortened(module, half):<{half}}"
    line = Content.assemble((letter, on_colour(mark.colour)), f" {word}{size:>7}  {places}  ", (tail, "dim"))
    return line.truncate(width, ellipsis=True)


def _source_lines(line: str, width: int) -> list[Content]:
    """Return the lines of the program around one of them, or why they cannot be shown."""
    from vramtop.estimator.readers.source.notebooks import source_of_cell  # only where a line is opened

    name, _, number = line.rpartition(":")
    try:
        text = source_of_cell(name)
        if text is None:
            text = read_file(Path(name), _MAX_SOURCE_BYTES).decode(errors="replace").splitlines()
    except InputError as error:
        return [Content.styled(f"    {printable(error.message)}", "dim")]
    except OSError as error:
        return [Content.styled(f"    {printable(name)}: {error.strerror}", "dim")]
    at = int(number) - 1
    first = max(0, at - _LINES_AROUND)
    found = [Content.styled(f"    {printable(name)}", "dim")]
    for index, each in enumerate(text[first : at + _LINES_AROUND + 1], first):
        style = "bold" if index == at else "dim"
        found.append(Content.styled(f"    {index + 1:>5}  {printable(each)}", style).truncate(width, ellipsis=True))
    return found


# The step screen: memory of one training step by component, and the largest tensors at its peak.


_WIDE_COLUMNS = 110
"""From this width on the legend uses the long words."""
TRACING = "Tracing the step. Until then, this shows the closed form's phases, each at its peak."
_NO_TRACE = "This job's step has no trace. This shows the closed form's phases, each at its peak."


class StepScreen(Screen[None]):
    """Draws a budget, and its refined version as soon as there is one.

    Args:
        budget: the budget that is known when the screen opens.
        gpu_bytes: memory of the GPU that the job is compared with; None: not known.
        refine: estimates the same job by tracing it; called off the UI thread if ``budget`` has no timeline. None: the
            opener calls ``show_budget`` or ``show_no_trace``, or there is no refined budget.
        refining: a refined budget is being computed.
    """

    TITLE = "Step"
    BINDINGS: ClassVar[list[BindingType]] = STEP_KEYS
    DEFAULT_CSS = """
    StepScreen #title { height: 1; padding: 0 1; text-style: bold; background: $panel; }
    StepScreen #facts { padding: 0 1; text-wrap: wrap; }
    StepScreen #state { padding: 0 1; text-wrap: wrap; color: $text-warning; display: none; }
    StepScreen #state.-shown { display: block; }
    StepScreen StepGraph { height: 3fr; margin: 0 1; min-height: 4; }
    StepScreen #lines { padding: 0 1; height: 1; }
    StepScreen #letters { padding: 0 1; height: 1; }
    StepScreen #tensors { height: 2fr; min-height: 3; padding: 0 1; scrollbar-size-vertical: 1; }
    """

    def __init__(
        self,
        budget: Budget,
        *,
        gpu_bytes: int | None = None,
        refine: Callable[[], Budget] | None = None,
        refining: bool = False,
    ) -> None:
        super().__init__()
        self._marked, self._opened = 0, False
        self.budget = budget
        """The budget that is drawn."""
        self._gpu_bytes = gpu_bytes
        self._refine = refine if budget.timeline is None else None
        self._state: str | None = TRACING if refining or self._refine else None
        self._refine_task = LatestOnlyTask("step", self.call_later, self.show_budget, self.show_no_trace)

    def compose(self) -> ComposeResult:
        """The peak, the graph, its legend, and the largest tensors."""
        yield StaticLines(id="title")
        yield StaticLines(id="facts")
        yield StaticLines(id="state")
        yield StepGraph(id="graph", ascii_only=is_ascii_only(self))
        yield StaticLines(id="lines")
        yield StaticLines(id="letters")
        with VerticalScroll(id="tensors", can_focus=True):
            yield StaticLines(id="table")
        yield KeysLine()

    def on_mount(self) -> None:
        """Draw the budget, and request the refined one."""
        self.query_one("#tensors").focus()
        self._draw()
        if self._refine is not None:
            self._refine_task.submit(self._refine)

    def on_unmount(self) -> None:
        """Cancel the refined estimate."""
        self._refine_task.cancel()

    def on_resize(self, _: Resize) -> None:
        """Draw for the new width."""
        self._draw()

    def show_budget(self, budget: Budget, *, refining: bool = False) -> None:
        """Draw this budget; ``refining``: a refined one is being computed."""
        self.budget = budget
        self._state = TRACING if refining and budget.timeline is None else None
        self._draw()

    def show_no_trace(self, sentence: str) -> None:
        """Say why there is no refined budget."""
        self._state = f"{_NO_TRACE} {sentence}"
        self._draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Offer the lines of a rehearsed program alone."""
        return action != "lines" or self.budget.rehearsal is not None

    def action_mark(self, by: int) -> None:
        """Mark another tensor of a rehearsed program, or scroll a traced step's."""
        tensors, count = self.query_one("#tensors", VerticalScroll), len(self.budget.largest)
        if self.budget.rehearsal is None or not count:
            tensors.scroll_relative(y=by, animate=False)
            return
        self._marked = min(max(0, self._marked + by), count - 1)
        self._draw()
        self.call_after_refresh(tensors.scroll_to, y=self._marked - 1, animate=False)

    def action_lines(self) -> None:
        """Show the lines around the one that made the marked tensor, or hide them."""
        self._opened = not self._opened and self.budget.rehearsal is not None
        self._draw()

    def _draw(self) -> None:
        if not self.is_mounted or self.size.width == 0:
            return
        budget, width = self.budget, self.size.width - 2
        state = self._state or (None if budget.timeline else _why_untraced(budget))
        self.query_one("#title", StaticLines).show(Content(f"One training step: {printable(budget.job.label)}"))
        self.query_one("#facts", StaticLines).show(peak_line(budget), layout=True)
        box = self.query_one("#state", StaticLines)
        box.set_class(state is not None, "-shown")
        box.show(Content(state or ""), layout=True)
        self.query_one("#graph", StepGraph).show(budget, gpu_bytes=self._gpu_bytes)
        self.query_one("#lines", StaticLines).show(
            Content.styled(self._line_words(), "dim").truncate(width, ellipsis=True)
        )
        self.query_one("#letters", StaticLines).show(legend_line(width, bars=False, budget=budget))
        table = tensor_lines(budget, width=width - 1, marked=self._marked, opened=self._opened)
        self.query_one("#table", StaticLines).show(Content("\n").join(table), layout=True)
        self.query_one("#tensors").display = bool(table)

    def _line_words(self) -> str:
        """Return the legend of the graph's lines and of its horizontal axis."""
        budget, wide = self.budget, self.size.width >= _WIDE_COLUMNS
        total = self._gpu_bytes
        words = ["▲ peak"]
        if budget.timeline:
            cache = "with the allocator's cache" if wide else "with cache"
            device = format_gib(max(budget.timeline.reserved_bytes) + budget.timeline.outside_bytes)
            words.append(f"{RESERVED} {cache}, to {device} GiB")
        if total is not None:
            above = " (above)" if total > step_top_bytes(budget, total) else ""
            words.append(f"{GPU_TOTAL} GPU {format_gib(total)}{above}")
        order = "allocations in order" if wide else "in order"
        words.append(f"→ {order if budget.timeline else 'phases'}, not time")
        return "  ".join(words)


def _why_untraced(budget: Budget) -> str:
    """Return why the step was not traced, from the budget's assumptions if they say so."""
    reason = why_untraced(budget)
    return _NO_TRACE if reason is None else f"{_NO_TRACE} {UNTRACED}{reason}."


# A step screen that follows the estimates of the screen that opened it.


class LiveStepScreen:
    """Opens the step screen, and passes on each new budget while it is open.

    Args:
        opener: the screen from which it is opened.
    """

    def __init__(self, opener: Screen[None]) -> None:
        self._opener = opener
        self._screen: StepScreen | None = None

    def open(self, budget: Budget, estimates: JobEstimates, *, gpu_bytes: int | None) -> None:
        """Open the screen on a budget.

        Args:
            budget: the latest budget of the job.
            estimates: the estimates of that job.
            gpu_bytes: memory of the GPU; None if it is not known.
        """
        self._screen = StepScreen(budget, gpu_bytes=gpu_bytes, refining=estimates.may_refine(budget))
        if estimates.not_refined:
            self._screen.show_no_trace(estimates.not_refined)
        self._opener.app.push_screen(self._screen, self._close)

    def update(self, budget: Budget, estimates: JobEstimates) -> None:
        """Draw this budget, if the screen is open."""
        if self._screen is not None:
            self._screen.show_budget(budget, refining=estimates.may_refine(budget))

    def show_not_refined(self, reason: str) -> None:
        """Say why there is no refined budget, if the screen is open."""
        if self._screen is not None:
            self._screen.show_no_trace(reason)

    def _close(self, _: None) -> None:
        self._screen = None


# Opens the step screen on the job under the dashboard's cursor, or on another job with a budget.


def open_step(app: BoardApp) -> None:
    """Draw the step of the job under the cursor, of another running job, or of a pending one."""
    board, selected = app.board, app.selected_process
    rows = [*([selected] if selected else []), *(board.processes if board else ())]
    running = next((row for row in rows if row.budget), None)
    pending = next((row.budget for row in board.pending if row.budget), None) if board else None
    if running and running.budget:
        show_step(app, running.budget, running.gpu.total_bytes)
    elif pending:
        show_step(app, pending, app.max_gpu_bytes)
    else:
        app.notify("No running or pending job has a budget, so there is no step to show.", severity="warning")


def show_step(app: BoardApp, budget: Budget, gpu_bytes: int | None) -> None:
    """Draw the step of a budget; a traced budget then replaces it on the dashboard too."""
    estimate = app.refine

    def refine() -> Budget:
        assert estimate is not None  # noqa: S101 - passed on only if there is one
        refined = estimate(budget.job)
        app.watchlist.set_budget(refined)
        return refined

    app.push_once(StepScreen(budget, gpu_bytes=gpu_bytes, refine=refine if estimate else None))
