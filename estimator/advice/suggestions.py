"""Searches for the smallest changes that make a job fit, ranked by their cost in speed and quality."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Literal

from ..budget import Budget
from ..common.errors import CannotTellError, VramtopError
from ..common.records import replace
from ..job.gpu_catalogue import BF16_CAPABILITY, Gpu
from ..job.job import Job
from ..job.resolved_job import ResolvedJob, resolve_job
from .bounded_search import Estimate, Judge, shifted
from .changes import FEWER_GPUS, HOST_LOADING, Change, Proposal, fewer_gpus
from .inference_changes import INFERENCE_CHANGES, VLLM_CHANGES
from .suggestion_search import ChangeJob, Suggestion, SuggestionSearch, cost_of
from .training_changes import TRAINING_CHANGES

Workload = Literal["training", "inference", "vllm"]

CHANGES: dict[Workload, tuple[Proposal, ...]] = {
    "training": (fewer_gpus, *TRAINING_CHANGES),
    "inference": (fewer_gpus, *INFERENCE_CHANGES),
    "vllm": (fewer_gpus, *VLLM_CHANGES),
}
"""A new change is one row of its table; changes of equal cost are tried in the order of the rows."""


def candidate_changes(job: Job, *, gpus: int = 1, gpu: Gpu | None = None) -> tuple[Change, ...]:
    """Return every change that may lower the memory that the job needs, the cheapest first.

    Args:
        job: the job to change.
        gpus: number of GPUs that there are, for sharding the job further.
        gpu: what they are; None: not known, so that they compute in every type.
    """
    resolved = resolve_job(job)
    workload: Workload = "vllm" if resolved.is_served else "training" if resolved.trains else "inference"
    found: Iterator[Change] = (change for propose in CHANGES[workload] for change in propose(resolved, gpus))
    if gpu is not None and gpu.compute_capability < BF16_CAPABILITY:
        found = _before_ampere(found, resolved)
    if gpu is not None and gpu.unified:  # it would move to where it is already
        found = (change for change in found if "offload" not in change.kind)
    return tuple(sorted(found, key=lambda change: change.cost))


def _before_ampere(changes: Iterator[Change], job: ResolvedJob) -> Iterator[Change]:
    """Yield the changes with fp16 in place of bf16, without those that a GPU before Ampere has no kernels for."""
    for change in changes:
        precision = str(change.changes.get("training.precision", ""))
        if "fp8" in change.changes.values() or (precision == "bf16" and job.trains and job.lora is None):
            continue  # nothing trains in plain fp16: its gradients vanish
        half = {"training.precision": precision.replace("bf16", "fp16")} if precision else {}
        yield replace(change, changes=change.changes | half)


_MAX_PAIR_COST_SHARE = 0.75
"""Maximum cost of a pair, as a share of the cheapest single change that fits."""
_MIN_COST_FOR_TRIPLES = 1.0
"""Three changes are tried if the cheapest solution costs more: as if a step took twice as long."""
_MAX_EXTENDED_PAIRS = 6
"""Number of pairs to which a third change is added."""
_CONFIRMING_SECONDS = 10.0
"""Time for estimating suggestions again, which may trace each."""
VERDICTS = ("fits", "tight", "unknown", "does_not_fit")
"""The best first."""


def suggest(
    job: Job,
    current: Budget,
    estimate: Estimate,
    judge: Judge,
    *,
    gpus: int = 1,
    gpu: Gpu | None = None,
    most: int = 6,
    change: ChangeJob | None = None,
) -> tuple[Suggestion, ...]:
    """Return changes that make the job fit, the cheapest first, then those that make it tight.

    If nothing does either, the changes that lower its memory most. Of graded changes (micro-batch, length, GPUs) only
    the smallest sufficient one is returned. Pairs combine changes of which neither is sufficient alone, and are tried
    only if no single change is sufficient, or if the pair costs much less. If all solutions are costly, a third change
    is added to the best pairs. The steps of a changed job are replayed only if its verdict depends on it
    (``BoundedSearch``), or its figures are returned.

    Args:
        job: the job to change.
        current: its budget; if that is not the quick estimate's, the difference is added to every figure.
        estimate: returns a quick estimate of a changed job.
        judge: returns the verdict on a budget: none that is better for more bytes.
        gpus: number of GPUs that there are, for sharding the job further.
        gpu: what they are; None: not known.
        most: maximum number of suggestions.
        change: returns the job with new values by key, with what follows from them where it was written; None: they
            change nothing else.
    """
    changes = candidate_changes(job, gpus=gpus, gpu=gpu)
    needs_fewer = any(change.kind == FEWER_GPUS for change in changes)
    scaled = calibrated(job, current, estimate)
    search = SuggestionSearch(job, current, scaled, judge, change=change, lowers=not needs_fewer)
    singles = search.judged(
        ((change,) for change in changes if not needs_fewer or change.kind == FEWER_GPUS), until=most
    )
    if judge(shifted(current, -current.peak.high_bytes)) == "fits":  # host memory is no limit
        changes = tuple(change for change in changes if change.kind != HOST_LOADING)
    return search.best([*singles, *_combined(search, changes, singles, most)], most)


def confirm(
    suggestions: Sequence[Suggestion],
    estimate: Estimate,
    judge: Judge,
    *,
    seconds: float = _CONFIRMING_SECONDS,
    progress: Callable[[str], None] | None = None,
) -> tuple[Suggestion, ...]:
    """Return the suggestions with the figures that their jobs have when they are estimated as the job itself was.

    Those that do not fit after all come last if they are tight, and are dropped if others fit or are tight.

    Args:
        suggestions: the result of ``suggest``.
        estimate: as the job itself was estimated; a job that it cannot estimate stays unconfirmed.
        judge: returns the verdict on a budget.
        seconds: time after which the rest is left out, once anything is confirmed.
        progress: called with the step that is being done.
    """
    kept: list[Suggestion] = []
    begun = time.monotonic()
    for index, suggestion in enumerate(suggestions):
        if kept and time.monotonic() - begun > seconds:
            break
        if progress:
            progress("checking " + " and ".join(f"{key} = {value}" for key, value in suggestion.changes.items()))
        try:
            budget = estimate(suggestion.budget.job)
        except CannotTellError:
            kept.extend(suggestions[index:])
            break
        except VramtopError:  # the model itself rejects it
            continue
        kept.append(replace(suggestion, budget=budget, verdict=judge(budget), confirmed=True))
    possible = [each for each in kept if each.verdict != "does_not_fit"]
    return tuple(sorted(possible or kept, key=lambda each: VERDICTS.index(each.verdict)))


def calibrated(job: Job, current: Budget, estimate: Estimate) -> Estimate:
    """Return the quick estimate, shifted by the difference between it and the job's more accurate budget."""
    try:
        by = current.peak.device_bytes - estimate(job).peak.device_bytes
    except VramtopError:
        by = 0
    return estimate if not by else lambda changed: shifted(estimate(changed), by)


