"""The right half of the fit check: the verdict, advice, and the comparison of two candidates."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Blur, Click, Focus, Resize
from textual.message import Message
from textual.widgets import Static

from vramtop.estimator.advice.suggestion_search import Suggestion
from vramtop.estimator.budget import Budget
from vramtop.estimator.common.cancellation import current_token
from vramtop.estimator.common.errors import CancelledError, Verdict, VramtopError
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_differences
from vramtop.monitor.board.fit import DeviceCapacity, FitResult, check_fit, count_devices, with_host_memory
from vramtop.monitor.host.available_ram import HostRam

from ...draw.labels import MUTED, bar_content
from ...draw.palette import COMPONENTS, VERDICTS, colour_of
from ...job.form.fields import sharding_word
from ...keys import bind, shown_key
from ...widgets.budget_view import (
    METHOD_LABELS,
    budget_bar,
    gpu_legend,
    gpu_lines,
    is_better_estimate,
    model_lines,
    peak_line,
    phase_table,
    remark_lines,
    verdict_line,
)
from ...widgets.row_table import StaticLines
from ..base import is_ascii_only
from ..what_if import GpuLimits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..what_if import Axis, Sweep

# The capacity a job is compared with: free memory of the chosen GPUs, and RAM of their host if it is known.


_STEP_BITS = 27
"""Available memory counts in steps of 128 MiB: smaller changes leave advice as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Decides whether budgets fit."""

    devices: tuple[DeviceCapacity, ...] = ()
    host: HostRam | None = None

    def fit(self, budget: Budget) -> FitResult:
        """Return the GPUs that the job would take, and whether their memory is enough."""
        found = check_fit(budget, self.devices)
        if self.host is None:
            return found
        return with_host_memory(
            found, budget, self.host, ranks=max(1, min(len(budget.ranks), count_devices(self.devices)))
        )

    def verdict(self, budget: Budget) -> Verdict:
        """Return only the verdict of ``fit``."""
        return self.fit(budget).verdict

    def limits(self, budget: Budget) -> GpuLimits:
        """Return the limits of the GPU that would have the least memory left with the job on it."""
        found = self.fit(budget)
        chosen = [gpu for gpu in found.gpus if gpu.device in found.rank_devices]
        tightest = min(chosen, key=lambda gpu: gpu.margin_bytes or 0, default=None)
        if tightest is None:
            return GpuLimits()
        return GpuLimits(available_bytes=tightest.device.available_bytes, gpu_bytes=tightest.device.total_bytes)


def capacity_fingerprint(suggestions: "Iterable[Suggestion]", budget: Budget, capacity: Capacity) -> list[object]:
    """Return what advice depends on; if it is unchanged, so is the advice. Cheap enough for every second."""
    available = capacity.limits(budget).available_bytes
    steps = None if available is None else available >> _STEP_BITS
    return [capacity.verdict(budget), steps, *(capacity.verdict(suggestion.budget) for suggestion in suggestions)]


# Advice on a job: suggestions that make it fit, and sweeps over its micro-batch and sequence length.


EstimateJob = Callable[[Job], Budget]
QuickEstimatorFor = Callable[[Job], EstimateJob]
"""Makes an estimate function for a search: it is quick, and takes only variants of the given job."""
_MAX_SUGGESTIONS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Changes that could be made to a job, and their effect."""

    budget: Budget
    """The budget of the job as it is."""
    suggestions: "tuple[Suggestion, ...]" = ()
    """Changes that make the job fit, cheapest first, or that come closest to it; none if it fits as it is."""
    sweeps: "tuple[Sweep, ...]" = ()
    """One over the micro-batch and one over the sequence length."""

    @property
    def can_plot(self) -> bool:
        """True if every sweep has a point."""
        return bool(self.sweeps) and all(sweep.points for sweep in self.sweeps)


