"""Judges changes of a job in the order of their cost, and returns the best of them with exact figures."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from math import inf, prod
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..budget import Budget, Peak, RankPeak
from ..common.errors import Verdict, VramtopError
from ..common.records import replace
from ..common.reserved_memory import with_reserved_memory
from ..job.job import Job, effective_batch
from ..job.job_file.changes import job_to_mapping, with_changes
from ..job.resolved_job import ResolvedJob
from ..readers.arguments.table import Written
from ..readers.source.written_places import COMMAND_LINE, written_place
from ..readers.tools.tool_registry import table_of_tool

if TYPE_CHECKING:
    from ..readers.source.evidence import Finding, JobReading

# Judges changed jobs, and replays the steps only of those whose verdict depends on what the allocator reserves.
#
# The allocator never reserves less than is allocated at the peak. A job that does not fit with that much does not
# fit, and needs no replay; nor does one that is at best tight, where only those that fit matter. The answers are
# those of replaying every job, if the judge gives a budget with more bytes no better verdict.


Figures = TypeVar("Figures", Peak, RankPeak)
Estimate = Callable[[Job], Budget]
Judge = Callable[[Budget], Verdict]


class BoundedSearch:
    """Judges jobs by a quick estimate.

    Args:
        estimate: a closed form or a function of one; another estimate is exact anyway, and its verdicts are final.
        judge: returns the verdict on a budget: none that is better for more bytes.
    """

    def __init__(self, estimate: Estimate, judge: Judge) -> None:
        self.estimate = estimate
        self.judge = judge

    def least(self, job: Job) -> tuple[Budget, Verdict]:
        """Return the budget with the least that may be reserved (``is_least``), and the best verdict that there may be.

        Raises:
            VramtopError: what the estimate raises.
        """
        with with_reserved_memory("least"):
            budget = self.estimate(job)
        return budget, self.judge(budget)

    def exact(self, budget: Budget) -> tuple[Budget, Verdict]:
        """Return the budget and the verdict with the reserved memory of a replay."""
        if budget.is_least:
            budget = self.estimate(budget.job)
        return budget, self.judge(budget)

    def fits_with(self, job: Job, more: int) -> bool:
        """Return whether the job fits if it takes the least that it may take, and so many bytes more.

        Raises:
            VramtopError: what the estimate raises.
        """
        with with_reserved_memory("least"):
            budget = self.estimate(job)
        return self.judge(shifted(budget, more)) == "fits"


def shifted(budget: Budget, by: int) -> Budget:
    """Return the budget with ``by`` bytes added to all device figures; its components are unchanged."""
    if not by:
        return budget
    peak, stages = _shifted(budget.peak, by), tuple(_shifted(stage, by) for stage in budget.stages)
    return replace(budget, peak=peak, steady_device_bytes=peak.device_bytes, stages=stages)


def _shifted(figures: Figures, by: int) -> Figures:
    """Return a peak with ``by`` bytes added, none of its figures below 0."""
    return replace(
        figures,
        device_bytes=max(0, figures.device_bytes + by),
        low_bytes=max(0, figures.low_bytes + by),
        high_bytes=max(0, figures.high_bytes + by),
    )


# A change of a job that lowers the memory it needs, and the row of the table that proposes it.


HOST_LOADING = "loading"
"""The kind of changes that lower host memory only."""
FEWER_GPUS = "fewer GPUs"
"""The kind of changes that every suggestion has for a job that needs more GPUs than there are."""
MORE_GPUS_SLOWDOWN = 0.2
"""Cost of each doubling of the GPUs: other jobs cannot use them."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """New values of some settings, and their cost in speed and quality."""

    kind: str
    """Changes of one kind exclude each other."""
    changes: dict[str, Any]
    """Dotted job keys and their new values."""
    why: str
    """Description of the cost, in a few words."""
    slowdown: float
    """Share by which a step takes longer; negative if it gets faster."""
    quality: float
    """Loss of quality on the scale of ``slowdown``; 0: the same result."""
    source: str
    """Source of the costs."""

    @property
    def cost(self) -> float:
        """Slowdown and loss of quality together, by which changes are ranked."""
        return max(0.0, self.slowdown) + self.quality


Proposal = Callable[[ResolvedJob, int], Iterator[Change]]
"""Yields the changes that suit a job, given the number of GPUs that there are: a ``ChangeRule`` or a function."""


class ChangeRule(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a table of changes: the jobs that it applies to, the settings that it changes, and its cost."""

    kind: str
    applies: Callable[[ResolvedJob], bool]
    changes: Mapping[str, Any] | Callable[[ResolvedJob], dict[str, Any]]
    """Dotted job keys and their new values, or a function of the job that returns them."""
    why: str
    slowdown: float | Callable[[ResolvedJob], float] = 0.0
    """Share by which a step takes longer, or a function of the job that returns it."""
    quality: float = 0.0
    source: str

    def __call__(self, job: ResolvedJob, _gpus: int) -> Iterator[Change]:
        """Yield the change if it applies to the job."""
        if self.applies(job):
            yield Change(
                kind=self.kind,
                changes=self.changes(job) if callable(self.changes) else dict(self.changes),
                why=self.why,
                slowdown=self.slowdown(job) if callable(self.slowdown) else self.slowdown,
                quality=self.quality,
                source=self.source,
            )


