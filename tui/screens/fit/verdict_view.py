"""The verdict on the edited job: whether it fits, on which GPUs, what to change, and the memory it needs."""

from textwrap import wrap

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.board.fit_result import FitResult

from ...draw.labels import MUTED, warning
from ...draw.palette import colour_of
from ...job.advice import Advice
from ...keys import shown_key
from ...reports.budget_text import largest_line
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
from ...widgets.content_lines import StaticLines
from .gpu_picker import Capacity
from .suggestions import Suggestions

_STALE = "Below: the last valid settings."
_COMPACT_ROWS = 24
"""Below this height unused GPUs share one line, and suggestions take one line each."""


class VerdictView(VerticalScroll):
    """Shows the latest budget beside the GPUs; while the settings are invalid, the last valid budget, dimmed."""

    DEFAULT_CSS = """
    VerdictView { padding: 0 1; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    VerdictView Static { height: auto; text-wrap: wrap; }
    VerdictView #problem { display: none; height: auto; color: $text-error; }
    VerdictView.-invalid #problem { display: block; }
    VerdictView #offer { display: none; color: $text-warning; }
    VerdictView.-invalid #answer, VerdictView.-invalid #details { text-opacity: 50%; }
    VerdictView #details { margin: 1 0 0 0; }
    VerdictView #largest { display: none; color: $text-muted; }
    """

    budget: Budget | None = None
    """The latest budget; the last valid one while the settings are invalid."""
    advice: Advice | None = None
    """The latest advice; it may be for an earlier budget."""
    problem: str | None = None
    """Why the settings are invalid."""
    _replaced: Budget | None = None
    """The quick budget that a refined one has replaced."""
    _capacity = Capacity()
    _refining = False
    _not_refined: str | None = None
    """Why the quick figure is the last one."""
    notes: tuple[str, ...] = ()
    """Warnings that are shown before the budget's own."""
    offer = ""

    @property
    def is_invalid(self) -> bool:
        """True while the settings are invalid, so that the verdict is one on earlier settings."""
        return self.has_class("-invalid")

    def compose(self) -> ComposeResult:
        """The problem, the verdict, suggestions, the largest batch, and figures."""
        yield Static(id="problem", markup=False)
        yield StaticLines(id="offer")
        yield StaticLines(id="answer")
        yield Suggestions(id="suggestions")
        yield StaticLines(id="largest")
        yield StaticLines(id="details")

    def set_budget(self, budget: Budget, *, refining: bool = False) -> None:
        """Take a new budget, unless a better one of the same job is known; ``set_capacity`` draws it.

        Args:
            budget: the latest budget.
            refining: a refined one is being computed.
        """
        if is_better_estimate(budget, self.budget):
            is_refined = self.budget is not None and self.budget.job == budget.job and budget.method != "formula"
            self._replaced = self.budget if is_refined else None
            self.budget = budget
        self._refining, self._not_refined = refining and self.budget is budget, None
        self.problem = None
        self.remove_class("-invalid")

    def keep_quick_budget(self, reason: str) -> None:
        """Say why the budget will not be refined, where the screen said that the step is being traced."""
        self._refining, self._not_refined = False, reason
        self._draw()

    def set_advice(self, advice: Advice) -> None:
        """Show suggestions and the largest batch."""
        self.advice = advice
        self._draw()

    def show_offer(self, sentence: str) -> None:
        """Say what was not read, and the key that rehearses the program; empty: nothing."""
        self.offer = sentence
        self.query_one("#offer", StaticLines).show_if_any([Content(sentence)] if sentence else [])

    def show_problem(self, sentence: str, *, mark: str = "✗") -> None:
        """Say why the settings are invalid, or what is awaited, and dim the last verdict."""
        self.problem = sentence
        line = f"{mark} {sentence}"
        self.query_one("#problem", Static).update(f"{line}\n{_STALE}" if self.budget else line)
        self.query_one(Suggestions).show_suggestions((), width=0)
        self.add_class("-invalid")

    def set_capacity(self, capacity: Capacity) -> None:
        """Compare the budget with these GPUs."""
        self._capacity = capacity
        self._draw()

    def on_resize(self, _: Resize) -> None:
        """Draw for the new size."""
        self._draw()

    def _draw(self) -> None:
        budget = self.budget
        if budget is None or self.size.width == 0:
            return
        compact, width = self.size.height < _COMPACT_ROWS, self.scrollable_content_region.width
        fit = self._capacity.fit(budget) if self._capacity.devices else None
        lines, words = verdict_lines(budget, fit, width=width, compact=compact)
        answer = [*words, *self._method_lines(budget, width=width), *lines]
        self.query_one("#answer", StaticLines).show(Content("\n").join(answer), layout=True)
        self._draw_suggestions(budget, fit)
        notes = map(warning, self.notes)
        details = [
            *model_lines(budget),
            Content(),
            *phase_table(budget),
            Content(),
            *notes,
            *remark_lines(budget),
        ]
        self.query_one("#details", StaticLines).show(Content("\n").join(details), layout=True)

    def _draw_suggestions(self, budget: Budget, fit: FitResult | None) -> None:
        """Show the suggestions; those for earlier settings stay until there are new ones, and say so."""
        is_needed = fit is not None and fit.verdict in ("tight", "does_not_fit") and not self.is_invalid
        advice = self.advice if self.advice is not None and self.advice.budget.job == budget.job else None
        table, width = self.query_one(Suggestions), self.scrollable_content_region.width
        if advice is not None or not is_needed:
            table.show_suggestions(advice.suggestions if advice is not None and is_needed else (), width=width)
        else:
            table.show_suggestions(table.suggestions, width=width, outdated=True)
        largest = None if advice is None or self.is_invalid else advice.largest
        lines = [] if largest is None else [Content(largest_line(largest, budget.job))]
        self.query_one("#largest", StaticLines).show_if_any(lines)

    def _method_lines(self, budget: Budget, *, width: int) -> list[Content]:
        """Say that the step is being traced, or how the refined peak differs from the quick one."""
        if self._refining:
            return [Content.styled("tracing one step; its result will replace this one", MUTED)]
        if self._not_refined is not None:
            return [Content.styled(line, MUTED) for line in wrap(f"not traced: {self._not_refined}", width)]
        if self._replaced is None:
            return []
        new, old = budget.peak.device_bytes, self._replaced.peak.device_bytes
        change = f"{format_gib(abs(new - old), digits=2)} GiB {'more' if new > old else 'less'} than"
        if format_gib(new) == format_gib(old):
            change = "the same as"
        sentence = f"{METHOD_LABELS[budget.method]}: {change} the quick estimate of {format_gib(old)}"
        return [Content.styled(sentence, "bold $success")]


def verdict_lines(
    budget: Budget, fit: FitResult | None, *, width: int, compact: bool
) -> tuple[list[Content], list[Content]]:
    """Return the GPUs, and the verdict in words with the peak.

    Args:
        budget: the job's budget.
        fit: the verdict; None: there is no GPU.
        width: cells of a line.
        compact: leave out the legend, and share one line among unused GPUs.
    """
    if fit is None:
        return [], [
            Content(f"There is no GPU here to compare with: choose a GPU model ({shown_key('fit.choose_gpus')})."),
            peak_line(budget),
        ]
    lines = gpu_lines(fit, budget, width=width, placed_only=compact)
    if fit.host is not None and (fit.host.sentence not in fit.sentence or compact):
        lines.append(
            Content.styled(f"host: {fit.host.sentence}", MUTED if fit.host.verdict == "fits" else colour_of("warning"))
        )
    return (lines if compact else [*lines, gpu_legend()]), [verdict_line(fit), peak_line(budget)]