def find_advice(budget: Budget, capacity: Capacity, quick_estimator: QuickEstimatorFor) -> Advice:
    """Search for advice on the budget's job; the result is empty if the quick estimate has no rule for its model.

    Raises:
        CancelledError: the search was cancelled (see ``CancelToken``).
    """
    try:
        return _search(budget, capacity, quick_estimator(budget.job))
    except CancelledError:
        raise
    except VramtopError:
        return Advice(budget=budget)


def _search(budget: Budget, capacity: Capacity, quick_estimate: EstimateJob) -> Advice:
    from vramtop.estimator.advice.suggestions import calibrated, suggest  # off the UI thread, with the first verdict
    from vramtop.estimator.learning.correction import carried, uncorrected

    from ..what_if import AXES, sweep_setting

    token = current_token()

    def estimate(job: Job) -> Budget:
        if token.cancelled:
            raise CancelledError("the job has changed")
        return quick_estimate(job)

    scaled = calibrated(budget.job, uncorrected(budget), estimate)

    def carrying(job: Job) -> Budget:
        return carried(scaled(job), budget)

    found: tuple[Suggestion, ...] = ()
    if capacity.devices and capacity.verdict(budget) in ("does_not_fit", "tight"):
        search = estimate if budget.learned is None else carrying
        gpus = count_devices(capacity.devices)
        found = suggest(budget.job, budget, search, capacity.verdict, gpus=gpus, most=_MAX_SUGGESTIONS)
    limits, max_positions = capacity.limits(budget), getattr(quick_estimate, "max_positions", None)

    def on_the_verdicts_scale(job: Job) -> Budget:
        return budget if job == budget.job else carrying(job)

    def sweep_over(axis: "Axis") -> "Sweep":
        return sweep_setting(
            budget.job, axis, on_the_verdicts_scale, capacity.verdict, limits, max_positions=max_positions
        )

    return Advice(budget=budget, suggestions=found, sweeps=tuple(sweep_over(axis) for axis in AXES))


# Keys of the suggestions.


SUGGESTION_KEYS: list[BindingType] = [
    bind("list.up", "move(-1)"),
    Binding("k", "move(-1)", show=False),
    bind("list.down", "move(1)"),
    Binding("j", "move(1)", show=False),
    bind("fit.apply", "apply", "Apply"),
]


# Changed settings in words, as an engineer says them: ``QLoRA rank 16, checkpointing full, FSDP over 8 GPUs``.


_NAMES = {
    "training.micro_batch": "micro-batch",
    "training.activation_checkpointing": "checkpointing",
    "training.gradient_accumulation": "accumulation",
    "parallel.cpu_offload": "CPU offload",
    "parallel.load_on_rank_zero": "load on rank 0",
    "target.gpu": "on",
}
_SENTENCES: Mapping[tuple[str, Any], str] = {
    ("training.activation_offload", True): "activations in CPU RAM",
    ("training.activation_offload", False): "activations on the GPU",
    ("training.loss", "fused-linear"): "fused loss",
    ("training.loss", "chunked"): "chunked loss",
    ("parallel.cpu_offload", "optimizer"): "optimizer in CPU RAM",
    ("parallel.cpu_offload", "all"): "weights and optimizer in CPU RAM",
}
_STRATEGY, _RANKS = "parallel.strategy", ("parallel.data_shard", "parallel.data_replicate")


def settings_words(changes: Mapping[str, Any]) -> str:
    """Return changed settings in words."""
    return ", ".join(_words(changes))


def _words(changes: Mapping[str, Any]) -> Iterator[str]:
    yield from _adapters(changes)
    yield from _sharding(changes)
    for key, value in changes.items():
        if key.partition(".")[0] == "lora" or key in (_STRATEGY, *_RANKS):
            continue
        name = _NAMES.get(key) or key.rpartition(".")[2].replace("_", " ")
        yield _SENTENCES.get((key, value if isinstance(value, str | bool) else None)) or f"{name} {_word(value)}"


