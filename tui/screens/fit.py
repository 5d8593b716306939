"""The fit check screen: a job's settings as a form, and beside it whether that job would fit."""

import shlex
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Blur, Click, Focus, Resize
from textual.geometry import Offset
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Label, Static

from vramtop.estimator.advice.suggestion_search import BoundedSearch, LargestFitting, Suggestion, find_largest
from vramtop.estimator.budget import Budget
from vramtop.estimator.common.cancellation import current_token
from vramtop.estimator.common.errors import NOT_REHEARSED, CancelledError, InputError, Verdict, VramtopError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.job.gpu_catalogue import catalogue, find_gpu
from vramtop.estimator.job.job import REHEARSED, Job
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.job.resolved_job import settles
from vramtop.estimator.job.settings import ModelSpec, Target
from vramtop.estimator.readers.source.evidence import DeviceChoice
from vramtop.estimator.trace.own_program import WhatRuns, what_runs
from vramtop.monitor.attach.chosen_devices import ChosenDevices, chosen_devices
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.fit import (
    DeviceCapacity,
    FitResult,
    check_fit,
    count_devices,
    described_devices,
    device_capacities,
    with_host_memory,
)
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.host.available_ram import HostRam
from vramtop.monitor.snapshot.snapshot import DeviceIndex
from vramtop.monitor.storage.recent_models import RecentModels

from ..background.latest_only_task import JobEstimates, LatestOnlyTask
from ..draw.labels import MUTED
from ..draw.palette import VERDICTS, colour_of
from ..draw.text_output import printable
from ..job.form import MODEL, FormReading, JobForm, ModelInput, cached_models, help_line, model_choices, sharding_word
from ..keys import ALT_DIGIT_CHARACTERS, bind, shown_key
from ..reports.budget_text import largest_line
from ..widgets.action_label import ActionLabel
from ..widgets.budget_view import (
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
from ..widgets.choice import Choice, ChoiceMenu
from ..widgets.keys_line import KeysLine
from ..widgets.match_list import SearchChoice
from ..widgets.row_table import StaticLines
from .base import BoardApp, is_ascii_only
from .preflight import PreflightMark, open_preflight

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.timer import Timer

    from vramtop.estimator.estimation import QuickEstimator

    from ..job.dialogs import OpenedJob
    from ..job.form import ModelChoice
    from ..job.load_job import LoadedJob
    from .step import LiveStepScreen

# The capacity a job is compared with: free memory of the chosen GPUs, and RAM of their host if it is known.


_STEP_BITS = 27
"""Available memory counts in steps of 128 MiB: smaller changes leave advice as it is."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
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

    def tightest(self, budget: Budget) -> DeviceCapacity | None:
        """Return the GPU that would have the least memory left with the job on it; None: there is none."""
        found = self.fit(budget)
        chosen = [gpu for gpu in found.gpus if gpu.device in found.rank_devices]
        tightest = min(chosen, key=lambda gpu: gpu.margin_bytes or 0, default=None)
        return None if tightest is None else tightest.device


def capacity_fingerprint(suggestions: "Iterable[Suggestion]", budget: Budget, capacity: Capacity) -> list[object]:
    """Return what advice depends on; if it is unchanged, so is the advice. Cheap enough for every second."""
    tightest = capacity.tightest(budget)
    available = None if tightest is None else tightest.available_bytes
    steps = None if available is None else available >> _STEP_BITS
    return [capacity.verdict(budget), steps, *(capacity.verdict(suggestion.budget) for suggestion in suggestions)]


# Advice on a job: suggestions that make it fit, and its largest micro-batch and sequence length.


EstimateJob = Callable[[Job], Budget]
QuickEstimatorFor = Callable[[Job], EstimateJob]
"""Makes an estimate function for a search: it is quick, and takes only variants of the given job."""
_MAX_SUGGESTIONS = 6


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that could be made to a job, and their effect."""

    budget: Budget
    """The budget of the job as it is."""
    suggestions: "tuple[Suggestion, ...]" = ()
    """Changes that make the job fit, cheapest first, or that come closest to it; none if it fits as it is."""
    largest: LargestFitting | None = None
    """The largest batch and sequence that fit; None: the closed form does not know the model, or there is no GPU."""


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

    token = current_token()

    def estimate(job: Job) -> Budget:
        if token.cancelled:
            raise CancelledError("the job has changed")
        return quick_estimate(job)

    scaled = calibrated(budget.job, uncorrected(budget), estimate)

    def carrying(job: Job) -> Budget:
        return carried(scaled(job), budget)

    if not capacity.devices:
        return Advice(budget=budget)
    found: tuple[Suggestion, ...] = ()
    is_measured = budget.learned is not None
    if capacity.verdict(budget) != "fits":
        search = carrying if is_measured else estimate
        gpus = count_devices(capacity.devices)
        found = suggest(budget.job, budget, search, capacity.verdict, gpus=gpus, most=_MAX_SUGGESTIONS)

    def fits(job: Job) -> bool:
        return capacity.verdict(carrying(job)) == "fits"

    longest = getattr(quick_estimate, "max_positions", None)
    bounded = fits if is_measured else BoundedSearch(scaled, capacity.verdict)
    return Advice(budget=budget, suggestions=found, largest=find_largest(budget.job, bounded, max_positions=longest))


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
    "fits": "Changes that make it fit, least costly first",
    "tight": "Nothing makes it fit; changes that make it tight",
    "does_not_fit": "Nothing makes it fit; closest changes",
    "unknown": "Changes that make it smaller",
}
_KEYS_HINTS = (
    " · 1-9 applies (Alt+1-9 in a field), {undo} undoes",
    " · 1-9 applies (Alt+1-9 in a field)",
    " · 1-9 applies",
    "",
)
_OUTDATED_HINTS = (" · for the previous settings; searching again", " · for the previous settings", " · outdated", "")
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


