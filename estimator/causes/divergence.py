"""Compares the memory of a running job with its budget: which part differs, and what would explain it.

With torch's own counters the difference is split into tensors (allocated), free memory in torch's cache, and memory
outside of torch (CUDA context, NCCL, libraries). Causes are searched for the part that differs.
"""

from collections.abc import Collection, Iterator
from functools import partial
from itertools import groupby
from typing import Literal

import msgspec

from ..budget import Budget
from ..common.errors import VramtopError
from ..common.records import replace
from ..common.reserved_memory import only_figures
from ..common.sizes import MIB, format_gib, size_text
from .cause_search import AllocatorCounters, Estimate, Measure, Observation
from .explain import Explanation, explain

PartName = Literal["allocated", "cached", "outside"]

_ALLOCATED_SHARE = 0.05
"""Relative error of allocated bytes that counts as predicted: nine in ten rows of the accuracy table are within 4 %."""
_CACHED_SHARE = 0.08
"""Cached bytes, as a share of the allocated ones, that the closed form's range includes."""
_MIN_CACHED_BYTES = 256 * MIB
_WHY_SERVER = "a server's settings decide how it divides its share of the GPU, not how large the share is"
_OUTSIDE_BYTES = 300 * MIB
"""Error of CUDA context and libraries that the closed form's range includes."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One of the three parts of a process's memory."""

    name: PartName
    observed_bytes: int
    expected_bytes: int
    differs: bool
    """The difference exceeds the error of predictions."""
    sentence: str
    """Text with both figures, and what to do about a difference."""


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between a job's memory and its budget, and explanations of it."""

    sentence: str
    """Summary: the observation, the prediction, and the best explanation."""
    parts: tuple[Part, ...]
    """Allocated, cached and outside of torch; empty without torch's counters."""
    explanations: tuple[Explanation, ...]
    """The likeliest first."""
    further: tuple[str, ...] = ()
    """Causes that are no settings, one sentence each."""
    is_trend: bool = False
    """The causes are those of memory that grows, which the status of the process says already."""

    @property
    def lines(self) -> tuple[str, ...]:
        """Details: the parts that differ, each prediction with its explanations, and causes that are no settings."""
        differing = (part.sentence for part in self.parts if part.differs)
        return (*differing, *_predictions(self.explanations), *self.further)


def explain_divergence(budget: Budget, observation: Observation, estimate: Estimate) -> Divergence:
    """Compare the observed memory of a rank with its budget, and search for causes of the difference.

    Args:
        budget: the budget of the job as it was read.
        observation: the observed memory.
        estimate: returns a quick estimate of a changed job; may raise VramtopError.
    """
    explained = partial(_explain_figure, budget, observation, estimate)
    if observation.loading:
        loading = budget.phase("loading")
        expected = loading.components.total_bytes if loading else None
        return explained(measure="loaded", observed=observation.device_bytes, expected=expected)
    parts = () if observation.at_least else tuple(_parts(budget, observation))
    differing = {part.name: part for part in parts if part.differs}
    for name in ("allocated", "outside"):
        if name in differing:
            part = differing[name]
            return replace(
                explained(measure=name, observed=part.observed_bytes, expected=part.expected_bytes), parts=parts
            )
    if parts and parts[0].name == "allocated":
        words = differing["cached"].sentence if "cached" in differing else "each part is as predicted"
        return Divergence(sentence=f"tensors match the prediction: {words}", parts=parts, explanations=())
    found = explained(measure="device", observed=observation.device_bytes, expected=budget.steady_device_bytes)
    return replace(found, parts=parts)


_MEASURE_LABELS: dict[Measure, str] = {
    "device": "observed",
    "allocated": "tensors take",
    "outside": "outside torch",
    "loaded": "while loading",
}


def _explain_figure(
    budget: Budget,
    observation: Observation,
    estimate: Estimate,
    *,
    measure: Measure,
    observed: int | None,
    expected: int | None,
) -> Divergence:
    """Search for the causes of one figure's difference."""
    if observed is None or expected is None:
        return Divergence(sentence="vramtop cannot read its memory use", parts=(), explanations=())
    if budget.serving is not None:
        words = f"{_MEASURE_LABELS[measure]} {format_gib(observed)} GiB, expected {format_gib(expected)}"
        return Divergence(sentence=f"{words}; {_WHY_SERVER}", parts=(), explanations=())
    label = "ran out of memory with" if observation.at_least else _MEASURE_LABELS[measure]
    figures = f"{label} {format_gib(observed)} GiB, expected {format_gib(expected)}"
    if budget.job.program is not None:
        causes = tuple(_beyond_rehearsal(budget, observed > expected, observation.counters is not None))
        return Divergence(sentence=figures, parts=(), explanations=(), further=causes)
    found = explain(budget, observation, observed, estimate, measure=measure)
    peak = budget.peak
    inside = measure == "device" and peak.low_bytes <= observed <= peak.shown_high_bytes
    why = next(_predictions(found), None)
    why = why or ("within the prediction error" if inside else _unexplained(budget, estimate))
    return Divergence(sentence=f"{figures}; {why}", parts=(), explanations=found)


