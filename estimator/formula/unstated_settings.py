"""Settings that a job leaves open and memory depends on: versions of libraries, units of FSDP, lengths of batches."""

from collections.abc import Iterator, Sequence
from datetime import date, timedelta

from msgspec import Struct

from ..budget import Budget, Peak, RankPeak, Span
from ..common.errors import CannotTellError, VramtopError
from ..common.library_versions import older
from ..common.records import replace
from ..common.sizes import format_gib
from ..job.gpu_catalogue import Gpu
from ..job.job import Job
from ..job.resolved_job import ResolvedJob, resolve_job
from ..job.rules.dtype_widths import is_four_bit
from ..model.architecture import Architecture
from ..model.find_config import resolve_model
from ..model.read_architecture import count_parameters, read_architecture
from .closed_form import closed_form
from .fsdp1 import unit_rule
from .other_models import find_held_models, with_other_models

# Widens a budget's range to the other sides of what its job leaves open.


_UNKNOWN = 1 << 62
"""Sorts differences that are not known behind all others."""


class Change(Struct, frozen=True, kw_only=True):
    """Difference of another setting from the one that is counted, in bytes; None: not known, as much again at most."""

    source: str
    """Setting that is left open; the others of one source exclude each other."""
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


def with_unstated(budget: Budget, changes: Sequence[Change]) -> Budget:
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


# Settings that a job leaves open, as the closed form tells them: alike for budgets made by any method.


_SMALL = 0.01
"""Share of the reserved bytes below which it does not matter whether lengths differ."""
_UNKNOWN_LENGTHS = "If batch lengths vary (training.varying_lengths),"


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
    from .reserved.replayed import (
        lengths_cache,  # 20 ms with the closed form, which a budget with what was found needs not
    )

    return UnstatedSettings(changes=unstated_changes(job, arch, gpu), lengths_cache=lengths_cache(job, arch, gpu, conf))


def with_unstated_settings(budget: Budget, found: UnstatedSettings) -> Budget:
    """Return the budget with a range that allows for what its job leaves open, and sentences about it."""
    return _with_varying_lengths(with_unstated(budget, found.changes), found.lengths_cache)


def _with_varying_lengths(budget: Budget, cache: int) -> Budget:
    """Return the budget with what the allocator keeps besides if its job's batches differ in length, and a sentence.

    Where the job does not say it, and its framework pads a batch to its longest sequence by default, there is only the
    sentence: memory beyond the range is still shown as a divergence.
    """
    known = budget.job.training.varying_lengths is not None
    if cache <= (0 if known else _SMALL * budget.peak.reserved_bytes):
        return budget
    lengths = "Batch lengths vary, so" if known else _UNKNOWN_LENGTHS
    keeps = f"torch's cache may grow {format_gib(cache)} GiB past this range; it is freed before an out-of-memory error"
    peak = replace(budget.peak, cache_bytes=cache if known else 0)
    return replace(budget, peak=peak, assumptions=(*budget.assumptions, f"{lengths} {keeps}."))


# A job as it may be where it does not say how it is.


class Side(Struct, frozen=True, kw_only=True):
    """Another job that the job may be, and what to say of it."""

    source: str
    """Setting that is left open; the others of one source exclude each other."""
    job: Job
    sentence: str
    """Sentence about what is counted, without a full stop; ``{change}`` stands for ``takes 2.1 GiB more``."""
    is_warning: bool = False
    """The job says something that is not understood; otherwise it says nothing."""


# FSDP's units, and what it shards, where that is not understood or depends on who wraps the model.


def other_units(job: ResolvedJob) -> Iterator[Side]:
    """Yield the job with the whole model as one unit, where it may be that.

    A class to wrap leaves most of the model to the root if it is a small part of a block, and all of it if it does not
    occur. The Trainer gives accelerate peft's wrap policy, which FSDP 2 under accelerate does not follow.
    """
    parallel = job.parallel
    if job.shards.weights == 1 or not job.strategy.fsdp or parallel.fsdp_units is not None:
        return
    whole = replace(job.job.parallel, fsdp_units="model", fsdp_wrap_classes=None, fsdp_min_unit_parameters=None)
    one_unit = replace(job.job, parallel=whole)
    if parallel.fsdp_wrap_classes and not unit_rule(job).understood:
        names = ", ".join(parallel.fsdp_wrap_classes)
        sentence = (
            f"fsdp_wrap_classes: the contents of {names} are not known, so FSDP is assumed to wrap blocks. If it "
            "leaves them to the root unit, the step {change}"
        )
        yield Side(source="units", job=one_unit, sentence=sentence, is_warning=True)
    elif job.strategy.fsdp2 and job.lora is not None and job.framework.trainer:
        sentence = (
            "FSDP 2 is assumed to wrap blocks. Under transformers' Trainer it wraps no block of a model with "
            'adapters (parallel.fsdp_units = "model"); then the step {change}'
        )
        yield Side(source="units", job=one_unit, sentence=sentence, is_warning=True)