# The verdict in large letters, with what the job needs and what is free beside it.


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


class VerdictView(VerticalScroll):
    """Shows the latest budget beside the GPUs; while the settings are invalid, the last valid budget, dimmed."""

    DEFAULT_CSS = """
    VerdictView { padding: 0 1; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    VerdictView Static { height: auto; text-wrap: wrap; }
    VerdictView #problem { display: none; height: auto; color: $text-error; }
    VerdictView.-invalid #problem { display: block; }
    VerdictView #offer { display: none; height: auto; color: $text-warning; }
    VerdictView.-invalid #headline, VerdictView.-invalid #answer, VerdictView.-invalid #details { text-opacity: 50%; }
    VerdictView #details { margin: 1 0 0 0; }
    VerdictView #largest { display: none; color: $text-muted; }
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
        self.offer = ""

    @property
    def is_invalid(self) -> bool:
        """True while the settings are invalid, so that the verdict is one on earlier settings."""
        return self.has_class("-invalid")

    def compose(self) -> ComposeResult:
        """The problem, the verdict, suggestions, the largest batch, and figures."""
        yield Static(id="problem", markup=False)
        yield Static(id="offer", markup=False)
        yield StaticLines(id="headline")
        yield StaticLines(id="answer")
        yield Suggestions(id="suggestions")
        yield Static(id="largest", markup=False)
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
        """Show suggestions and the largest batch."""
        self.advice = advice
        self._draw()

    def set_notes(self, notes: Sequence[str]) -> None:
        """Show these warnings before the budget's own."""
        self._notes = tuple(notes)

    def show_offer(self, sentence: str) -> None:
        """Say what was not read, and the key that rehearses the program; empty: nothing."""
        self.offer = sentence
        line = self.query_one("#offer", Static)
        line.display = bool(sentence)
        line.update(sentence)

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

    def _draw_suggestions(self, budget: Budget, fit: FitResult | None) -> None:
        """Show the suggestions; those for earlier settings stay until there are new ones, and say so."""
        is_needed = fit is not None and fit.verdict in ("tight", "does_not_fit") and not self.is_invalid
        advice = self.advice if self.advice is not None and self.advice.budget.job == budget.job else None
        table, width = self.query_one(Suggestions), self.scrollable_content_region.width
        if advice is not None or not is_needed:
            table.show_suggestions(advice.suggestions if advice is not None and is_needed else (), width=width)
        else:
            table.show_suggestions(table.suggestions, width=width, outdated=True)
        largest = self.query_one("#largest", Static)
        largest.display = advice is not None and advice.largest is not None and not self.is_invalid
        if advice is not None and advice.largest is not None:
            largest.update(largest_line(advice.largest, budget.job))

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


_HERE = ""
_HERE_WORDS = "these GPUs"