def _beyond_rehearsal(budget: Budget, is_more: bool, has_counters: bool) -> Iterator[str]:
    """Yield why a run may differ from its own program as it was rehearsed: no setting of a job does."""
    facts = budget.rehearsal
    steps = max(facts.optimizer_steps.values(), default=0) if facts else 0
    rehearsed = f"the {steps} rehearsed optimizer steps" if steps > 1 else "the rehearsed optimizer step"
    yield f"its batches may be {'larger or longer' if is_more else 'smaller or shorter'} than those of {rehearsed}"
    if not is_more:
        return
    if left_out := budget.not_counted_phases:
        yield f"{' and '.join(left_out)}: not counted, the rehearsal did not reach {'them' if left_out[1:] else 'it'}"
    if facts and facts.growth_bytes:
        yield f"each rehearsed step kept {size_text(facts.growth_bytes)}"
    if not has_counters:
        yield "vramtop run -- COMMAND starts it with a probe, which tells tensors from cache and CUDA's part"


@only_figures()
def _unexplained(budget: Budget, estimate: Estimate) -> str:
    try:
        estimate(budget.job)
    except VramtopError as error:
        return f"the search for causes failed: {error}"
    return "no combination of up to two changed settings explains it"


def _predictions(found: Collection[Explanation]) -> Iterator[str]:
    """Yield a line per prediction, with all its explanations: ``47.3 GiB if activation checkpointing is off``."""
    for _, alike in groupby(found, key=lambda each: each.group):
        group = list(alike)
        words = ", or ".join(each.description for each in group)
        who = "both" if len(group) == 2 else "all"
        same = f" ({who} use the same memory; vramtop cannot tell them apart)" if len(group) > 1 else ""
        fixes = [each.fix for each in group[:1] if each.fix]
        yield f"{format_gib(group[0].predicted_bytes)} GiB if {words}{same}{''.join(f'; {fix}' for fix in fixes)}"


def _parts(budget: Budget, observation: Observation) -> Iterator[Part]:
    counters, peak = observation.counters, budget.peak
    if counters is None:
        return
    allocated = counters.allocated_peak_bytes
    if allocated is not None:
        yield _allocated(budget, allocated)
        if counters.reserved_peak_bytes is not None:
            expected = peak.reserved_bytes - peak.allocated_bytes
            yield _cached(counters, counters.reserved_peak_bytes - allocated, expected, allocated)
    now = observation.device_bytes if observation.now_bytes is None else observation.now_bytes
    peak_phase = budget.phase(peak.phase)
    if now is None or counters.reserved_bytes is None or peak_phase is None or now < counters.reserved_bytes:
        return
    yield _outside(now - counters.reserved_bytes, peak_phase.outside_bytes, peak_phase.components.context)


def _allocated(budget: Budget, observed: int) -> Part:
    expected = budget.peak.allocated_bytes
    span = budget.peak.allocated_range
    allowed = _ALLOCATED_SHARE * expected
    differs = abs(observed - expected) > allowed if span is None else observed not in span
    return Part(
        name="allocated",
        observed_bytes=observed,
        expected_bytes=expected,
        differs=differs,
        sentence=f"tensors take {format_gib(observed)} GiB at most, expected {format_gib(expected)}",
    )


def _cached(counters: AllocatorCounters, observed: int, expected: int, allocated: int) -> Part:
    flushed = counters.retries or 0
    times = "once" if flushed == 1 else f"{flushed} times"
    differs = observed - expected > max(_MIN_CACHED_BYTES, _CACHED_SHARE * allocated)
    words = f"{format_gib(observed)} GiB free in torch's cache at its peak, expected {format_gib(expected)}"
    if differs:
        # blocks of one size do not serve another: lengths that vary, an evaluation between the steps
        words += ": fragmentation; set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    if flushed:
        words += f"; the cache was flushed {times} because memory ran out"
    if counters.out_of_memory:
        words += f"; out-of-memory errors: {counters.out_of_memory}"
    return Part(name="cached", observed_bytes=observed, expected_bytes=expected, differs=differs, sentence=words)


def _outside(observed: int, expected: int, context: int) -> Part:
    nccl = expected - context
    more = observed - expected
    words = f"CUDA context and libraries take {format_gib(observed)} GiB, expected {format_gib(expected)}"
    differs = abs(more) > _OUTSIDE_BYTES + nccl // 2  # half of communication is what the closed form allows, too
    if differs and more > 0:
        words += ": another library in the process, more NCCL communicators, or kernels loaded all at once"
    return Part(name="outside", observed_bytes=observed, expected_bytes=expected, differs=differs, sentence=words)
