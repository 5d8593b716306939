"""Reads what TRL's trainer of a method holds and computes, for a job whose other settings are known."""

from pathlib import Path

import msgspec

from ...job import Job, is_four_bit, trainer_precision
from ...job.rules import DTYPE_NAMES, STRATEGIES
from ..source import FilesystemView, Finding, FindingCollector, LayeredSettings, Setting
from .defaults import trl_defaults
from .lengths import read_length
from .loss import read_loss
from .methods import METHODS
from .other_models import Setup, read_other_models
from .rollout import read_rollout

_ORIGIN = "the job"
_BATCH = ("training.micro_batch", "training.gradient_accumulation")
_KNOWN = (*_BATCH, "training.sequence_length")
"""Keys that the job decides, whatever the method."""


def read_method(name: str, job: Job) -> tuple[Finding, ...]:
    """Return what a method adds to a job: sequences, loss, models beside the trained one, and text that it generates.

    Args:
        name: of a method in ``METHODS``.
        job: the job, whose batch and length stay as they are.
    """
    method, findings = METHODS[name], FindingCollector()
    versions = {} if job.software.trl is None else {"trl": job.software.trl}
    settings = LayeredSettings(_settings(job), trl_defaults(name, versions))
    training = job.training
    for key, value in zip(_BATCH, (training.micro_batch, training.gradient_accumulation), strict=True):
        findings.record(key, value, _ORIGIN)
    length = Setting(value=training.sequence_length, origin=_ORIGIN)
    read_length(method, settings, versions, findings, whole=length)
    read_loss(method, settings, versions, findings)
    _read_arguments(settings, findings)
    strategy = STRATEGIES[job.parallel.strategy]
    zero3 = strategy.deepspeed and strategy.zero_stage == 3
    setup = Setup(
        adapters=job.lora is not None,
        sharding="zero3" if zero3 else "fsdp" if strategy.fsdp else None,
        filesystem=FilesystemView(cwd=Path()),
        held=[(msgspec.to_builtins(model), _ORIGIN) for model in job.other_models],
    )
    read_other_models(method, settings, versions, findings, setup)
    if job.rollout is None:
        read_rollout(method, settings, versions, findings, ranks=job.parallel.data_ranks)
    return tuple(finding for finding in findings.build().findings if finding.key not in _KNOWN)


def _read_arguments(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record the precision and the checkpointing of a configuration of TRL's in which nothing else is set."""
    loaded, mixed = settings.find("dtype"), settings.find_true("bf16_unless_fp16")
    if loaded is not None:
        kind = "bf16" if mixed is not None else None
        precision = trainer_precision(DTYPE_NAMES.get(str(loaded.value)), kind, keeps_fp32=False)
        findings.record("training.precision", precision, loaded.origin, written=False)
    if (recomputed := settings.find_true("activation_checkpointing")) is not None:
        findings.record("training.activation_checkpointing", "full", recomputed.origin, written=False)


def _settings(job: Job) -> dict[str, Setting]:
    """Return what the job sets by the names that TRL and transformers have for it."""
    values = {
        "load_in_4bit": is_four_bit(job.lora),
        "load_in_8bit": job.lora is not None and job.lora.quantization == "int8",
        "use_liger_kernel": job.training.loss == "fused-linear",
    }
    return {name: Setting(value=True, origin=_ORIGIN) for name, value in values.items() if value}