def unsharded_weights(job: ResolvedJob) -> Iterator[Side]:
    """Yield the job with whole 4-bit weights on each rank.

    FSDP 2 under accelerate shards them only where they are stored in a floating type (``fsdp2_prepare_model`` of
    accelerate 1.15, "incompatible_params4bit"); bitsandbytes' default ``bnb_4bit_quant_storage`` is uint8.
    """
    parallel = job.parallel
    if job.shards.weights == 1 or not (job.strategy.fsdp2 and is_four_bit(job.lora) and job.framework.trainer):
        return
    whole = replace(
        job.job.parallel,
        strategy="ddp",
        data_shard=1,
        data_replicate=parallel.data_shard * parallel.data_replicate,
        fsdp_units=None,
    )
    sentence = (
        "4-bit weights are assumed to be sharded, as with a floating-point bnb_4bit_quant_storage. With the default, "
        "uint8, FSDP 2 under accelerate keeps them whole on each rank; then the step {change}"
    )
    yield Side(source="storage", job=replace(job.job, parallel=whole), sentence=sentence, is_warning=True)


# Older versions of the libraries that a job does not name, where its step may have been another one.
#
# Each rule of ``job.rules.version_rules`` that takes memory has a row. A side that is older than the versions which
# the job does state is possible if it was still in use at their time.


_LATEST = date(2026, 8, 1)
"""About the time of the newest versions whose sources the rules follow."""
_IN_USE, _IN_USE_UNSTATED = timedelta(days=365), timedelta(days=2 * 365)
"""Time for which a version is taken to be in use after a newer one has changed the rule."""
_RELEASES = (
    ("torch", ((2, 0), date(2023, 3, 15)), ((2, 2), date(2024, 1, 30)), ((2, 4), date(2024, 7, 24))),
    ("torch", ((2, 5), date(2024, 10, 17)), ((2, 6), date(2025, 1, 29)), ((2, 7), date(2025, 4, 23))),
    ("torch", ((2, 8), date(2025, 8, 6)), ((2, 9), date(2025, 10, 15)), ((2, 10), date(2026, 1, 21))),
    ("transformers", ((4, 30), date(2023, 6, 8)), ((4, 38), date(2024, 2, 21)), ((4, 43), date(2024, 7, 23))),
    ("transformers", ((4, 46), date(2024, 10, 24)), ((4, 49), date(2025, 2, 17)), ((4, 52), date(2025, 5, 20))),
    ("transformers", ((4, 55), date(2025, 8, 5)), ((5, 0), date(2026, 1, 26))),
)
"""Releases from which a stated version tells the time of a job."""


class _Change(Struct, frozen=True, kw_only=True):
    """A version that changed what a step takes."""

    library: str
    before: str
    """A version before the change."""
    since: str
    on: date
    framework: str
    """A library that the job's framework needs for the change to concern it."""

    def concerns(self, job: ResolvedJob, arch: Architecture) -> bool:
        """Return True if the step of such a job may have changed."""
        training = job.training
        if self.library == "transformers":
            if self.since == "5.0":
                return bool(arch.moe_layers)
            if self.since == "4.52":
                return job.strategy.flat_parameters and job.lora is not None and job.recomputes
            return training.loss == "full" and arch.has_vocab_head and job.framework.loss_in_forward
        if self.library == "trl":
            return training.loss == ("chunked" if self.since == "1.15" else "log-probs")
        if self.library == "megatron_fsdp":
            return job.strategy.megatron_fsdp
        if self.library == "bitsandbytes":
            return is_four_bit(job.lora)
        return True


_CHANGES = tuple(
    _Change(library=library, before=before, since=since, on=on, framework=framework)
    for framework, library, before, since, on in (
        ("transformers", "transformers", "4.45", "4.46", date(2024, 10, 24)),
        ("transformers", "transformers", "4.48", "4.49", date(2025, 2, 17)),
        ("transformers", "transformers", "4.51", "4.52", date(2025, 5, 20)),
        ("transformers", "transformers", "4.57", "5.0", date(2026, 1, 26)),
        ("transformers", "trl", "0.14", "0.15", date(2025, 2, 13)),
        ("transformers", "trl", "1.14", "1.15", date(2026, 8, 1)),
        ("transformers", "bitsandbytes", "0.43.1", "0.43.2", date(2024, 7, 23)),
        ("litgpt", "bitsandbytes", "0.43.1", "0.43.2", date(2024, 7, 23)),
        ("litgpt", "litgpt", "0.1", "0.2", date(2024, 4, 1)),
        ("litgpt", "litgpt", "0.4.5", "0.4.6", date(2024, 7, 31)),
        ("torchtitan", "torchtitan", "0.0.1", "0.0.2", date(2024, 6, 12)),
        ("torchtitan", "torchtitan", "0.0.2", "0.1", date(2025, 6, 17)),
        ("torchtitan", "torchtitan", "0.1", "0.2", date(2025, 10, 17)),
        ("torchtitan", "torchtitan", "0.2.1", "0.2.2", date(2026, 2, 1)),
        ("nemo-automodel", "megatron_fsdp", "0.2.3", "0.3", date(2026, 2, 26)),
        ("nemo-automodel", "megatron_fsdp", "0.4", "0.5", date(2026, 6, 22)),
    )
)