class GpuPicker(Horizontal):
    """A model of GPU and a count; posts ``Changed`` when the user chooses another.

    Args:
        chosen: the model at first, by a name in the catalogue; None: the GPUs of this machine.
        id: the widget's id in the DOM.
    """

    DEFAULT_CSS = """
    GpuPicker { width: 1fr; height: 1; padding: 0 1; }
    GpuPicker Label { padding: 0 1; }
    GpuPicker #on { width: 24; }
    GpuPicker.-catalogue #on { width: 4; }
    GpuPicker SearchChoice { width: 1fr; max-width: 46; }
    GpuPicker Input { width: 9; }
    """

    @dataclass
    class Changed(Message):
        """The user has chosen other GPUs."""

    def __init__(self, *, chosen: str | None = None, id: str | None = None) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id)
        self._catalogue = {gpu.name: gpu for gpu in catalogue()}
        self._names = (_HERE, *self._catalogue)
        self._words = (_HERE_WORDS, *(gpu.label for gpu in self._catalogue.values()))
        self._chosen = _catalogue_name(chosen)
        self.set_class(self._chosen != _HERE, "-catalogue")  # names of cards are long
        self._count: int | None = None
        self._board: Board | None = None
        self._choice: DeviceChoice | None = None
        self._limited = ChosenDevices()

    def compose(self) -> ComposeResult:
        """The model and the count."""
        yield Label("on", id="on")
        yield SearchChoice(self._words, self._word(self._chosen), id="gpu-model")
        if self._chosen != _HERE:
            yield from _count_widgets()

    def show_board(self, board: Board) -> None:
        """Take the GPUs of this machine from the latest board."""
        listed = [] if self._board is None else [gpu.uuid for gpu in self._board.snapshot.gpus]
        self._board = board
        if self._choice is not None and listed != [gpu.uuid for gpu in board.snapshot.gpus]:
            self.limit(self._choice)

    def limit(self, choice: DeviceChoice | None) -> tuple[str, ...]:
        """Count this machine's GPUs that a job chooses for itself, or all; return notes about them."""
        self._choice, self._limited = choice, ChosenDevices()
        if choice is None or self._board is None:
            return ()
        try:
            self._limited = chosen_devices(choice, {}, self._board.snapshot.gpus)
        except InputError as error:
            return (f"{error.message}.",)
        return self._limited.notes

    @property
    def catalogue_count(self) -> int | None:
        """The typed count of GPUs of a catalogue model; None: one per rank, or the GPUs of this machine."""
        return self._count if self._chosen != _HERE else None

    def devices(self, ranks: int, *, pinned: Job | None = None) -> tuple[DeviceCapacity, ...]:
        """Return the chosen GPUs; one of the catalogue is empty but for the memory that the driver reserves.

        Args:
            ranks: number of ranks of the job.
            pinned: the pending job: memory is kept for the jobs before it, not for those after it. None: memory is
                kept for all pending jobs.
        """
        gpu = self._catalogue.get(self._chosen)
        if gpu is not None:
            return described_devices(gpu, gpu.total_bytes, self._count or ranks)
        if self._board is None:
            return ()
        return device_capacities(self._board.snapshot, _committed(self._board, pinned), self._limited.selection)

    def choose(self, gpu: str | None) -> None:
        """Choose a model by a name in the catalogue; None: the GPUs of this machine."""
        self.query_one("#gpu-model", Choice).value = self._word(_catalogue_name(gpu))

    def with_target(self, job: Job) -> Job:
        """Return the job with its target: the card chosen here, or those GPUs of this machine that the job names."""
        limited = self._chosen == _HERE and self._limited.selection is not None
        devices = [device.uuid for device in self.devices(1) if device.uuid is not None] if limited else []
        return msgspec.structs.replace(job, target=Target(gpu=self._chosen or None, devices=devices))

    @on(Choice.Changed)
    def model_chosen(self, event: Choice.Changed) -> None:
        """Use the chosen model."""
        event.stop()
        chosen = self._names[self._words.index(event.value)]
        if chosen != self._chosen:
            self._chosen = chosen
            self._show_count()
            self.post_message(self.Changed())

    @on(Input.Changed, "#count")
    def count_typed(self, event: Input.Changed) -> None:
        """Use the typed count; without one, a GPU per rank."""
        event.stop()
        count = int(event.value) if event.value.isdecimal() and int(event.value) else None
        if count != self._count:
            self._count = count
            self.post_message(self.Changed())

    @property
    def number(self) -> int:
        """Number of the chosen GPUs; of a catalogue model without a count, 1."""
        here = len(self._board.gpus) if self._board else 1
        return here if self._chosen == _HERE else self._count or 1

    def _word(self, name: str) -> str:
        return self._words[self._names.index(name)]

    def on_descendant_focus(self) -> None:
        """Post that the focus is here, as the form does for its fields."""
        self.post_message(JobForm.FieldFocused("target.gpu"))

    def _show_count(self) -> None:
        """Show the count if a model of the catalogue is chosen."""
        if not self.query("#count"):
            self.mount(*_count_widgets())
        self.set_class(self._chosen != _HERE, "-catalogue")
        for widget in (self.query_one("#times"), self.query_one("#count")):
            widget.display = self._chosen != _HERE


def _count_widgets() -> tuple[Widget, Widget]:
    count = Input(placeholder="per rank", compact=True, type="integer", max_length=5, valid_empty=True, id="count")
    return Label("×", id="times"), count


def _catalogue_name(written: str | None) -> str:
    try:
        return find_gpu(written).name if written else _HERE
    except InputError:
        return _HERE


def _committed(board: Board, pinned: Job | None) -> dict[DeviceIndex, int]:
    """Return the committed bytes, with those of pending jobs that fit and come before this one."""
    committed = dict(board.committed)
    for row in board.pending:
        if row.job == pinned:
            break
        if row.fit is not None and row.fit.verdict in ("fits", "tight"):
            for device, size in row.fit.bytes_by_device:
                committed[device.device_index] = committed.get(device.device_index, 0) + size
    return committed


# Earlier versions of the edited job; consecutive edits of one field are one step.


_MAX_STEPS = 100


class UndoHistory:
    """The versions of a job, and the way back.

    Args:
        job: the first version.
    """

    def __init__(self, job: Job) -> None:
        self.current = job
        """The latest version."""
        self.edited: frozenset[str] = frozenset()
        """Keys of the fields that the user had edited in the latest version."""
        self._earlier: list[tuple[Job, frozenset[str]]] = []
        self._field: str | None = None

    @property
    def can_undo(self) -> bool:
        """True if there is an earlier version."""
        return bool(self._earlier)

    def record(self, job: Job, field: str | None = None, *, edited: frozenset[str] = frozenset()) -> bool:
        """Record a new version, and return True if it is the first that can be undone.

        Args:
            job: the job as it is now.
            field: key of the edited field; None: a step of its own, whatever came before.
            edited: keys of all fields that the user has edited.
        """
        if job == self.current:
            return False
        could_undo = self.can_undo
        if field is None or field != self._field:
            self._earlier = [*self._earlier, (self.current, self.edited)][-_MAX_STEPS:]
        self.current, self.edited, self._field = job, edited, field
        return self.can_undo and not could_undo

    def undo(self) -> Job | None:
        """Go back one step and return that version; None if there is none."""
        if not self._earlier:
            return None
        (self.current, self.edited), self._field = self._earlier.pop(), None
        return self.current


# The form of the fit check: the settings of the job, errors under their fields, and the job that was opened.