def _adapters(changes: Mapping[str, Any]) -> Iterator[str]:
    if changes.get("lora", ...) is None:
        yield "full fine-tuning"
        return
    adapters = {key.partition(".")[2]: value for key, value in changes.items() if key.startswith("lora.")}
    if not adapters:
        return
    words = ["QLoRA" if adapters.get("quantization", "none") != "none" else "LoRA"]
    if "rank" in adapters:
        words.append(f"rank {adapters['rank']}")
    if targets := adapters.get("targets"):
        words.append(f"on {_word(targets)}")
    yield " ".join(words)


def _sharding(changes: Mapping[str, Any]) -> Iterator[str]:
    counts = [changes[key] for key in _RANKS if key in changes]
    gpus = max(counts, default=None)
    if _STRATEGY in changes:
        word = sharding_word(changes[_STRATEGY])
        yield "no sharding" if word == "none" else f"{word} over {gpus} GPUs" if gpus else word
    elif gpus:
        yield f"over {gpus} GPUs" if gpus > 1 else "on 1 GPU"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "default"
    return (
        ",".join(map(str, value)) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else str(value)
    )


# Suggestions that make a job fit, as a table: a digit, Enter or a click applies one.


HEADINGS: dict[Verdict, str] = {
    "fits": "What makes it fit, least costly first",
    "tight": "Nothing makes it fit; what makes it tight",
    "does_not_fit": "Nothing makes it fit; what comes closest",
    "unknown": "What makes it smaller",
}
_KEYS_HINTS = (
    " · 1-9 applies (Alt+1-9 in a field), {undo} undoes",
    " · 1-9 applies (Alt+1-9 in a field)",
    " · 1-9 applies",
    "",
)
_OUTDATED_HINTS = (" · for the settings before; searching again", " · of the settings before", " · of before", "")
_MARK_CELLS, _NEED_CELLS = 4, 6


class Suggestions(StaticLines, can_focus=True):
    """A table of suggestions, hidden while it is empty.

    It is drawn as one text: it changes with every key press in the form, and a list of widgets is slow to lay out.
    """

    BINDINGS: ClassVar[list[BindingType]] = SUGGESTION_KEYS
    DEFAULT_CSS = """
    Suggestions { margin: 1 0 0 0; display: none; }
    """

    @dataclass
    class Applied(Message):
        """The user applies this suggestion."""

        suggestion: Suggestion

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self.suggestions: tuple[Suggestion, ...] = ()
        """The suggestions that are shown."""
        self._width = 0
        self._outdated = False
        self._cursor = 0
        self._contents: list[Content] = []
        """The heading, and one text per suggestion, of one or more lines."""

    def show_suggestions(self, suggestions: Sequence[Suggestion], *, width: int, outdated: bool = False) -> None:
        """Show these suggestions as a table.

        Args:
            suggestions: in display order.
            width: of a line, in cells.
            outdated: they are for settings that have changed since, which the heading says.
        """
        self.suggestions, self._width, self._outdated = tuple(suggestions), width, outdated
        self._cursor = min(self._cursor, max(0, len(suggestions) - 1))
        if self.display != bool(suggestions):
            self.display = bool(suggestions)
        self._draw()

    def apply(self, number: int) -> None:
        """Apply the suggestion with this number, counted from 1."""
        if 1 <= number <= len(self.suggestions):
            self.post_message(self.Applied(self.suggestions[number - 1]))

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        if self.suggestions:
            self._cursor = (self._cursor + by) % len(self.suggestions)
            self._draw()

    def action_apply(self) -> None:
        """Apply the suggestion under the cursor."""
        self.apply(self._cursor + 1)

    def on_click(self, event: Click) -> None:
        """Apply the clicked suggestion."""
        ends = list(accumulate(content.plain.count("\n") + 1 for content in self._contents))
        self.apply(bisect_right(ends, event.y))  # the first is the heading

    def on_focus(self, _: Focus) -> None:
        """Show the cursor."""
        self._draw(focused=True)

    def on_blur(self, _: Blur) -> None:
        """Hide the cursor."""
        self._draw(focused=False)

    def _draw(self, *, focused: bool | None = None) -> None:
        if not self.suggestions:
            return
        cursor = self._cursor if (self.has_focus if focused is None else focused) else None
        heading = HEADINGS[self.suggestions[0].verdict]
        hints = [hint.format(undo=shown_key("fit.undo")) for hint in _KEYS_HINTS]
        hints = list(_OUTDATED_HINTS) if self._outdated else hints
        hint = next((hint for hint in hints if len(heading) + len(hint) <= self._width), "")
        title = Content.assemble((heading, "bold"), (hint, MUTED))
        self._contents = [Content("\n").join([title, table_head(self._width)])]
        for at, suggestion in enumerate(self.suggestions):
            content = suggestion_content(at + 1, suggestion, width=self._width)
            self._contents.append(content.stylize("reverse") if at == cursor else content)
        self.show(Content("\n").join(self._contents), layout=True)


