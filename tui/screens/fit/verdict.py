"""The verdict on a job that is being typed: will it fit, on which GPUs, what to change, and what it takes."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.fit.fit_result import FitResult

from ...draw.labels import MUTED
from ...widgets.budget_view import (
    METHOD_LABELS,
    gpu_legend,
    gpu_lines,
    is_better_estimate,
    model_lines,
    peak_line,
    phase_table,
    remark_lines,
    verdict_line,
)
from ...widgets.static_lines import StaticLines
from .capacity import Capacity
from .fit_estimates import Advice
from .suggestions import Suggestions
from .what_if_plot import WhatIfPlot

_NO_GPUS = "There is no GPU here to hold it against: choose a card below (F4)."
_OLD = "Below: the last settings that made sense."
_LOW = 24
"""In fewer rows GPUs that get no rank are told in one line, and suggestions take one line each."""
_HIGH = 44
"""From so many rows on there is room for the plot."""


class VerdictView(VerticalScroll):
    """Shows the newest budget against the GPUs; when the settings make no sense, the last one, dimmed and marked."""

    DEFAULT_CSS = """
    VerdictView { padding: 0 1; scrollbar-size-vertical: 1; }
    VerdictView Static { height: auto; text-wrap: wrap; }
    VerdictView #doubt { display: none; color: $text-error; text-wrap: nowrap; text-overflow: ellipsis; }
    VerdictView.-doubtful #doubt { display: block; }
    VerdictView.-doubtful #answer, VerdictView.-doubtful #details { text-opacity: 50%; }
    VerdictView #details { margin: 1 0 0 0; }
    VerdictView #plots { display: none; height: 14; }
    VerdictView #over { display: none; margin: 1 0 0 0; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self.budget: Budget | None = None
        """The newest budget; the last good one while the settings make no sense."""
        self.advice: Advice | None = None
        """What was worked out last; perhaps for an older budget."""
        self.doubts: str | None = None
        """What was said last about settings that make no sense."""
        self._before: Budget | None = None
        """The quick estimate that a deeper one has replaced."""
        self._judge = Capacity()
        self._waiting = False
        self._notes: tuple[str, ...] = ()

    @property
    def doubtful(self) -> bool:
        """What is shown is not the verdict on the settings as they are now."""
        return self.has_class("-doubtful")

    def compose(self) -> ComposeResult:
        """What is wrong, the verdict, what would help, the figures, and what else could be."""
        yield Static(id="doubt", markup=False)
        yield StaticLines(id="answer")
        yield Suggestions(id="suggestions")
        yield StaticLines(id="details")
        yield StaticLines(id="over")
        yield WhatIfPlot(id="plots", ascii_only=bool(getattr(self.app, "ascii_only", False)))

    def take(self, budget: Budget, *, waiting: bool = False) -> None:
        """This is the budget from now on, unless there is a better one of the same job already.

        Args:
            budget: the newest.
            waiting: a deeper one is on its way.
        """
        if is_better_estimate(budget, self.budget):
            replaced = self.budget is not None and self.budget.job == budget.job and budget.method != "formula"
            self._before = self.budget if replaced else None
            self.budget = budget
        self._waiting = waiting and self.budget is budget
        self.doubts = None
        self.remove_class("-doubtful")

    def give_up(self) -> None:
        """No deeper budget comes."""
        self._waiting = False
        self._draw()

    def advise(self, advice: Advice) -> None:
        """Show what would help."""
        self.advice = advice
        self._draw()

    def note(self, notes: Sequence[str]) -> None:
        """Say this beside the budget's own warnings."""
        self._notes = tuple(notes)

    def doubt(self, sentence: str) -> None:
        """The settings make no sense; say why, and keep the last verdict, marked as old."""
        self.doubts = sentence
        mark = f"✗ {sentence}"
        self.query_one("#doubt", Static).update(f"{mark}\n{_OLD}" if self.budget else mark)
        self.query_one(Suggestions).offer((), two_lines=False)
        self.add_class("-doubtful")

    def judge(self, judge: Capacity) -> None:
        """Hold the budget against these GPUs."""
        self._judge = judge
        self._draw()

    def on_resize(self, _: Resize) -> None:
        """Draw for the new size."""
        self._draw()

    def _draw(self) -> None:
        budget = self.budget
        if budget is None or self.size.width == 0:
            return
        low, width = self.size.height < _LOW, self.scrollable_content_region.width
        found = self._judge.fit(budget) if self._judge.rooms else None
        head = verdict_lines(budget, found, width=width, low=low)
        head.insert(min(2, len(head)), self._depth_line(budget))
        self.query_one("#answer", StaticLines).show(Content("\n").join(head), layout=True)
        needed = found is not None and found.verdict in ("tight", "does_not_fit")
        of_job = self.advice is not None and self.advice.budget.job == budget.job
        offered = self.advice.suggestions if self.advice is not None and needed and of_job else ()
        if self.doubtful:
            offered = ()
        if (
            of_job or not needed or self.doubtful
        ):  # those of the last settings stay until new ones are there: no flicker
            self.query_one(Suggestions).offer(offered, two_lines=not low)
        notes = [Content.assemble(("! ", "bold #c96c04"), sentence) for sentence in self._notes]
        details = [*model_lines(budget), Content(), *phase_table(budget), Content(), *notes, *remark_lines(budget)]
        self.query_one("#details", StaticLines).show(Content("\n").join(details), layout=True)
        self._draw_plot()

    def _depth_line(self, budget: Budget) -> Content:
        """How the figure came about: a deeper one that has just come says what it replaced."""
        if self._waiting:
            return Content.styled("the step is being traced; its figure will replace this one", MUTED)
        if self._before is None:
            return Content()
        now, said = format_gib(budget.peak.device_bytes), format_gib(self._before.peak.device_bytes)
        by = format_gib(abs(budget.peak.device_bytes - self._before.peak.device_bytes), digits=2)
        words = "more" if budget.peak.device_bytes > self._before.peak.device_bytes else "less"
        change = "the same as" if now == said else f"{by} GiB {words} than"
        return Content.styled(
            f"{METHOD_LABELS[budget.method]}: {change} the estimate before it, which was {said}", "bold $success"
        )

    def _draw_plot(self) -> None:
        plot = self.query_one("#plots", WhatIfPlot)
        plot.display = self.size.height >= _HIGH and bool(self.advice and self.advice.sweeps)
        over = self.query_one("#over", StaticLines)
        over.display = plot.display
        if plot.display and self.advice is not None:
            over.show(
                Content.assemble(("need over the micro-batch", "bold"), (" · F7: other values, and lengths", "dim"))
            )
            plot.show(self.advice.sweeps[0])


def verdict_lines(budget: Budget, found: FitResult | None, *, width: int, low: bool) -> list[Content]:
    """The verdict, the peak, and the GPUs.

    Args:
        budget: what is judged.
        found: the verdict; None: there is no GPU.
        width: cells of a line.
        low: there are few lines.
    """
    if found is None:
        return [Content(_NO_GPUS), peak_line(budget)]
    lines = [verdict_line(found), peak_line(budget)]
    lines += gpu_lines(found, budget, width=width, placed_only=low)
    if found.host is not None and found.host.sentence not in found.sentence:
        lines.append(Content.styled(f"host: {found.host.sentence}", MUTED))
    return lines if low else [*lines, gpu_legend()]