def other_versions(job: ResolvedJob, arch: Architecture) -> Iterator[Side]:
    """Yield the job with an older version of a library that it does not name, for each that may matter."""
    stated, time = job.software, _time(job)
    for change in _CHANGES:
        if getattr(stated, change.library) is not None or change.framework not in job.framework.libraries:
            continue
        if change.library in ("torchtitan", "megatron_fsdp") and stated.torch is not None:
            continue  # its version is taken from torch's
        oldest = (time or _LATEST) - (_IN_USE if time else _IN_USE_UNSTATED)
        if change.on < oldest or not change.concerns(job, arch):
            continue
        yield Side(
            source=change.library,
            job=_with(job.job, change.library, change.before, job),
            sentence=(
                f"The version of {change.library} is not stated, so the newest is assumed; with {change.before} "
                f"(--set software.{change.library}={change.before}) the step {{change}}"
            ),
        )


def _with(job: Job, library: str, version: str, resolved: ResolvedJob) -> Job:
    """Return the job with a version; how a quantized model is prepared has a range of its own."""
    lora = job.lora
    if lora is not None and resolved.quantization is not None and resolved.adapters.prepared == "none":
        own = "fp32" if resolved.framework.fp32_adapters else None
        dtype = lora.adapter_dtype or resolved.adapters.dtype or own
        lora = replace(lora, kbit_preparation=False, adapter_dtype=dtype)
    return replace(job, lora=lora, software=replace(job.software, **{library: version}))


def _time(job: ResolvedJob) -> date | None:
    """Return about when the job ran: after the newest release that it states; None: it states none."""
    found = [
        on
        for library, *releases in _RELEASES
        for version, on in releases
        if (stated := getattr(job.software, library)) is not None and not older(stated, *version)
    ]
    return max(found, default=None)


# Differences of a job from those that it may be instead, by the closed form.


def unstated_changes(job: Job, arch: Architecture | CannotTellError, gpu: Gpu | None = None) -> tuple[Change, ...]:
    """Return how far the other sides lie from the job by the closed form: those that differ by more than 1 %.

    Args:
        job: the job.
        arch: the model's shape, or why it is not known.
        gpu: the GPU.
    """
    if isinstance(arch, CannotTellError) or job.training.mode != "train":
        return ()
    resolved = resolve_job(job)
    sides = [*other_versions(resolved, arch), *other_units(resolved), *unsharded_weights(resolved)]
    usual = _peak(job, arch, gpu) if sides else None
    if usual is None:
        return ()
    found = [(side, _peak(side.job, arch if side.job.model == job.model else None, gpu)) for side in sides]
    changes = [_change(side, usual, peak) for side, peak in found if peak is not None or side.is_warning]
    return tuple(change for change in changes if change.size > _SMALL * usual.device_bytes)


def _peak(job: Job, arch: Architecture | None, gpu: Gpu | None) -> Peak | None:
    """Return the peak of a job together with its other models; None if the closed form cannot estimate it."""
    try:
        if arch is None:
            model = resolve_model(job.model)
            arch = read_architecture(model.config, job.model.task, where=model.where)
        budget = closed_form(job, arch, count_parameters(arch), gpu=gpu, words=False, doubts=False)
        return with_other_models(budget, find_held_models(job, arch, None)).peak if job.other_models else budget.peak
    except VramtopError:
        return None


def _change(side: Side, usual: Peak, peak: Peak | None) -> Change:
    if peak is None:
        return _unknown(side)
    allocated = peak.allocated_bytes - usual.allocated_bytes
    device = peak.device_bytes - usual.device_bytes
    larger = max(abs(allocated), abs(device))
    verb, size = ("takes", device) if 2 * abs(device) > larger else ("allocates", allocated)
    change = f"{verb} {format_gib(abs(size))} GiB {'more' if size > 0 else 'less'}"
    return Change(
        source=side.source,
        allocated=allocated,
        reserved=peak.reserved_bytes - usual.reserved_bytes,
        device=device,
        sentence=f"{side.sentence.format(change=change)}; the range allows for both.",
        is_warning=side.is_warning,
    )


def _unknown(side: Side) -> Change:
    sentence = side.sentence.format(change="takes an amount that is not known; the range allows for twice as much")
    return Change(source=side.source, sentence=f"{sentence}.", is_warning=True)