def table_head(width: int) -> Content:
    """Return the names of the columns."""
    change, _ = _text_widths(width)
    return Content.styled(f"{'':<{_MARK_CELLS}}{'need':>{_NEED_CELLS}}  {'change':<{change}}  cost", MUTED)


def suggestion_content(number: int, suggestion: Suggestion, *, width: int) -> Content:
    """Return a suggestion as a row of the table, of one line or more: number, need, change, cost."""
    mark = VERDICTS[suggestion.verdict]
    change_width, cost_width = _text_widths(width)
    change = wrap(settings_words(suggestion.changes), change_width)
    cost = wrap(suggestion.why, cost_width)
    need = f"{format_gib(suggestion.budget.peak.device_bytes):>{_NEED_CELLS}}"
    head = Content.assemble((f"{number} ", "bold"), (f"{mark.letter} ", f"bold {mark.colour}"), (need, "bold"))
    margin = Content(" " * (_MARK_CELLS + _NEED_CELLS))
    lines = [
        Content.assemble(head if at == 0 else margin, f"  {left:<{change_width}}  ", (right, MUTED))
        for at, (left, right) in enumerate(zip_longest(change, cost, fillvalue=""))
    ]
    return Content("\n").join(lines)


def _text_widths(width: int) -> tuple[int, int]:
    """Return the widths of change and cost."""
    room = max(24, width - _MARK_CELLS - _NEED_CELLS - 4)
    return room - room * 9 // 20, room * 9 // 20


# Two candidates side by side: what each needs, by component, and the difference.


_NAME_CELLS, _FIGURE_CELLS = 18, 13


def comparison_lines(kept: Budget, now: Budget, capacity: Capacity, *, width: int) -> list[Content]:
    """Return the comparison of candidate A with the job as it is now, B.

    Args:
        kept: the budget of A.
        now: the budget of B.
        capacity: of the GPUs that both are compared with.
        width: of a line, in cells.
    """
    return [*_settings(kept, now), *_bars(kept, now, width=width), *_table(kept, now, capacity)]


def _settings(kept: Budget, now: Budget) -> Iterator[Content]:
    """Yield what differs between the two, in words."""
    keys = f" · {shown_key('fit.keep')} drops A, {shown_key('fit.swap')} goes back to A"
    yield Content.assemble(("A and B", "bold"), (keys, MUTED))
    changes = {key: value for key, value in job_differences(kept.job, now.job).items() if key != "name"}
    back = job_differences(now.job, kept.job)
    if not changes and not back:
        yield Content.styled("B is still the same as A: change a setting to see the difference", MUTED)
        return
    yield Content.assemble(
        ("A  ", "bold"), settings_words({key: value for key, value in back.items() if key != "name"})
    )
    yield Content.assemble(("B  ", "bold"), settings_words(changes))