def shorter_sequences(job: ResolvedJob, _gpus: int) -> Iterator[Change]:
    """Yield sequences of half the length, a quarter, ... down to 512 tokens."""
    length, halvings = job.training.sequence_length, 1
    while length % 2 == 0 and length >= 1024:
        length //= 2
        yield Change(
            kind="length",
            changes={"training.sequence_length": length},
            why="truncates longer sequences",
            slowdown=0.0,
            quality=0.5 * halvings,
            source="nothing is lost if the examples are that short",
        )
        halvings += 1


_REDUCED = ("pipeline", "data_replicate", "data_shard", "context", "tensor")
"""The sizes that are reduced first come first: a shorter pipeline idles less."""
_FURTHER_DOWN = 0.01
"""Cost of each size that is passed over, so that the first of them is preferred."""


def fewer_gpus(job: ResolvedJob, gpus: int) -> Iterator[Change]:
    """Yield smaller sizes of one dimension, with which a job takes no more GPUs than there are; else of several."""
    parallel, needed = job.job.parallel, job.job.parallel.world_size
    sizes = {name: getattr(parallel, name) for name in _REDUCED}
    found = [
        {name: size // factor}
        for name, size in sizes.items()
        if (factor := next((n for n in range(2, size + 1) if size % n == 0 and needed // n <= gpus), None))
    ]
    if needed > gpus and not found:
        found = [_reduced(sizes, needed, gpus)]
    for changed in found if needed > gpus else []:
        ratio = prod(sizes[name] for name in changed) // prod(changed.values())
        batch = prod(sizes[name] // size for name, size in changed.items() if name.startswith("data_"))
        accumulation = batch * job.training.gradient_accumulation
        kept = {"training.gradient_accumulation": accumulation} if batch > 1 and job.trains else {}
        same = ", the same global batch" if kept else ""
        yield Change(
            kind=FEWER_GPUS,
            changes={**{f"parallel.{name}": size for name, size in changed.items()}, **kept},
            why=f"takes {needed // ratio} GPU{'s' * (needed > ratio)} instead of {needed}{same}",
            slowdown=round(ratio - 1.0 + _FURTHER_DOWN * [*sizes].index(next(iter(changed))), 3),
            quality=0.0,
            source="each GPU does the work of several",
        )


def _reduced(sizes: Mapping[str, int], needed: int, gpus: int) -> dict[str, int]:
    """Return the sizes that are reduced one after the other, each as far as it has to be."""
    changed: dict[str, int] = {}
    for name, size in sizes.items():
        if needed > gpus and size > 1:
            factor = next((n for n in range(2, size) if size % n == 0 and needed // n <= gpus), size)
            changed[name], needed = size // factor, needed // factor
    return changed


ChangeJob = Callable[[Mapping[str, Any]], Job]
"""Returns the job with new values by dotted key."""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """One to three changes, and the budget of the changed job."""

    parts: tuple[Change, ...]
    changes: dict[str, Any]
    """Dotted job keys and their new values."""
    budget: Budget
    verdict: Verdict
    confirmed: bool = False
    """The budget comes from a traced step, not from the quick estimate."""

    @property
    def cost(self) -> float:
        """Slowdown and loss of quality together, by which suggestions are ranked."""
        return sum(part.cost for part in self.parts)

    @property
    def why(self) -> str:
        """Description of the cost, in a few words; a change of what is trained or computed is never the same result."""
        words = dict.fromkeys(part.why for part in self.parts)
        return "; ".join([*words, *(() if any(part.quality for part in self.parts) else ("same result",))])

    @property
    def sources(self) -> tuple[str, ...]:
        """Sources of the costs."""
        return tuple(dict.fromkeys(part.source for part in self.parts))


class SuggestionSearch:
    """Judges changed jobs, each on the least that may be reserved first.

    Args:
        job: the job that is changed.
        current: its budget.
        estimate: returns an estimate of a changed job that compares with that budget.
        judge: returns the verdict on a budget.
        change: returns the job with new values by key; None: they change nothing else.
        lowers: only changes with which a GPU holds less are of use: the job takes no more GPUs than there are.
    """

    def __init__(
        self,
        job: Job,
        current: Budget,
        estimate: Estimate,
        judge: Judge,
        *,
        change: "ChangeJob | None" = None,
        lowers: bool = True,
    ) -> None:
        self._change, self._search = change or partial(with_changes, job), BoundedSearch(estimate, judge)
        self._current_bytes: float = current.peak.device_bytes if lowers else inf
        self._current_components: float = inf
        if not lowers:
            return
        try:
            self._current_components = estimate(job).peak.components.total_bytes
        except VramtopError:
            self._current_components = current.peak.components.total_bytes

    def judged(self, candidates: Iterable[tuple[Change, ...]], *, until: int) -> list[Suggestion]:
        """Return the changes that fit or allocate less than the job, until ``until`` of them fit.

        The verdicts are the best that there may be, but those that fit are certain. Of changes of the same kinds none
        is tried after the first that fits.

        Args:
            candidates: the cheapest first.
            until: number of those that fit after which only changes of the same cost are tried.
        """
        found: list[Suggestion] = []
        sufficient: set[tuple[str, ...]] = set()
        for parts in candidates:
            if len(sufficient) >= until and cost_of(parts) > found[-1].cost:
                break
            kinds = _kinds(parts)
            if kinds in sufficient:
                continue
            suggestion = self._judge(parts)
            if suggestion is None:
                continue
            found.append(suggestion)
            if suggestion.verdict == "fits":
                sufficient.add(kinds)
        return found

    def best(self, found: Sequence[Suggestion], most: int) -> tuple[Suggestion, ...]:
        """Return the best suggestions with exact figures: those that fit, then the tight ones, the cheapest first.

        If there are none, those with which the job takes the least memory.
        """
        found = _without_repetitions(found)
        fitting = _without_redundant([s for s in found if s.verdict == "fits"])
        fitting.sort(key=lambda s: (s.cost, len(s.parts), s.budget.peak.device_bytes))
        wanted = most - len(fitting)
        tight = self._tight([s for s in found if s.verdict == "tight"], wanted) if wanted > 0 else []
        return tuple([*fitting, *tight][:most]) or self._smallest(found, most)

    def _judge(self, parts: tuple[Change, ...]) -> Suggestion | None:
        """Return changes with their budget; None if they are invalid, or allocate no less and do not fit."""
        changes: dict[str, Any] = {}
        for part in parts:
            changes |= part.changes
        try:
            budget, verdict = self._search.least(self._change(changes))
            if verdict == "fits":
                budget, verdict = self._search.exact(budget)
        except VramtopError:
            return None
        if verdict != "fits" and budget.peak.components.total_bytes >= self._current_components:
            return None
        return Suggestion(parts=parts, changes=changes, budget=budget, verdict=verdict)

    def _exact(self, suggestion: Suggestion) -> Suggestion:
        budget, verdict = self._search.exact(suggestion.budget)
        return replace(suggestion, budget=budget, verdict=verdict)

    def _tight(self, found: Sequence[Suggestion], wanted: int) -> list[Suggestion]:
        """Return tight suggestions, the first of each combination of kinds, in the order of their cost."""
        certain: list[Suggestion] = []
        kinds: set[tuple[str, ...]] = set()
        by_cost = sorted(found, key=lambda s: (s.cost, len(s.parts)))
        for _, alike in groupby(by_cost, key=lambda s: (s.cost, len(s.parts))):
            group: list[Suggestion] = []
            for suggestion in alike:
                if _kinds(suggestion.parts) in kinds:
                    continue
                exact = self._exact(suggestion)
                if exact.verdict == "tight" and exact.budget.peak.device_bytes < self._current_bytes:
                    group.append(exact)
                    kinds.add(_kinds(exact.parts))
            group.sort(key=lambda s: s.budget.peak.device_bytes)
            certain = _without_redundant([*certain, *group])
            if len(certain) >= wanted:
                break
        return certain

    def _smallest(self, found: Sequence[Suggestion], most: int) -> tuple[Suggestion, ...]:
        """Return the suggestions with the least memory: replayed in the order of the least that they may take."""
        alike = _without_redundant([replace(s, verdict="does_not_fit") for s in found])  # neither fits nor is tight
        exact: list[Suggestion] = []
        for suggestion in sorted(alike, key=lambda s: s.budget.peak.device_bytes):
            if len(exact) >= most and suggestion.budget.peak.device_bytes > exact[most - 1].budget.peak.device_bytes:
                break
            certain = self._exact(suggestion)
            if certain.budget.peak.device_bytes < self._current_bytes:
                exact.append(certain)
                exact.sort(key=lambda s: (s.budget.peak.device_bytes, s.cost, repr(s.changes)))
        return tuple(exact[:most])


def cost_of(parts: tuple[Change, ...]) -> float:
    """Return the cost of changes together."""
    return sum(part.cost for part in parts)


def _kinds(parts: tuple[Change, ...]) -> tuple[str, ...]:
    return tuple(sorted(part.kind for part in parts))


def _without_repetitions(found: Sequence[Suggestion]) -> list[Suggestion]:
    """Return the suggestions without those that change the same settings in another order."""
    first: dict[object, Suggestion] = {}
    for suggestion in found:
        first.setdefault(tuple(sorted((key, repr(value)) for key, value in suggestion.changes.items())), suggestion)
    return list(first.values())


def _without_redundant(found: Sequence[Suggestion]) -> list[Suggestion]:
    """Return the suggestions without those of which a part has the same effect."""
    kinds = {id(s): {part.kind for part in s.parts} for s in found}

    def as_good(fewer: Suggestion, more: Suggestion) -> bool:
        if fewer.verdict != more.verdict or not kinds[id(fewer)] < kinds[id(more)]:
            return False
        if not all(more.changes.get(key) == value for key, value in fewer.changes.items()):
            return False
        allocated, needed = more.budget.peak.components.total_bytes, fewer.budget.peak.components.total_bytes
        return fewer.verdict in ("fits", "tight") or allocated >= 0.99 * needed

    return [s for s in found if not any(as_good(fewer, s) for fewer in found)]


# Writes a suggested change as edits of the user's own settings: flags, or keys of a tool's configuration file.


_SAME_IN_EVERY_TOOL = (
    "training.micro_batch",
    "training.evaluation_batch",
    "training.gradient_accumulation",
    "training.sequence_length",
    "lora.rank",
)
"""Numbers that every tool writes as the job file does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One setting to change in the user's command line or file."""

    key: str
    """Dotted job key that it sets."""
    place: str | None
    """``command line``, or a file's name; None: unknown."""
    setting: str | None
    """The tool's flag or key; None: its name is unknown, and ``words`` describes the change."""
    old: str | None
    """The present value as text; None: the setting is not set."""
    new: str
    """The new value as text."""
    words: str
    """Text of the edit: ``--per_device_train_batch_size 4 -> 2``."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        return asdict(self)


def flag_edits(job: Job, changes: Mapping[str, Any], flags: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the changes as flags of vramtop itself.

    Args:
        job: the job before the change.
        changes: dotted job keys and their new values.
        flags: flag by job key.
    """
    tables = job_to_mapping(job)
    found = []
    for key, value in changes.items():
        table, _, name = key.partition(".")
        old, new = _value(tables.get(table, {}).get(name)), _value(value) or ""
        flag = flags.get(key)
        words = f"{flag} {new}" if flag else f"--set {key}={new}"
        found.append(Edit(key=key, place=COMMAND_LINE, setting=flag or "--set", old=old, new=new, words=words))
    return tuple(found)


def tool_edits(
    reading: "JobReading", job: Job, changes: Mapping[str, Any], *, tool: str | None, place: str | None = None
) -> tuple[Edit, ...]:
    """Return the changes as settings of the tool that the job was read from.

    Args:
        reading: the settings that were read, each with its evidence.
        job: the job before the change.
        changes: dotted job keys and their new values.
        tool: name of the tool in ``readers.tools.tool_registry``; None: a script of the user's own.
        place: where new settings belong if the evidence does not show it: ``command line``, or a file's name.
    """
    findings = {finding.key: finding for finding in reading.findings}
    place = _usual_place(reading) or place
    found: list[Edit] = []
    for key, value in changes.items():
        now = findings.get(key)
        if now is not None and now.value == value:
            continue
        found += _edits_of(key, value, now, job=job, tool=tool, place=place)
    # a setting that accompanies one key may be an edit of its own for another key
    last = {(edit.place, edit.setting): edit for edit in found if edit.setting}
    return tuple(edit for edit in found if not edit.setting or last[edit.place, edit.setting] is edit)


def _edits_of(
    key: str, value: Any, now: "Finding | None", *, job: Job, tool: str | None, place: str | None
) -> Iterator[Edit]:
    names = table_of_tool(tool)
    follows = names.derived.get(key)
    if follows:
        yield _described_edit(key, value, f"{key} becomes {_value(value)} automatically: {follows} stays the same")
        return
    known = names.write.get(key)
    in_place = _edit_in_place(key, value, now, known) if now is not None else None
    if in_place is not None:
        yield in_place
        return
    if known is not None and (new := _tool_value(known, value)) is not None:
        for name, other in known.also.items():
            yield _edit(key, place, _flag_or_key(name, place, tool), None, other)
        yield _edit(key, place, _flag_or_key(known.name, place, tool), None, new)
        return
    table, _, name = key.partition(".")
    old = _value(job_to_mapping(job).get(table, {}).get(name))
    yield _described_edit(key, value, f"{key}: {old or 'not set'} -> {_value(value)}")


def _edit_in_place(key: str, value: Any, now: "Finding", known: Written | None) -> Edit | None:
    """Return the change of the setting that the user wrote; None if its value has no equivalent there."""
    written = written_place(now)
    if written is None:
        return None
    place, setting = written
    same = key in _SAME_IN_EVERY_TOOL
    if not same and not (known and known.name == setting.strip("-=")):
        return None
    new = _tool_value(known, value) if known and not same else value
    if new is None:
        return None
    return _edit(key, place, setting, _old_tool_value(known, now.value), new)


def _usual_place(reading: "JobReading") -> str | None:
    """Return the place where most of the settings are written."""
    places = [written[0] for finding in reading.findings if (written := written_place(finding))]
    return max(places, key=places.count) if places else None


def _flag_or_key(name: str, place: str | None, tool: str | None) -> str:
    dashed = place == COMMAND_LINE or table_of_tool(tool).always_flags
    return f"--{name}" if dashed else name


def _tool_value(known: Written, value: Any) -> Any:
    if known.values is None:
        return value
    return known.values.get(_word(value)) if not isinstance(value, list) else None


def _old_tool_value(known: Written | None, value: Any) -> Any:
    """Return the tool's value for the job's value, if that is a known one."""
    if known is None or known.values is None or isinstance(value, list):
        return value
    return known.values.get(_word(value))


def _word(value: Any) -> str:
    """Return a value of the job as the table of arguments has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _edit(key: str, place: str | None, setting: str, old: Any, new: Any) -> Edit:
    before, after = _value(old), _value(new)
    equals = setting.endswith("=")
    joint = "" if equals else " " if setting.startswith("-") else ": "
    if before is not None:
        words = f"{setting}{joint}{before} -> {after}"
    else:
        words = f"{setting if new is True and setting.startswith('--') else f'{setting}{joint}{after}'} (new)"
    return Edit(key=key, place=place, setting=setting, old=before, new=after or "", words=words)


def _described_edit(key: str, value: Any, words: str) -> Edit:
    return Edit(key=key, place=None, setting=None, old=None, new=_value(value) or "", words=words)


def _value(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


# Searches for the largest micro-batch and the longest sequence with which a job still fits.


_MAX_MICRO_BATCH = 4096
_MAX_SEQUENCE_LENGTH = 1 << 21
_MAX_GUESSES = 8
"""Replays after which the values that are left are halved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestFitting:
    """The largest micro-batch and the longest sequence that fit, each with all other settings unchanged."""

    micro_batch: int | None
    """1, 2, 4, a multiple of eight, or the job's own; None: not even 1 fits."""
    sequence_length: int | None
    """A multiple of 128, 64 below that, or the job's own; None: not even 64 tokens fit."""
    at_model_limit: bool = False
    """The model supports no longer sequence, though memory would allow it."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object ``largest``."""
        return asdict(self)


def find_largest(
    job: Job,
    fits: Callable[[Job], bool] | BoundedSearch,
    *,
    max_positions: int | None = None,
    keep_global_batch: bool = False,
) -> LargestFitting:
    """Search both: the results fit, and the next larger candidates do not.

    A job that fits as it is never gets a smaller value than its own.

    Allocated bytes never fall as either grows. What the allocator keeps beside them may, as other blocks fit into each
    other; a larger candidate that fits can then be missed.

    Args:
        job: the job to grow.
        fits: returns True if a changed job fits; one that raises VramtopError does not. A bounded search, which first
            refuses what is too large in any case, replays a few candidates only.
        max_positions: the longest sequence that the model supports.
        keep_global_batch: only try micro-batches for which some accumulation keeps the sequences per step.
    """
    batch = effective_batch(job)
    own_size, own_length = job.training.micro_batch, job.training.sequence_length
    sizes = sorted({*_batch_sizes(), own_size})
    if keep_global_batch and batch:
        sizes = [s for s in sizes if batch.accumulation_for(micro_batch=s, data_ranks=batch.data_ranks)]
    lengths = sorted({*_lengths(max_positions), min(own_length, max_positions or own_length)})

    def with_batch(size: int) -> Job:
        changes: dict[str, Any] = {"training.micro_batch": size}
        if keep_global_batch and batch:
            steps = batch.accumulation_for(micro_batch=size, data_ranks=batch.data_ranks)
            changes["training.gradient_accumulation"] = steps
        return with_changes(job, changes)

    longest = _last_fitting(
        _Candidates(lengths, lambda length: with_changes(job, {"training.sequence_length": length}), fits), own_length
    )
    return LargestFitting(
        micro_batch=_last_fitting(_Candidates(sizes, with_batch, fits), own_size),
        sequence_length=longest,
        at_model_limit=longest is not None and max_positions is not None and longest == lengths[-1],
    )


class _Candidates:
    """Values of one setting, ascending, and whether the job fits with each."""

    def __init__(
        self, values: Sequence[int], job_of: Callable[[int], Job], fits: Callable[[Job], bool] | BoundedSearch
    ) -> None:
        self.values = values
        self._job_of = job_of
        self._fits = fits
        self.more = 0
        """Bytes by which the last one that ``fit`` was asked for takes more than the least that it may take."""

    @property
    def bounded(self) -> bool:
        """True if it is known what each takes at least."""
        return isinstance(self._fits, BoundedSearch)

    def fit(self, at: int) -> bool:
        """Return whether the job fits with the value at an index."""
        try:
            job = self._job_of(self.values[at])
            if not isinstance(self._fits, BoundedSearch):
                return self._fits(job)
            budget, verdict = self._fits.least(job)
            if verdict != "fits":
                return False
            exact, verdict = self._fits.exact(budget)
        except VramtopError:
            return False
        self.more = exact.peak.high_bytes - budget.peak.high_bytes
        return verdict == "fits"

    def may_fit(self, at: int, more: int) -> bool:
        """Return whether the job fits if it takes the least that it may take, and so many bytes more."""
        try:
            return isinstance(self._fits, BoundedSearch) and self._fits.fits_with(self._job_of(self.values[at]), more)
        except VramtopError:
            return False


def _last_fitting(candidates: _Candidates, own: int) -> int | None:
    """Return the last candidate that fits if all before it do.

    The search starts from the job's own value if that fits, otherwise from the first candidate.
    """
    values, fits = candidates.values, candidates.fit
    start = next((at for at in (values.index(own) if own in values else 0, 0) if fits(at)), None)
    if start is None:
        return None
    if candidates.bounded:
        return values[_bounded_end(candidates, start)]
    low, high = _doubled(fits, start, len(values))
    return values[_bisected(fits, low, high)]


def _bounded_end(candidates: _Candidates, low: int) -> int:
    """Return the last index that fits, of those that do with the least, from one that was found to fit.

    What the last replays took more than the least tells where the end may be; replays decide.
    """
    values, below, above = candidates.values, candidates.more, None
    _, high = _doubled(lambda at: candidates.may_fit(at, 0), low, len(values))
    high = 1 + _bisected(lambda at: candidates.may_fit(at, 0), low, high)
    steps = 0
    while high - low > 1:
        slope = 0.0 if above is None else (above - below) / (values[high] - values[low])
        guess = _bisected(
            lambda at, start=values[low], more=below, slope=slope: candidates.may_fit(  # type: ignore[misc]
                at, more + round(slope * (values[at] - start))
            ),
            low,
            high,
        )
        at = max(low + 1, min(high - 1, guess)) if steps < _MAX_GUESSES else (low + high) // 2
        steps += 1
        if candidates.fit(at):
            low, below = at, candidates.more
        else:
            high, above = at, candidates.more
    return low


def _doubled(fits: Callable[[int], bool], low: int, end: int) -> tuple[int, int]:
    """Return the last index that fits of those at doubling distances from one that does, and the next of them."""
    step = 1
    while low + step < end and fits(low + step):
        low += step
        step *= 2
    return low, min(low + step, end)


def _bisected(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest index that fits, by bisection between one that fits and one that does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _batch_sizes() -> list[int]:
    return [1, 2, 4, *range(8, _MAX_MICRO_BATCH + 1, 8)]


def _lengths(max_positions: int | None) -> list[int]:
    limit = min(max_positions or _MAX_SEQUENCE_LENGTH, _MAX_SEQUENCE_LENGTH)
    lengths = [length for length in (64, *range(128, limit + 1, 128)) if length <= limit]
    if max_positions and (not lengths or lengths[-1] != max_positions):
        lengths.append(max_positions)
    return lengths
