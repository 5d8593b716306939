"""Jobs that a job may be instead, where it does not say how it is: other units of FSDP, older versions of libraries.

Each rule of ``job.rules.version_rules`` that takes memory has a row. A side that is older than the versions which
the job does state is possible if it was still in use at their time.
"""

from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

from msgspec import Struct

from ...common.library_versions import older
from ...common.records import replace
from ...job.job import Job
from ...job.job_file.changes import with_changes
from ...job.resolved_job import ResolvedJob
from ...job.rules.dtype_widths import is_four_bit
from ...job.settings import Uncertainties
from ...model.architecture import Architecture
from ..fsdp1 import unit_rule


class Side(Struct, frozen=True, kw_only=True):
    """Another job that the job may be, and what to say of it."""

    source: str
    """The setting that the job leaves open; of several jobs with the same source, it can only be one."""
    job: Job
    sentence: str
    """Sentence about what is counted, without a full stop; ``{change}`` stands for ``takes 2.1 GiB more``."""
    is_warning: bool = False
    """The job says something that is not understood; otherwise it says nothing."""


def other_units(job: ResolvedJob) -> Iterator[Side]:
    """Yield the job with the whole model as one unit, where it may be that.

    A class to wrap leaves most of the model to the root if it is a small part of a block, and all of it if it does not
    occur.
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


def reduced_gradients(job: ResolvedJob) -> Iterator[Side]:
    """Yield the job as older versions of accelerate ran it: gradients are reduced after each micro-batch.

    accelerate keeps them unsharded under FSDP 2 since 1.11 (``Accelerator.no_sync``, its pull request 3762).
    """
    unknown = job.software.transformers is None and job.parallel.sync_every_micro_batch is None
    if not (unknown and job.accumulates_unsharded and job.strategy.fsdp2 and job.framework.trainer):
        return
    parallel = replace(job.job.parallel, sync_every_micro_batch=True)
    sentence = (
        "accelerate is assumed to be 1.11 or newer. Before, FSDP 2 reduced gradients after each micro-batch "
        "(parallel.sync_every_micro_batch = true); then the step {change}"
    )
    yield Side(source="reductions", job=replace(job.job, parallel=parallel), sentence=sentence)


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
                return bool(arch.moe_layers) or arch.family == "falcon"  # its quantized layers, until 5.5
            if self.since == "4.52":
                return job.strategy.flat_parameters and job.lora is not None and job.recomputes
            if self.since == "4.49" and job.model.attention == "sdpa" and job.framework.transformers_models:
                return True  # heads were copied before sdpa, until 4.56
            return training.loss == "full" and arch.has_vocab_head and job.framework.loss_in_forward
        if self.library == "trl":
            return training.loss == ("chunked" if self.since == "1.15" else "log-probs")
        if self.library == "peft":
            return job.lora is not None and job.quantization is None and job.precision.half_weights
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
        ("transformers", "peft", "0.11", "0.12", date(2024, 7, 24)),
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
        if f"software.{change.library}" in job.job.unsure.older:
            continue  # another side has it
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


def older_libraries(job: ResolvedJob) -> Iterator[Side]:
    """Yield the job as the same script makes it with older libraries, where it is not known with which it runs."""
    changes = job.job.unsure.older
    versions = [f"{key.partition('.')[2]} {value}" for key, value in changes.items() if key.startswith("software.")]
    library = next((key for key in changes if key.startswith("software.")), "")
    others = [_setting(key, value) for key, value in changes.items() if not key.startswith("software.")]
    named = f" ({', '.join(others)})".replace("{", "{{").replace("}", "}}") if others else ""
    if changes:
        yield Side(
            source="older",
            job=with_changes(replace(job.job, unsure=Uncertainties()), changes),
            sentence=(
                f"Which versions the program runs with is not known (--set {library}=VERSION), so the newest that it "
                f"can run with are assumed; with {' and '.join(versions)}{named} the step {{change}}"
            ),
            is_warning=True,
        )


def other_sizes(job: ResolvedJob) -> Iterator[Side]:
    """Yield the job at the other sizes of settings that nothing states, such as the length of sequences."""
    for key, sizes in job.job.unsure.between.items():
        table, _, name = key.partition(".")
        assumed = getattr(getattr(job.job, table), name)
        for size in sizes:
            yield Side(
                source=key,
                job=with_changes(replace(job.job, unsure=Uncertainties()), {key: size}),
                sentence=(
                    f"{key} is not set, so {assumed:,} is assumed (--set {key}=N); with {size:,} the step {{change}}"
                ),
                is_warning=True,
            )


def _setting(key: str, value: Any) -> str:
    """Return a setting as people read it."""
    if value is None:
        return f"no {key}"
    if isinstance(value, (list, tuple, dict)):
        return key.replace("_", " ") if key.startswith("other_") else f"other {key}"
    return f"{key} = {value}"


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
