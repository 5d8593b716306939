"""The step screen: memory of one training step by component, and the largest tensors at its peak."""

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.screen import Screen

from vramtop.estimator.budget import Budget
from vramtop.estimator.common import format_gib
from vramtop.estimator.crash import MemorySnapshot
from vramtop.estimator.estimation import UNTRACED, why_untraced

from ...background import LatestOnlyTask
from ...draw import printable
from ...widgets import KeysLine, StaticLines, legend_line, peak_line
from ..base import is_ascii_only
from .keys import STEP_KEYS
from .observed_memory import common_top_bytes, observed_line, observed_memory
from .open_file import OpenedFile, OpenFileScreen
from .step_graph import StepGraph
from .step_graph_rows import GPU_TOTAL, RESERVED, step_top_bytes
from .tensor_table import tensor_lines

_WIDE_COLUMNS = 110
"""From this width on the legend uses the long words."""
_BESIDE_COLUMNS = 100
"""From this width on what was observed stands beside the budget, below it otherwise."""
TRACING = "Tracing the step. Until then: the phases of the closed form, each at its peak."
_NO_TRACE = "This job's step has no trace: shown are the phases of the closed form, each at its peak."


class StepScreen(Screen[None]):
    """Draws a budget, and its refined version as soon as there is one.

    Args:
        budget: the budget that is known when the screen opens.
        gpu_bytes: memory of the GPU that the job is compared with; None: not known.
        refine: estimates the same job by tracing it; called off the UI thread if ``budget`` has no timeline. None: the
            opener calls ``show_budget`` or ``show_no_trace``, or there is no refined budget.
        refining: a refined budget is being computed.
        observed: a memory snapshot, drawn beside the budget on the same scale; the user may open one later.
    """

    TITLE = "Step"
    BINDINGS: ClassVar[list[BindingType]] = STEP_KEYS
    DEFAULT_CSS = """
    StepScreen #title { height: 1; padding: 0 1; text-style: bold; background: $panel; }
    StepScreen #facts { padding: 0 1; text-wrap: wrap; }
    StepScreen #state { padding: 0 1; text-wrap: wrap; color: $text-warning; display: none; }
    StepScreen #state.-shown { display: block; }
    StepScreen #graphs { height: 3fr; layout: horizontal; }
    StepScreen.-stacked #graphs { layout: vertical; }
    StepScreen StepGraph { width: 1fr; height: 1fr; margin: 0 1; min-height: 4; }
    StepScreen #observed-facts { padding: 0 1; text-wrap: wrap; display: none; }
    StepScreen #observed { display: none; }
    StepScreen.-observed #observed, StepScreen.-observed #observed-facts { display: block; }
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
        observed: OpenedFile | None = None,
    ) -> None:
        super().__init__()
        self._observed = observed
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
        yield StaticLines(id="observed-facts")
        with Container(id="graphs"):
            yield StepGraph(id="graph", ascii_only=is_ascii_only(self))
            yield StepGraph(id="observed", ascii_only=is_ascii_only(self))
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

    def action_open_snapshot(self) -> None:
        """Ask for a memory snapshot to draw beside the budget."""
        name = self._observed.name if self._observed else ""
        self.app.push_screen(OpenFileScreen(name, only_snapshots=True), self._show_observed)

    def _show_observed(self, opened: OpenedFile | None) -> None:
        if opened is not None:
            self._observed = opened
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
        self._draw_graphs()
        self.query_one("#lines", StaticLines).show(
            Content.styled(self._line_words(), "dim").truncate(width, ellipsis=True)
        )
        self.query_one("#letters", StaticLines).show(legend_line(width, bars=False))
        table = tensor_lines(budget, width=width - 1)
        self.query_one("#table", StaticLines).show(Content("\n").join(table), layout=True)
        self.query_one("#tensors").display = bool(table)

    def _draw_graphs(self) -> None:
        """Draw the budget, and beside it what was observed, on one scale."""
        opened, snapshot, gpu_bytes = self._observed, self._snapshot, self._gpu_total
        graph = self.query_one("#graph", StepGraph)
        self.set_class(opened is not None, "-observed")
        self.set_class(self.size.width < _BESIDE_COLUMNS, "-stacked")
        if opened is None or snapshot is None:
            graph.show(self.budget, gpu_bytes=self._gpu_bytes)
            return
        top = common_top_bytes(self.budget, snapshot, gpu_bytes)
        self.query_one("#observed-facts", StaticLines).show(observed_line(snapshot, opened.name), layout=True)
        graph.show(self.budget, gpu_bytes=gpu_bytes, top_bytes=top)
        self.query_one("#observed", StepGraph).show(
            self.budget, gpu_bytes=gpu_bytes, memory=observed_memory(snapshot), top_bytes=top
        )

    @property
    def _snapshot(self) -> MemorySnapshot | None:
        """The snapshot that is drawn beside the budget."""
        content = self._observed.content if self._observed else None
        return content if isinstance(content, MemorySnapshot) else None

    @property
    def _gpu_total(self) -> int | None:
        """Memory of the GPU, as the dashboard or the snapshot knows it."""
        return self._gpu_bytes or (self._snapshot.total_bytes if self._snapshot else None)

    def _line_words(self) -> str:
        """Return the legend of the graph's lines and of its horizontal axis."""
        budget, wide = self.budget, self.size.width >= _WIDE_COLUMNS
        snapshot, total = self._snapshot, self._gpu_total
        words = ["▲ peak"]
        if budget.timeline:
            cache = "with the allocator's cache" if wide else "with cache"
            device = format_gib(max(budget.timeline.reserved_bytes) + budget.timeline.outside_bytes)
            words.append(f"{RESERVED} {cache}, to {device} GiB")
        elif snapshot is not None:
            words.append(f"{RESERVED} {'reserved by torch' if wide else 'reserved'}")
        if total is not None:
            top = common_top_bytes(budget, snapshot, total) if snapshot else step_top_bytes(budget, total)
            words.append(f"{GPU_TOTAL} GPU {format_gib(total)}{' (above)' if total > top else ''}")
        if snapshot is not None:
            words.append("predicted, then observed" + (" by torch (no CUDA context)" if wide else ""))
        order = "allocations in order" if wide else "in order"
        words.append(f"→ {order if budget.timeline else 'phases'}, not time")
        return "  ".join(words)


def _why_untraced(budget: Budget) -> str:
    """Return why the step was not traced, from the budget's assumptions if they say so."""
    reason = why_untraced(budget)
    return _NO_TRACE if reason is None else f"{_NO_TRACE} {UNTRACED}{reason}."