def _bars(kept: Budget, now: Budget, *, width: int) -> Iterator[Content]:
    """Yield a bar of each by component, on one scale."""
    scale = max(kept.peak.high_bytes, now.peak.high_bytes, 1)
    for name, budget in (("A", kept), ("B", now)):
        bar = bar_content(budget_bar(budget, scale_bytes=scale, width=max(8, width - 3)))
        yield Content.assemble((f"{name}  ", "bold"), bar)


def _table(kept: Budget, now: Budget, capacity: Capacity) -> Iterator[Content]:
    yield Content.styled(_row("GiB at the peak", "A", "B", "B − A"), MUTED)
    for name, mark in COMPONENTS.items():
        sizes = [getattr(budget.peak.components, name) for budget in (kept, now)]
        if any(sizes):
            line = _sizes_row(mark.word, *sizes)
            yield Content.assemble((f"{mark.letter} ", f"bold {mark.colour}"), line[2:])
    yield Content.styled(_sizes_row("need", kept.peak.device_bytes, now.peak.device_bytes), "bold")
    verdicts = [VERDICTS[capacity.verdict(budget)] for budget in (kept, now)]
    words = [f"{mark.word:>{_FIGURE_CELLS}}" for mark in verdicts]
    parts = [(word, f"bold {mark.colour}") for word, mark in zip(words, verdicts, strict=True)]
    yield Content.assemble(f"{'':<{_NAME_CELLS}}", *parts)


def _sizes_row(name: str, a: int, b: int) -> str:
    sign = "+" if b > a else "−" if b < a else ""
    first, second = (format_gib(size, digits=2) if size else "·" for size in (a, b))
    return _row(f"  {name}", first, second, f"{sign}{format_gib(abs(b - a), digits=2)}" if a != b else "same")


def _row(name: str, a: str, b: str, difference: str) -> str:
    return f"{name:<{_NAME_CELLS}}{a:>{_FIGURE_CELLS}}{b:>{_FIGURE_CELLS}}{difference:>{_FIGURE_CELLS}}"


# The verdict in large letters, with what the job needs and what is free beside it.


HEADLINE_ROWS = 3
_PIXELS = {
    "A": ("###", "# #", "###", "# #", "# #"),
    "C": ("###", "#  ", "#  ", "#  ", "###"),
    "D": ("## ", "# #", "# #", "# #", "## "),
    "E": ("###", "#  ", "## ", "#  ", "###"),
    "F": ("###", "#  ", "## ", "#  ", "#  "),
    "G": ("####", "#   ", "# ##", "#  #", "####"),
    "H": ("# #", "# #", "###", "# #", "# #"),
    "I": ("#", "#", "#", "#", "#"),
    "L": ("#  ", "#  ", "#  ", "#  ", "###"),
    "N": ("#  #", "## #", "# ##", "#  #", "#  #"),
    "O": ("###", "# #", "# #", "# #", "###"),
    "S": ("###", "#  ", "###", "  #", "###"),
    "T": ("###", " # ", " # ", " # ", " # "),
    " ": (" ",) * 5,
}
"""The letters of the verdicts, of five rows of pixels; a cell holds two rows."""
_HALVES = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}
_GAP = "   "


def headline(fit: FitResult, budget: Budget, *, width: int, ascii_only: bool = False) -> list[Content]:
    """Return the verdict in letters of three rows, and the figures beside them; below them where there is no room.

    Args:
        fit: the verdict.
        budget: of the job.
        width: of a line, in cells.
        ascii_only: ASCII characters only, so the letters have the usual size.
    """
    mark, figures = VERDICTS[fit.verdict], _figures(fit, budget)
    rows = [] if ascii_only else large_letters(mark.word)
    if not rows or len(rows[0]) > width:
        return [
            Content.assemble((f" {mark.word} ", f"bold reverse {mark.colour}"), "  ", (" · ".join(figures), "bold"))
        ]
    letters = [Content.styled(row, mark.colour) for row in rows]
    if len(rows[0]) + len(_GAP) + max(map(len, figures)) > width:
        return [*letters, Content.styled(" · ".join(figures), "bold")]
    beside = [*figures, *[""] * (len(rows) - len(figures))]
    return [Content.assemble(row, _GAP, (text, "bold")) for row, text in zip(letters, beside, strict=True)]


