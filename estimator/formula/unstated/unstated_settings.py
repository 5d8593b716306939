"""Settings that a job leaves open and memory depends on: versions of libraries, sizes, units of FSDP, batch lengths."""

from collections.abc import Sequence

from msgspec import Struct

from ...budget import Budget, Peak, RankPeak, Span
from ...common.errors import CannotTellError, VramtopError
from ...common.records import replace
from ...common.sizes import GIB, format_gib, size_text
from ...job.gpu_catalogue import Gpu
from ...job.job import Job
from ...job.resolved_job import resolve_job
from ...model.architecture import Architecture
from ...model.count_parameters import count_parameters
from ...model.find_config import resolve_model
from ...model.read_architecture import read_architecture
from ..closed_form import closed_form
from ..other_models import find_held_models, with_other_models
from .other_jobs import (
    Side,
    older_libraries,
    other_sizes,
    other_units,
    other_versions,
    reduced_gradients,
)

_SMALL = 0.01
"""Share of the reserved bytes below which it does not matter whether lengths differ."""


_UNKNOWN = 1 << 62
"""Sorts differences that are not known behind all others."""


class Change(Struct, frozen=True, kw_only=True):
    """Difference of another setting from the one that is counted, in bytes; None: not known, as much again at most."""

    source: str
    """The setting that the job leaves open; of several changes with the same source, only one can apply."""
    allocated: int | None = None
    reserved: int | None = None
    device: int | None = None
    sentence: str
    """Sentence that says what is counted, and how much less or more the alternative takes."""
    is_warning: bool

    @property
    def size(self) -> int:
        """The larger of the differences of what is allocated and of the device's memory."""
        return max(abs(_UNKNOWN if each is None else each) for each in (self.allocated, self.device))


class UnstatedSettings(Struct, frozen=True, kw_only=True):
    """Findings of the closed form about a job, at the cost of several replays; they can be kept as JSON."""

    changes: tuple[Change, ...]
    """Differences of the job from those that it may be instead."""
    lengths_cache: int
    """Bytes that the allocator keeps besides if batches differ in length."""


def find_unstated(
    job: Job, arch: Architecture | CannotTellError, gpu: Gpu | None = None, conf: str | None = None
) -> UnstatedSettings:
    """Return what a job leaves open.

    Args:
        job: the job.
        arch: the model's shape, or why it is not known.
        gpu: the GPU.
        conf: the allocator's settings, as in ``PYTORCH_CUDA_ALLOC_CONF``; None: those that the job's framework makes.

    Raises:
        InputError: the job is spread over more than the model has.
    """
    from ..reserved.replayed import (
        lengths_cache,  # 20 ms with the closed form, which a budget with what was found needs not
    )

    return UnstatedSettings(
        changes=unstated_changes(job, arch, gpu, conf), lengths_cache=lengths_cache(job, arch, gpu, conf)
    )


def with_unstated_settings(budget: Budget, found: UnstatedSettings) -> Budget:
    """Return the budget with a range that allows for what its job leaves open, and sentences about it."""
    return _with_varying_lengths(_with_unstated(budget, found.changes), found.lengths_cache)


def _with_varying_lengths(budget: Budget, cache: int) -> Budget:
    """Return the budget with what the allocator keeps besides if its job's batches differ in length, and a sentence.

    Where the job does not say it, and its framework pads a batch to its longest sequence by default, there is only the
    sentence: memory beyond the range is still shown as a divergence.
    """
    known = budget.job.training.varying_lengths is not None
    if cache <= (0 if known else _SMALL * budget.peak.reserved_bytes):
        return budget
    lengths = "Batch lengths vary, so" if known else "If batch lengths vary (training.varying_lengths),"
    keeps = f"torch's cache may grow {format_gib(cache)} GiB past this range; it is freed before an out-of-memory error"
    peak = replace(budget.peak, cache_bytes=cache if known else 0)
    return replace(budget, peak=peak, assumptions=(*budget.assumptions, f"{lengths} {keeps}."))


def unstated_changes(
    job: Job, arch: Architecture | CannotTellError, gpu: Gpu | None = None, conf: str | None = None
) -> tuple[Change, ...]:
    """Return how far the other sides lie from the job by the closed form: those that differ by more than 1 %.

    Args:
        job: the job.
        arch: the model's shape, or why it is not known.
        gpu: the GPU.
        conf: as ``find_unstated`` has it.
    """
    if isinstance(arch, CannotTellError) or job.training.mode != "train":
        return ()
    resolved = resolve_job(job)
    sides = [
        *older_libraries(resolved),
        *other_sizes(resolved),
        *other_versions(resolved, arch),
        *other_units(resolved),
        *reduced_gradients(resolved),
    ]
    usual = _peak(job, arch, gpu, conf) if sides else None
    if usual is None:
        return ()
    found = [(side, _peak(side.job, arch if side.job.model == job.model else None, gpu, conf)) for side in sides]
    changes = [_change(side, usual, peak) for side, peak in found if peak is not None or side.is_warning]
    return tuple(change for change in changes if change.size > _SMALL * usual.device_bytes)