class SettingsPane(Vertical):
    """A job form that another one replaces when a file or a launch line is opened.

    Args:
        initial: the job to start from.
        recent: the models that the user checked last; None: they are not kept.
        on_read: receives the job that was read again with the user's model; the form shows it already.
        on_error: receives the reason why it could not be read.
        id: the widget's id in the DOM.
    """

    def __init__(
        self,
        initial: Job,
        *,
        recent: RecentModels | None = None,
        on_read: "Callable[[LoadedJob], object]",
        on_error: Callable[[str], object],
        id: str | None = None,  # noqa: A002 - Textual's own name for it
    ) -> None:
        super().__init__(id=id)
        self._recent = recent
        self._on_read = on_read
        self.reading = FormReading(self, on_read=self._show_read_again, on_error=on_error)
        """Reads what was opened again with another model."""
        self._initial = initial
        self.edited_field = MODEL
        """The field that was edited last, under which errors stand."""
        self._models: tuple[ModelChoice, ...] = ()
        self._models_task = LatestOnlyTask("models in the cache", self.call_later, self._offer_models)

    def compose(self) -> ComposeResult:
        """The choice of GPUs, and the form."""
        yield GpuPicker(chosen=self._initial.target.gpu, id="gpus")
        yield JobForm(self._initial, models=self._models, id="form")

    def on_mount(self) -> None:
        """Look for the models that were checked last and those in the Hugging Face cache."""
        recent = self._recent
        self._models_task.submit(lambda: model_choices(recent.names() if recent else (), cached_models()))

    def on_unmount(self) -> None:
        """Cancel all background work."""
        self._models_task.cancel()
        self.reading.cancel()

    @property
    def form(self) -> JobForm:
        """The form that is shown."""
        return self.query_one(JobForm)

    def focus_form(self) -> None:
        """Move the focus to the first field."""
        self.form.query("Input, Choice").first().focus()

    async def show_source(self, source: "LoadedJob") -> None:
        """Show a job that was read from a file or a launch line, with the place where each value was read."""
        self.reading.cancel()
        await self.form.remove()
        form = JobForm(source.job, origins=source.origins, missing=source.missing, models=self._models, id="form")
        await self.mount(form)
        self.edited_field = source.missing[0] if source.missing else MODEL

    def _show_read_again(self, loaded: "LoadedJob") -> None:
        self.form.show_reading(loaded.job, loaded.origins, loaded.missing)
        self._on_read(loaded)

    def _offer_models(self, models: "tuple[ModelChoice, ...]") -> None:
        self._models = models
        self.form.set_models(models)


# Keys and layout of the fit check. Function keys work while a field is being typed into, letters elsewhere.


FIT_KEYS: list[BindingType] = [
    bind(
        "app.back", "app.pop_screen", "Back",
        help_text=(
            "close; the next fit check opens on the same job. Letters and digits are keys unless you type in a field"
        ),
    ),
    bind("fit.pin", "pin", "Pin"),
    bind("fit.open", "open", "Open"),
    bind("fit.choose_gpus", "choose_gpus", "GPUs", show=False),
    bind("job.step", "step", "Step"),
    bind("form.other_pane", "other_pane", "Fixes"),
    Binding(
        "1", "apply(1)", show=False, key_display="1-9",
        tooltip="apply a suggestion (Alt+digit while you type in a field); Enter applies the highlighted one",
    ),
    *(Binding(f"{number}", f"apply({number})", show=False) for number in range(2, 10)),
    *(
        Binding(f"alt+{number},{sign}", f"apply({number})", show=False, priority=True)
        for number, sign in enumerate(ALT_DIGIT_CHARACTERS, start=1)
    ),
    bind("fit.save", "save", "Save"),
    bind("fit.copy", "copy", "Copy"),
    bind("fit.undo", "undo", "Undo"),
    bind("fit.rehearse", "rehearse", "Rehearse"),
    bind("fit.preflight", "preflight", "Check"),
]  # fmt: skip

FIT_LAYOUT = """
FitCheckScreen #head { height: 1; background: $panel; }
FitCheckScreen #title { width: 1fr; padding: 0 1; text-style: bold; }
FitCheckScreen #help {
    width: 1fr; height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis;
}
FitCheckScreen #halves { height: 1fr; layout: horizontal; }
FitCheckScreen #settings { width: 2fr; max-width: 62; border-right: vkey $foreground 20%; }
FitCheckScreen #verdict { width: 3fr; }
FitCheckScreen.-narrow #halves { layout: vertical; }
FitCheckScreen.-narrow #settings {
    width: 1fr; max-width: 100%; height: 11; border-right: none; border-bottom: hkey $foreground 20%;
}
FitCheckScreen.-narrow #verdict { width: 1fr; height: 1fr; }
FitCheckScreen #head ActionLabel { margin: 0 1; }
FitCheckScreen #preflight-mark { width: auto; }
"""


_ERROR_DELAY_SECONDS = 0.3
"""Time after the last key until an error is shown: half a model name is no mistake."""
_REFINE_DELAY_SECONDS = 0.8
"""Time after the last key until the refined estimate starts."""
_WIDE_COLUMNS = 116
_HEADING_HELP = "Enter folds or unfolds these settings"