def large_letters(words: str) -> list[str]:
    """Return words in letters of three rows of half blocks."""
    lines = [" ".join(_PIXELS[letter][row] for letter in words) for row in range(5)] + [""]
    width = len(lines[0])
    pairs = [(lines[row], lines[row + 1].ljust(width)) for row in (0, 2, 4)]
    return ["".join(_HALVES[a == "#", b == "#"] for a, b in zip(top, low, strict=True)) for top, low in pairs]


def _figures(fit: FitResult, budget: Budget) -> list[str]:
    """Return what the job needs, what is free where it would run, and what is left or short."""
    chosen = [gpu for gpu in fit.gpus if gpu.device in fit.rank_devices]
    tightest = min(chosen, key=lambda gpu: gpu.margin_bytes or 0, default=None)
    need = tightest.need_bytes if tightest else budget.peak.device_bytes
    figures = [f"needs {format_gib(need):>6} GiB{' each' if len(fit.placement) > 1 else ''}"]
    if tightest is None or tightest.margin_bytes is None:
        return figures
    figures.append(f"free  {format_gib(tightest.device.available_bytes):>6} GiB")
    margin = tightest.margin_bytes
    figures.append(f"left  {format_gib(margin):>6} GiB" if margin >= 0 else f"short {format_gib(-margin):>6} GiB")
    return figures


# The verdict on the edited job: whether it fits, on which GPUs, what to change, and the memory it needs.


_STALE = "Below: the last valid settings."
_COMPACT_ROWS = 24
"""Below this height unused GPUs share one line, and suggestions take one line each."""
_EARLIER_PLOT = "before the last change; the new plot is being made"
_PLOT_ROWS = 44
"""From this height on there is room for the plot."""


