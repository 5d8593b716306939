"""TRL's trainers: what each method holds and computes, for a job whose other settings are known."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from ...job.job import Job
from ...job.rules.dtype_widths import is_four_bit
from ...job.rules.strategies import DTYPE_NAMES, HALF, STRATEGIES
from ...job.settled import trainer_precision
from ..source.evidence import Finding, FindingCollector
from ..source.filesystem_view import FilesystemView
from ..source.settings import LayeredSettings, Setting
from .defaults import trl_defaults
from .methods import METHODS
from .trainer import LENGTH, Setup, TrlTrainer

_ORIGIN = "the job"
_BATCH = ("training.micro_batch", "training.gradient_accumulation")
_KNOWN = (*_BATCH, LENGTH)
"""Keys that the job decides, whatever the method."""


def read_method(
    name: str, job: Job, arguments: Mapping[str, tuple[Any, str]] = MappingProxyType({})
) -> tuple[Finding, ...]:
    """Return what a method adds to a job: sequences, loss, models beside the trained one, and text that it generates.

    Args:
        name: of a method in ``METHODS``.
        job: the job, whose batch and length stay as they are.
        arguments: of its trainer by TRL's names, each with its origin.
    """
    method, findings, training = METHODS[name], FindingCollector(), job.training
    versions = {} if job.software.trl is None else {"trl": job.software.trl}
    given = {key: Setting(value=value, origin=origin) for key, (value, origin) in arguments.items()}
    settings = LayeredSettings({**_settings(job), **given}, trl_defaults(name, versions))
    trainer = TrlTrainer(method=method, settings=settings, versions=versions, findings=findings)
    for key, head in (("model.task", method.task), ("model.num_labels", method.num_labels)):
        if head is not None:
            findings.infer(key, head, f"TRL's {name} trainer")
    for key, value in zip(_BATCH, (training.micro_batch, training.gradient_accumulation), strict=True):
        findings.record(key, value, _ORIGIN)
    trainer.read_length(Setting(value=training.sequence_length, origin=_ORIGIN))
    trainer.read_loss()
    _read_arguments(settings, findings, job)
    strategy = STRATEGIES[job.parallel.strategy]
    zero3 = strategy.deepspeed and strategy.zero_stage == 3
    half, dash, _ = training.precision.partition("-")
    setup = Setup(
        adapters=job.lora is not None,
        sharding="zero3" if zero3 else "fsdp" if strategy.fsdp else None,
        engine_dtype=half if dash and strategy.deepspeed else None,
        filesystem=FilesystemView(cwd=Path()),
        held=[(msgspec.to_builtins(model), _ORIGIN) for model in job.other_models],
    )
    trainer.read_other_models(setup)
    if job.rollout is None:
        trainer.read_rollout(job.parallel.data_ranks)
    return tuple(finding for finding in findings.build().findings if finding.key not in _KNOWN)


def _read_arguments(settings: LayeredSettings, findings: FindingCollector, job: Job) -> None:
    """Record the precision and the checkpointing of a configuration of TRL's in which nothing else is set."""
    loaded, mixed = settings.find("dtype"), settings.find_true("bf16_unless_fp16")
    if job.lora is not None and mixed is not None and job.training.precision in HALF:
        findings.infer("lora.autocast", True, mixed.origin)
    if loaded is not None:
        kind = "bf16" if mixed is not None else None
        precision = trainer_precision(DTYPE_NAMES.get(str(loaded.value)), kind, keeps_fp32=False)
        findings.infer("training.precision", precision, loaded.origin)
    if (recomputed := settings.find_true("activation_checkpointing")) is not None:
        findings.infer("training.activation_checkpointing", "full", recomputed.origin)


def _settings(job: Job) -> dict[str, Setting]:
    """Return what the job sets by the names that TRL and transformers have for it."""
    values = {
        "load_in_4bit": is_four_bit(job.lora),
        "load_in_8bit": job.lora is not None and job.lora.quantization == "int8",
        "use_liger_kernel": job.training.loss == "fused-linear",
    }
    return {name: Setting(value=True, origin=_ORIGIN) for name, value in values.items() if value}