def _peak(job: Job, arch: Architecture | None, gpu: Gpu | None, conf: str | None) -> Peak | None:
    """Return the peak of a job together with its other models; None if the closed form cannot estimate it."""
    try:
        if arch is None:
            model = resolve_model(job.model)
            arch = read_architecture(model.config, job.model.task, where=model.where)
        budget = closed_form(job, arch, count_parameters(arch), gpu=gpu, words=False, doubts=False, conf=conf)
        return with_other_models(budget, find_held_models(job, arch, None)).peak if job.other_models else budget.peak
    except VramtopError:
        return None


def _change(side: Side, usual: Peak, peak: Peak | None) -> Change:
    if peak is None:
        sentence = side.sentence.format(change="takes an amount that is not known; the range allows for twice as much")
        return Change(source=side.source, sentence=f"{sentence}.", is_warning=True)
    allocated = peak.allocated_bytes - usual.allocated_bytes
    device = peak.device_bytes - usual.device_bytes
    larger = max(abs(allocated), abs(device))
    verb, size = ("takes", device) if 2 * abs(device) > larger else ("allocates", allocated)
    change = f"{verb} {_size(abs(size))} {'more' if size > 0 else 'less'}"
    return Change(
        source=side.source,
        allocated=allocated,
        reserved=peak.reserved_bytes - usual.reserved_bytes,
        device=device,
        sentence=f"{side.sentence.format(change=change)}; the range allows for both.",
        is_warning=side.is_warning,
    )


def _size(size: int) -> str:
    return f"{format_gib(size)} GiB" if size >= GIB // 10 else size_text(size)


def _with_unstated(budget: Budget, changes: Sequence[Change]) -> Budget:
    """Return the budget with a range that holds the other sides, and a sentence about each source.

    Args:
        budget: made by any method.
        changes: of its job, by the closed form.
    """
    if not changes:
        return budget
    furthest = _furthest(changes)
    return replace(
        budget,
        peak=_widened(budget.peak, changes),
        stages=tuple(_widened_stage(stage, changes) for stage in budget.stages),
        warnings=(*budget.warnings, *(each.sentence for each in furthest if each.is_warning)),
        assumptions=(*budget.assumptions, *(each.sentence for each in furthest if not each.is_warning)),
        doubt=furthest[-1].sentence,
        doubt_bytes=min(furthest[-1].size, budget.peak.device_bytes),
    )


def _furthest(changes: Sequence[Change]) -> list[Change]:
    """Return the largest change of each source, the largest of all last."""
    found: dict[str, Change] = {}
    for change in sorted(changes, key=lambda each: (each.device is None, abs(each.device or 0), each.size)):
        found.pop(change.source, None)
        found[change.source] = change
    return list(found.values())


def _widened(peak: Peak, changes: Sequence[Change]) -> Peak:
    device = _span(peak.device_range, peak.device_bytes, changes, "device")
    allocated, reserved = peak.allocated_range, peak.reserved_range
    return replace(
        peak,
        low_bytes=device.low_bytes,
        high_bytes=device.high_bytes,
        allocated_range=allocated and _span(allocated, peak.allocated_bytes, changes, "allocated"),
        reserved_range=reserved and _span(reserved, peak.reserved_bytes, changes, "reserved"),
    )


def _widened_stage(stage: RankPeak, changes: Sequence[Change]) -> RankPeak:
    device = _span(Span(stage.low_bytes, stage.high_bytes), stage.device_bytes, changes, "device")
    return replace(stage, low_bytes=device.low_bytes, high_bytes=device.high_bytes)


def _span(span: Span, counted: int, changes: Sequence[Change], name: str) -> Span:
    """Return the range with the other sides of every source, of which one at most is true.

    Another side is as uncertain, for its size, as what is counted.
    """
    by_source: dict[str, list[int]] = {}
    for change in changes:
        difference = getattr(change, name)
        by_source.setdefault(change.source, [0]).append(counted if difference is None else difference)
    less, more = -sum(map(min, by_source.values())), sum(map(max, by_source.values()))
    low, high = span.low_bytes / max(1, counted), span.high_bytes / max(1, counted)
    return span.moved(0, less=round(less * min(1.0, low)), more=round(more * max(1.0, high)))