class VerdictView(VerticalScroll):
    """Shows the latest budget beside the GPUs; while the settings are invalid, the last valid budget, dimmed."""

    DEFAULT_CSS = """
    VerdictView { padding: 0 1; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    VerdictView Static { height: auto; text-wrap: wrap; }
    VerdictView #problem { display: none; color: $text-error; text-wrap: nowrap; text-overflow: ellipsis; }
    VerdictView.-invalid #problem { display: block; }
    VerdictView.-invalid #headline, VerdictView.-invalid #answer, VerdictView.-invalid #details { text-opacity: 50%; }
    VerdictView #comparison { display: none; margin: 1 0 0 0; }
    VerdictView #details { margin: 1 0 0 0; }
    VerdictView #plots { height: 14; }
    VerdictView #over { margin: 1 0 0 0; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self.budget: Budget | None = None
        """The latest budget; the last valid one while the settings are invalid."""
        self.advice: Advice | None = None
        """The latest advice; it may be for an earlier budget."""
        self.problem: str | None = None
        """Why the settings are invalid."""
        self._replaced: Budget | None = None
        """The quick budget that a refined one has replaced."""
        self._capacity = Capacity()
        self._refining = False
        self._not_refined: str | None = None
        """Why the quick figure is the last one."""
        self._notes: tuple[str, ...] = ()
        self.kept: Budget | None = None
        """Candidate A, with which the job is compared; None: there is none."""

    @property
    def is_invalid(self) -> bool:
        """True while the settings are invalid, so that the verdict is one on earlier settings."""
        return self.has_class("-invalid")

    def compose(self) -> ComposeResult:
        """The problem, the verdict, suggestions, figures, and a plot."""
        yield Static(id="problem", markup=False)
        yield StaticLines(id="headline")
        yield StaticLines(id="answer")
        yield StaticLines(id="comparison")
        yield Suggestions(id="suggestions")
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
        """Say why there will be no refined budget, in place of that the step is being traced."""
        self._refining, self._not_refined = False, reason
        self._draw()

    def set_advice(self, advice: Advice) -> None:
        """Show suggestions and the plot."""
        self.advice = advice
        self._draw()

    def keep(self, budget: Budget | None) -> None:
        """Compare the job with this candidate from now on; None: with none."""
        self.kept = budget
        self._draw()

    def set_notes(self, notes: Sequence[str]) -> None:
        """Show these warnings before the budget's own."""
        self._notes = tuple(notes)

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
        large = [] if fit is None else headline(fit, budget, width=width, ascii_only=is_ascii_only(self))
        head, words = verdict_lines(budget, fit, width=width, compact=compact)
        words += self._method_lines(budget, width=width)
        is_said = compact and fit is not None and fit.margin_bytes is not None  # by the headline
        head = head if is_said else [*words, *head]
        lines = self.query_one("#headline", StaticLines)
        lines.display = bool(large)
        lines.show(Content("\n").join(large), layout=True)
        self.query_one("#answer", StaticLines).show(Content("\n").join(head), layout=True)
        self._draw_suggestions(budget, fit)
        self._draw_comparison(budget, width=width)
        notes = [Content.assemble(("! ", f"bold {colour_of('warning')}"), sentence) for sentence in self._notes]
        details = [
            *(words if is_said else ()),
            *model_lines(budget),
            Content(),
            *phase_table(budget),
            Content(),
            *notes,
            *remark_lines(budget),
        ]
        self.query_one("#details", StaticLines).show(Content("\n").join(details), layout=True)
        self._draw_plot()

    def _draw_suggestions(self, budget: Budget, fit: FitResult | None) -> None:
        """Show the suggestions; those for earlier settings stay until there are new ones, and say so."""
        is_needed = fit is not None and fit.verdict in ("tight", "does_not_fit") and not self.is_invalid
        advice = self.advice if self.advice is not None and self.advice.budget.job == budget.job else None
        table, width = self.query_one(Suggestions), self.scrollable_content_region.width
        if advice is not None or not is_needed:
            table.show_suggestions(advice.suggestions if advice is not None and is_needed else (), width=width)
        else:
            table.show_suggestions(table.suggestions, width=width, outdated=True)

    def _draw_comparison(self, budget: Budget, *, width: int) -> None:
        table = self.query_one("#comparison", StaticLines)
        table.display = self.kept is not None
        if self.kept is not None:
            lines = comparison_lines(self.kept, budget, self._capacity, width=width)
            table.show(Content("\n").join(lines), layout=True)

    def _method_lines(self, budget: Budget, *, width: int) -> list[Content]:
        """Say that the step is being traced, or how the refined peak differs from the quick one."""
        if self._refining:
            return [Content.styled("tracing one step; its figure will replace this one", MUTED)]
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

    def _draw_plot(self) -> None:
        """Draw the plot where there is room for it; its widgets are made when they are needed first."""
        sweeps = self.advice.sweeps if self.advice is not None and self.size.height >= _PLOT_ROWS else ()
        if not sweeps and not self.query("#plots"):
            return
        from ..what_if import WhatIfPlot

        found = self.query(WhatIfPlot)
        if not found:
            self.mount(StaticLines(id="over"), WhatIfPlot(id="plots", ascii_only=is_ascii_only(self)))
        over, plot = self.query_one("#over", StaticLines), self.query_one(WhatIfPlot)
        over.display = plot.display = bool(sweeps)
        if sweeps:
            planned, present = self.advice and self.advice.budget.job, self.budget and self.budget.job
            hint = _EARLIER_PLOT
            if planned is not None and planned == present:
                hint = f"{shown_key('fit.what_if')} what-if: other values and sequence lengths"
            over.show(Content.assemble(("GiB needed by micro-batch", "bold"), (f" · {hint}", MUTED)))
            plot.show(sweeps[0])


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
