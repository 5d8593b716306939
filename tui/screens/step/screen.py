"""The step screen: memory of one training step by component, and the largest tensors at its peak."""

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.estimation import UNTRACED, why_untraced

from ...background.job_estimates import JobEstimates
from ...background.latest_only_task import LatestOnlyTask
from ...draw.gpu_bars import legend_line
from ...draw.memory_graph import GPU_TOTAL
from ...draw.palette import COMPONENTS, on_colour
from ...draw.text_output import printable
from ...keys import bind
from ...reports.budget_text import line_text, shortened, tensor_rows
from ...widgets.budget_view import peak_line
from ...widgets.content_lines import StaticLines, TitleLine
from ...widgets.keys_line import KeysLine
from ..base import BoardApp, DrawnScreen
from .step_graph import RESERVED, StepGraph, step_top_bytes

STEP_KEYS: list[BindingType] = [
    bind("app.back", "dismiss", "Back"),
    bind("dashboard.step", "dismiss", help_text=""),
]
_WIDE_COLUMNS = 110
"""From this width on the legend uses the long words."""
TRACING = "Tracing the step. Until then, this shows the closed form's phases, each at its peak."
_NO_TRACE = "This job's step has no trace. This shows the closed form's phases, each at its peak."


class StepScreen(DrawnScreen[None]):
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
    StepScreen #facts { padding: 0 1; text-wrap: wrap; }
    StepScreen #state { padding: 0 1; text-wrap: wrap; color: $text-warning; }
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
        self.budget = budget
        """The budget that is drawn."""
        self._gpu_bytes = gpu_bytes
        self._refine = refine if budget.timeline is None else None
        self._state: str | None = TRACING if refining or self._refine else None
        self._refine_task = LatestOnlyTask("step", self.call_later, self.show_budget, self.show_no_trace)

    def compose(self) -> ComposeResult:
        """The peak, the graph, its legend, and the largest tensors."""
        yield TitleLine(id="title")
        yield StaticLines(id="facts")
        yield StaticLines(id="state")
        yield StepGraph(id="graph")
        yield StaticLines(id="lines")
        yield StaticLines(id="letters")
        with VerticalScroll(id="tensors", can_focus=True):
            yield StaticLines(id="table")
        yield KeysLine()

    def on_mount(self) -> None:
        """Draw the budget, and request the refined one."""
        self.query_one("#tensors").focus()
        self.redraw()
        if self._refine is not None:
            self._refine_task.submit(self._refine)

    def on_unmount(self) -> None:
        """Cancel the refined estimate."""
        self._refine_task.cancel()

    def show_budget(self, budget: Budget, *, refining: bool = False) -> None:
        """Draw this budget; ``refining``: a refined one is being computed."""
        self.budget = budget
        self._state = TRACING if refining and budget.timeline is None else None
        self.redraw()

    def show_no_trace(self, sentence: str) -> None:
        """Say why there is no refined budget."""
        self._state = f"{_NO_TRACE} {sentence}"
        self.redraw()

    def draw(self) -> None:
        """Draw the budget."""
        budget, width = self.budget, self.size.width - 2
        of_job = f": {printable(budget.job.label)}" if budget.job.has_label else ""
        state = self._state
        if state is None and not budget.timeline:
            reason = why_untraced(budget)
            state = _NO_TRACE if reason is None else f"{_NO_TRACE} {UNTRACED}{reason}."
        self.query_one("#title", StaticLines).show(Content(f"One training step{of_job}"))
        self.query_one("#facts", StaticLines).show(peak_line(budget), layout=True)
        self.query_one("#state", StaticLines).show_if_any([Content(state)] if state else [])
        self.query_one("#graph", StepGraph).show(budget, gpu_bytes=self._gpu_bytes)
        self.query_one("#lines", StaticLines).show(
            Content.styled(self._line_words(), "dim").truncate(width, ellipsis=True)
        )
        self.query_one("#letters", StaticLines).show(legend_line(width, bars=False, budget=budget))
        table = tensor_lines(budget, width=width - 1)
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


def open_step(app: BoardApp) -> None:
    """Draw the step of the job under the cursor, of another running job, or of a pending one."""
    board, selected = app.board, app.selected_process
    rows = [*([selected] if selected else []), *(board.processes if board else ())]
    running = next((row for row in rows if row.budget), None)
    pending = next((row.budget for row in board.pending if row.budget), None) if board else None
    if running and running.budget:
        show_step(app, running.budget, running.gpu.total_bytes)
    elif pending:
        gpus = [row for gpu in board.gpus for row in gpu.devices or (gpu,)] if board else []
        largest = max((row.reading.total_bytes for row in gpus if row.reading.total_bytes), default=None)
        show_step(app, pending, largest)
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


_TENSOR_TABLE_WIDE_COLUMNS = 100
"""From this width on the component is written in full."""


def tensor_lines(budget: Budget, *, width: int) -> list[Content]:
    """Return a line per tensor: component, GiB, module (shortened at its start), line of the program, dtype, shape."""
    if not budget.largest:
        return []
    share = sum(tensor.bytes for tensor in budget.largest) / max(1, budget.peak.allocated_bytes)
    percent = f"{100 * share:.0f} %"
    head = f"The {len(budget.largest)} largest tensors at the peak, in the {budget.peak.phase}: {percent} of it"
    lines = [Content.styled(head, "bold")]
    for tensor, (letter, size, module, dtype, shape) in zip(budget.largest, tensor_rows(budget.largest), strict=True):
        mark = COMPONENTS[tensor.component]
        word = f"{mark.word:<16}{size:>7}" if width >= _TENSOR_TABLE_WIDE_COLUMNS else f"{size:>7}"
        tail = f"{dtype:<9} {shape}"
        room = max(12, width - 4 - len(word) - 30)
        if tensor.line:
            room = (room - 2) // 2
            word += f"  {shortened(line_text(tensor.own_line or tensor.line), room):<{room}}"
        line = Content.assemble(
            (letter, on_colour(mark.colour)), f" {word}  {shortened(module, room):<{room}}  ", (tail, "dim")
        )
        lines.append(line.truncate(width, ellipsis=True))
    return lines