def _combined(
    search: SuggestionSearch, changes: Sequence[Change], singles: Sequence[Suggestion], most: int
) -> list[Suggestion]:
    """Return pairs that cost much less than the sufficient single changes, and triples if all of them are costly."""
    enough = [s for s in singles if s.verdict == "fits"]
    limit = _MAX_PAIR_COST_SHARE * _lowest_cost(enough)
    alone = {part.kind for s in enough for part in s.parts if s.cost <= limit}
    needs_fewer = any(change.kind == FEWER_GPUS for change in changes)
    possible = [pair for pair in combinations(changes, 2) if _compatible(pair)]
    if needs_fewer:
        possible = [pair for pair in possible if FEWER_GPUS in (pair[0].kind, pair[1].kind)]
    pairs = sorted(possible, key=cost_of)
    worth = (pair for pair in pairs if cost_of(pair) <= limit and not any(part.kind in alone for part in pair))
    found = search.judged(worth, until=most)
    cheapest = _lowest_cost([s for s in (*enough, *found) if s.verdict == "fits"])
    if cheapest > _MIN_COST_FOR_TRIPLES:
        found += search.judged(_triples(found, changes, _MAX_PAIR_COST_SHARE * cheapest), until=most)
    return found


def _triples(pairs: Sequence[Suggestion], changes: Sequence[Change], limit: float) -> list[tuple[Change, ...]]:
    """Return the pairs that need the least memory, each with every compatible third change, up to a cost."""
    cheap = (pair for pair in pairs if len(pair.parts) == 2 and pair.verdict != "fits" and pair.cost <= limit)
    triples = [
        (*pair.parts, change)
        for pair in sorted(cheap, key=lambda pair: pair.budget.peak.components.total_bytes)[:_MAX_EXTENDED_PAIRS]
        for change in changes
        if all(_compatible((part, change)) for part in pair.parts)
    ]
    return sorted((parts for parts in triples if cost_of(parts) <= limit), key=cost_of)


def _compatible(pair: tuple[Change, ...]) -> bool:
    first, second = pair
    return first.kind != second.kind and not first.changes.keys() & second.changes.keys()


def _lowest_cost(suggestions: Sequence[Suggestion]) -> float:
    return min((s.cost for s in suggestions), default=float("inf"))