class FitCheckScreen(Screen[None]):
    """The settings at the left, the verdict at the right.

    Args:
        watchlist: receives the job when it is pinned as pending.
        estimate: a quick estimate; called off the UI thread.
        refine: a better and slower one, likewise; None: there is none.
        quick_estimator: makes quicker estimates for searches; ``estimate`` itself is used when left out.
        initial: the job to start from.
        pinned: the pending job that is being edited; None: the job is not pending.
        recent: the models that the user checked last; None: they are not kept.
        on_close: receives the edited job when the screen closes.
    """

    TITLE = "Fit check"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (_WIDE_COLUMNS, "-wide")]  # noqa: RUF012 - Textual's own declaration is no ClassVar
    BINDINGS: ClassVar[list[BindingType]] = FIT_KEYS
    DEFAULT_CSS = FIT_LAYOUT

    def __init__(
        self,
        watchlist: Watchlist,
        *,
        estimate: EstimateJob,
        refine: EstimateJob | None = None,
        quick_estimator: QuickEstimatorFor | None = None,
        initial: Job | None = None,
        pinned: Job | None = None,
        recent: RecentModels | None = None,
        on_close: Callable[[Job], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._watchlist, self._initial = watchlist, initial or Job()
        self._history = UndoHistory(self._initial)
        self._pinned = pinned
        """The pending version of the job: pinning again replaces it."""
        self._opened: OpenedJob | None = None
        """The file, launch line or model that the user opened last."""
        self._host: HostRam | None = None
        self._capacity = Capacity()
        """The GPUs and the RAM that the job is compared with."""
        self._recent, self._on_close = recent, on_close
        self._checked_model: str | None = None
        """Name of the model of the last budget."""
        self._quick_estimator = quick_estimator or (lambda _: estimate)
        self._estimates = JobEstimates(
            estimate,
            refine,
            self.call_later,
            on_budget=self._show_budget,
            on_error=lambda sentence: self._delay(_ERROR_DELAY_SECONDS, partial(self._show_error, sentence)),
            on_not_refined=self._show_not_refined,
        )
        self._advice_task = LatestOnlyTask("fit check, suggestions", self.call_later, self._show_advice)
        self._look_task: LatestOnlyTask[tuple[Job, WhatRuns]] = LatestOnlyTask(
            "fit check, program", self.call_later, self._ask_to_rehearse, self._show_error
        )
        self._delayed: list[Timer] = []
        self._step: LiveStepScreen | None = None

    def compose(self) -> ComposeResult:
        """The form, the verdict, the preflight mark, and the help of the field in focus."""
        self.set_class(self.app.size.width < _WIDE_COLUMNS, "-narrow")  # as Textual will: styles are computed once
        self.set_class(self.app.size.width >= _WIDE_COLUMNS, "-wide")
        with Horizontal(id="head"):
            yield Label("Fit check: would this job fit?", id="title", markup=False)
            yield PreflightMark(id="preflight-mark")
            yield ActionLabel("Pin as pending", "pin", id="pin")
        with Horizontal(id="halves"):
            yield SettingsPane(
                self._initial,
                recent=self._recent,
                on_read=self._show_read_again,
                on_error=self._show_error,
                id="settings",
            )
            yield VerdictView(id="verdict")
        yield StaticLines(id="help")
        yield KeysLine(show_command_palette=False)

    def on_mount(self) -> None:
        """Estimate the initial job."""
        self._pane.focus_form()
        self._start()

    def on_unmount(self) -> None:
        """Cancel all background work."""
        self._cancel()
        if self._recent is not None and self._checked_model:
            self._recent.add(self._checked_model)
        self._on_close(self._history.current)

    def show_board(self, board: Board) -> None:
        """Compare the job with the GPUs as they are now."""
        self._host = self._watchlist.host_memory(board.snapshot)
        self._picker.show_board(board)
        self._pane.form.state.usual_gpus = self._picker.number
        self._compare()

    @property
    def job(self) -> Job | None:
        """The job with the chosen GPU as its target; None while a setting is invalid."""
        job = self._pane.form.job
        return self._picker.with_target(job) if job else None

    @on(JobForm.Edited)
    def settings_edited(self, event: JobForm.Edited) -> None:
        """Estimate the edited job at once; with another model, what was opened is read again first."""
        pane, opened = self._pane, self._opened
        pane.edited_field = event.key or pane.edited_field
        form = pane.form
        if form.job is not None and self._history.record(form.job, event.key or None, edited=form.state.edited):
            self.refresh_bindings()  # only now that undo is enabled: drawing the footer is slow
        read = None
        if opened is not None:
            from ..job.load_job import load_again  # not before something was opened

            read = partial(load_again, opened.text, opened.loaded)
        if pane.reading.start(form, read):
            self._cancel()
            self._view.show_problem(f"reading the opened file again with {form.state.model}", mark="…")
        else:
            self._start()

    @on(JobForm.FieldFocused)
    def field_focused(self, event: JobForm.FieldFocused) -> None:
        """Show the help of the field, once the focus is drawn."""
        self.call_after_refresh(self._show_help, event.key)

    @on(GpuPicker.Changed)
    def gpus_changed(self) -> None:
        """Compare the budget with the new GPUs, and estimate again: the libraries depend on the GPU."""
        self._pane.form.state.usual_gpus = self._picker.number
        self._compare()
        if not self._pane.reading.is_due:
            self._start()

    @on(Suggestions.Applied)
    def suggestion_applied(self, event: Suggestions.Applied) -> None:
        """Copy a suggestion into the form."""
        self._change_settings(event.suggestion.changes)

    @on(ModelInput.JobPasted)
    def text_pasted(self, event: ModelInput.JobPasted) -> None:
        """Open the launch line or the path that was pasted into the model field."""
        self.action_open(event.text)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Disable undo while the history is empty, and what only programs have."""
        if action == "rehearse":
            return self._program is not None
        return action != "undo" or self._history.can_undo

    def action_pin(self) -> None:
        """Make the job pending in place of the version pinned before, unless its settings are invalid."""
        job, budget = self.job, self._budget_for("pin")
        if job is None or budget is None:
            return
        if self._pinned is not None and self._pinned != job:
            self._watchlist.remove_pending(self._pinned)
        self._pinned = job
        self._watchlist.add_pending(job)
        if budget.method != "formula" and settles(budget.job, job):
            self._watchlist.set_budget(budget)
        unpin = shown_key("dashboard.dismiss")
        sentence = f"{job.label} is pending: the dashboard shows whether it fits; press {unpin} there to unpin it."
        self.notify(sentence, markup=False)

    def action_apply(self, number: int) -> None:
        """Apply the suggestion with this number."""
        suggestions = self.query_one(Suggestions)
        if number <= len(suggestions.suggestions):
            suggestions.apply(number)
        else:
            self.notify(f"There is no suggestion {number}.", severity="warning")

    async def action_undo(self) -> None:
        """Undo the last change: a suggestion, an opened file, the edits of one field, or what a rehearsal replaced."""
        was_program, opened = self._history.current.program is not None, self._opened
        if (job := self._history.undo()) is None:
            return
        if was_program and opened is not None and job == opened.loaded.job:  # with the settings that are missing
            await self._show_loaded(opened.loaded)
        else:
            self._pane.form.fill(job, self._history.edited)

    def action_open(self, text: str = "") -> None:
        """Ask for a job file, a configuration, a launch line or a model."""
        from ..job.dialogs import OpenJobScreen  # dialogs are imported when one is opened first

        self.app.push_screen(OpenJobScreen(text), self._show_opened)

    def action_save(self) -> None:
        """Save the job to a file."""
        from ..job.dialogs import open_save_dialog

        job = self.job
        if job is None or not _has_model(job):
            self._warn(f"There is no job to save: {self._why_not()}")
        else:
            open_save_dialog(self, job, self._opened.loaded.file if self._opened else None)

    def action_copy(self) -> None:
        """Copy the changed settings to the clipboard, as flags and as edits of what was opened, and show them."""
        from ..job.dialogs import CopiedTextScreen
        from ..job.load_job import changed_settings_text

        job = self.job
        if job is None:
            self._warn(f"There is no job to copy: {self._why_not()}")
            return
        loaded, text = (self._opened.loaded, self._opened.text) if self._opened else (None, "")
        try:
            changes = changed_settings_text(job, loaded, text, gpus=self._picker.catalogue_count)
        except VramtopError as error:  # such as of a model that is not known
            self._warn(error.message)
            return
        self.app.copy_to_clipboard(changes)
        self.app.push_screen(CopiedTextScreen(changes, "Changed settings"))

    def action_step(self) -> None:
        """Open the step screen on the job."""
        if budget := self._budget_for("draw"):
            from .step import LiveStepScreen  # imported when it is opened first

            self._step = self._step or LiveStepScreen(self)
            self._step.open(
                budget,
                self._estimates,
                gpu_bytes=tightest.total_bytes if (tightest := self._capacity.tightest(budget)) else None,
            )

    def action_preflight(self) -> None:
        """Open the preflight screen on the job."""
        job, launch = self.job, None
        devices = self._picker.devices(job.parallel.world_size) if job else ()
        if self._opened is not None and self._opened.loaded.is_launch_line:
            launch = shlex.split(self._opened.text)
        choice = self._opened.loaded.devices if self._opened is not None else None
        open_preflight(self, job, devices=devices, budget=self._view.budget, launch=launch, choice=choice)

    def action_rehearse(self) -> None:
        """Ask whether to run the program, and show what would run."""
        job = self._program
        if job is None or job.program is None:
            self._warn(f"There is no program to rehearse: {self._why_not()}")
            return
        program = job.program
        self._look_task.submit(lambda: (job, what_runs(program)))

    def action_choose_gpus(self) -> None:
        """Move the focus to the choice of GPUs."""
        self._picker.query_one(Choice).focus()

    def action_other_pane(self) -> None:
        """Move the focus to the suggestions, or to the verdict if there are none; from there to the settings."""
        view, suggestions = self._view, self.query_one(Suggestions)
        if self.focused is not None and view in self.focused.ancestors_with_self:
            self._pane.focus_form()
        else:
            (suggestions if suggestions.display else view).focus()

    # Estimates of the edited job: a quick one at once, a refined one and errors after a delay, and advice on a budget.

    def _start(self) -> None:
        """Request a budget for the settings as they are now, or say why there is none."""
        self._cancel()
        job = self.job
        self.query_one(PreflightMark).show_job(job)
        if job is None:
            self._view.show_problem(self._pane.form.problem or "")
        elif job.program is not None:
            self._view.show_problem(f"looking for a rehearsal of {job.label}", mark="…")
            self._delay(_REFINE_DELAY_SECONDS, partial(self._estimates.estimate, job))
        elif not _has_model(job):
            self._view.show_problem(_no_model())
        else:
            self._estimates.estimate(job)
            self._delay(_REFINE_DELAY_SECONDS, partial(self._estimates.refine, job))
        self._show_offer()

    def _ask_to_rehearse(self, looked_at: tuple[Job, WhatRuns]) -> None:
        from ..job.dialogs import RehearseScreen

        job, what = looked_at
        self.app.push_screen(RehearseScreen(what), partial(self._rehearse, job))

    async def _rehearse(self, job: Job, agreed: bool | None) -> None:
        """Run the program of a job to which the user has agreed, unless the job is another one by now."""
        if not agreed or job != self._program:
            return
        if job != self.job and self._opened is not None:  # until now it was read
            opened = self._opened.loaded
            origins = {"program.command": opened.place or ""}
            self._history.record(job)
            await self._show_loaded(replace(opened, job=job, reading=None, origins=origins, missing=(), notes=()))
        self._cancel()
        self._view.show_problem(f"rehearsing {job.label}", mark="…")
        tell = partial(self.call_later, self._show_progress, job)
        self._estimates.estimate(job, progress=tell, may_run=True)

    def _cancel(self) -> None:
        """Discard all estimates and advice of the job as it was until now."""
        self._look_task.cancel()
        self._estimates.cancel()
        self._advice_task.cancel()
        for timer in self._delayed:
            timer.stop()
        self._delayed = []

    def _delay(self, seconds: float, callback: Callable[[], Any]) -> None:
        self._delayed.append(self.set_timer(seconds, callback))

    def _compare(self, *, is_new_budget: bool = False) -> None:
        """Compare the budget with the GPUs, and search for advice again if it may have changed."""
        view, before = self._view, self._capacity
        budget, offered = view.budget, view.advice.suggestions if view.advice else ()
        devices = self._picker.devices(budget.job.parallel.world_size if budget else 1, pinned=self._pinned)
        is_local = budget is None or budget.job.target.gpu is None
        self._capacity = Capacity(devices=devices, host=self._host if is_local else None)
        view.set_capacity(self._capacity)
        if budget is None or view.is_invalid:
            return
        prints = [capacity_fingerprint(offered, budget, each) for each in (before, self._capacity)]
        if is_new_budget or prints[0] != prints[1]:
            self.call_after_refresh(self._search_advice)

    def _search_advice(self) -> None:
        """Search for advice once the verdict is drawn: Python threads share one processor."""
        budget, job = self._view.budget, self.job
        if budget is not None and job is not None and settles(budget.job, job):
            self._advice_task.submit(partial(find_advice, budget, self._capacity, self._quick_estimator))

    def _show_budget(self, budget: Budget) -> None:
        self._checked_model = budget.job.model.id
        if budget.rehearsal is not None and self._pinned is not None and self._pinned == self.job:
            self._watchlist.set_budget(budget, self._pinned)
        self._pane.form.clear_errors()
        self._view.set_budget(budget, refining=self._estimates.may_refine(budget))
        if self._step is not None:
            self._step.update(self._view.budget or budget, self._estimates)
        self._compare(is_new_budget=True)
        self._show_offer()

    def _show_progress(self, job: Job, text: str) -> None:
        """Show how far the rehearsal is, unless its job has changed."""
        if self._view.is_invalid and job == self.job:
            self._view.show_problem(text, mark="…")

    def _show_not_refined(self, reason: str) -> None:
        self._view.keep_quick_budget(reason)
        if self._step is not None:
            self._step.show_not_refined(reason)

    def _show_advice(self, advice: Advice) -> None:
        self._view.set_advice(advice)

    def _show_error(self, sentence: str) -> None:
        """Say why there is no budget; not while the user still searches for a model."""
        if self._pane.form.is_choosing_model:
            keeps = shown_key("app.back")
            self._view.show_problem(f"Enter takes the highlighted model, {keeps} keeps your text", mark="…")
            return
        if sentence.startswith(NOT_REHEARSED) and self._is_own_script and (job := self._program) is not None:
            self.call_later(self._rehearse, job, agreed=True)
            return
        if sentence.startswith(NOT_REHEARSED):
            key = shown_key("fit.rehearse")
            self._view.show_problem(f"{NOT_REHEARSED}{key} shows the command and asks first", mark="…")
            return
        from ..job.scripted_models import may_be_scripted  # with msgspec's records of every such model

        name = job.model.id if (job := self.job) is not None else None
        if name is not None and "not known by name" in sentence and may_be_scripted(name):
            sentence = (
                f"{name} has no closed form: {shown_key('fit.open')} opens it, and its training script is rehearsed"
            )
        self._view.show_problem(sentence)
        self._pane.form.show_error(self._pane.edited_field, sentence)

    def _budget_for(self, purpose: str) -> Budget | None:
        """Return the budget of the settings as they are; if there is none, notify the user why."""
        budget, job = self._view.budget, self.job
        if budget is None or self._view.is_invalid or job is None or not settles(budget.job, job):
            none = "There is no budget for these settings yet, so there is nothing to"
            self._warn(f"{none} {purpose}: {self._why_not()}")
            return None
        return budget

    def _why_not(self) -> str:
        """Return why there is no job or no budget, as the end of a sentence."""
        wrong = self._pane.form.problem
        job = None if wrong else self.job
        if job is not None and not _has_model(job):
            return _no_model()
        return wrong or self._view.problem or "it is being estimated"

    async def _show_opened(self, opened: "OpenedJob | None") -> None:
        """Show an opened job in a new form, with the place where each value was read."""
        if opened is None:
            return
        self._opened, self._pinned = opened, None
        self._history.record(opened.loaded.job)
        await self._show_loaded(opened.loaded)

    async def _show_loaded(self, loaded: "LoadedJob") -> None:
        pane = self._pane
        await pane.show_source(loaded)
        self._picker.choose(loaded.job.target.gpu)
        self._show_name_and_notes(loaded)
        if loaded.missing:
            pane.focus_form()
        else:  # no field has the focus: a typed digit would overwrite a value that was read
            self._view.focus()
        self._start()

    def _show_read_again(self, loaded: "LoadedJob") -> None:
        """Show what was opened as it is with the model that the user has given; it is part of the same edit."""
        self._history.current = self._pane.form.job or self._history.current
        self._show_name_and_notes(loaded)
        self._start()

    def _show_name_and_notes(self, loaded: "LoadedJob") -> None:
        self.query_one("#title", Label).update(f"Fit check: would {loaded.job.label} fit?")
        program = () if loaded.job.program is None else (f"{loaded.job.label} {REHEARSED}.",)
        self._view.set_notes((*program, *self._picker.limit(loaded.devices), *loaded.notes))

    def _show_help(self, key: str | None) -> None:
        for line in self.query("#help").results(StaticLines):  # none once the screen was closed
            line.show(Content(help_line(key) if key else _HEADING_HELP))

    def _change_settings(self, changes: Mapping[str, Any]) -> None:
        """Change these settings as one undo step."""
        form = self._pane.form
        if form.job is None:
            self._warn(f"Not applied: {form.problem}")
            return
        try:
            form.fill(with_changes(form.job, changes))
        except InputError as error:
            self._warn(error.message)

    def _warn(self, sentence: str) -> None:
        self.notify(sentence, severity="warning", markup=False)

    @property
    def _program(self) -> Job | None:
        """The job with the program that can be rehearsed: this one, or that of the launch line as it was read."""
        if self._history.current.program is not None:
            return self.job
        loaded = self._opened.loaded if self._opened is not None else None
        if loaded is None or loaded.program is None or self._history.current != loaded.job:
            return None
        return self._picker.with_target(loaded.program)

    @property
    def _is_own_script(self) -> bool:
        """Whether the program is the training script of a model that was opened by its name, which vramtop wrote."""
        loaded, job = self._opened.loaded if self._opened else None, self._program
        if loaded is None or loaded.script is None or loaded.job.program is None or job is None or job.program is None:
            return False
        return job.program.command == loaded.job.program.command

    def _show_offer(self) -> None:
        """Offer a rehearsal of the program of which not all was read; of one that was not read at all, say why."""
        loaded, sentence = self._opened.loaded if self._opened else None, ""
        if loaded is not None and self._history.current.program is not None:
            sentence = "".join(loaded.why_unread) if self._view.is_invalid else ""
        elif loaded is not None and self._program is not None and loaded.unknown(self._view.budget):
            key = shown_key("fit.rehearse")
            sentence = f"Not all of the program was read. {key} rehearses it for the exact figure, and asks first."
        if sentence != self._view.offer:
            self._view.show_offer(sentence)
            self.refresh_bindings()

    @property
    def _pane(self) -> SettingsPane:
        return self.query_one(SettingsPane)

    @property
    def _picker(self) -> GpuPicker:
        return self.query_one(GpuPicker)

    @property
    def _view(self) -> VerdictView:
        return self.query_one(VerdictView)


def _has_model(job: Job) -> bool:
    return job.model.id is not None or job.model.config is not None or job.program is not None


def _no_model() -> str:
    return f"enter a model: name, hub id or folder; {shown_key('fit.open')} opens a file"


# Opens the fit check: on a pending job, on the job that was edited last, or on a new one.


_MENU_PLACE = Offset(2, 2)


def open_fit_check(app: BoardApp) -> None:
    """Open the fit check; the user chooses the job if there are several."""
    pending, draft = app.watchlist.pending(), app.fit_draft
    drafts = [draft] if draft and draft not in pending else []
    jobs: list[Job | None] = [*pending, *drafts, None]
    if len(jobs) == 1:
        _open(app, None)
        return
    names = [f"{job.label} ({'pending' if job in pending else 'as you left it'})" if job else "new" for job in jobs]

    def choose(index: int | None) -> None:
        if index is not None:
            _open(app, jobs[index])

    app.push_screen(ChoiceMenu([printable(name) for name in names], _MENU_PLACE), choose)


def _open(app: BoardApp, job: Job | None) -> None:
    watchlist = app.watchlist

    def make_quick_estimator(job: Job) -> "QuickEstimator":
        from vramtop.estimator.estimation import quick_estimator  # not before the screen is shown

        return quick_estimator(job, gpu=None if job.target.gpu else watchlist.gpu_type)

    def keep_draft(job: Job) -> None:
        if job.model != ModelSpec():
            app.fit_draft = job

    screen = FitCheckScreen(
        watchlist,
        estimate=watchlist.estimate,
        refine=app.refine,
        quick_estimator=make_quick_estimator,
        initial=job,
        pinned=job if job in watchlist.pending() else None,
        recent=RecentModels(),
        on_close=keep_draft,
    )
    app.push_once(screen)
