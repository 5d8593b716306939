"""Settles what a job leaves to its framework: ``auto`` becomes the value that ``rules.defaults`` has for it."""

from typing import Any

from msgspec.structs import replace

from .job import Job
from .rules.dtype_widths import quantization, uses_deepspeed
from .rules.frameworks import FRAMEWORKS
from .rules.library_defaults import AUTO, STORED, usual
from .rules.strategies import HALF, STRATEGIES
from .settings import Inference


def settled(job: Job, stored: str | None = None) -> Job:
    """Return the job without ``auto``.

    Args:
        job: the job.
        stored: type of the checkpoint's weights (``bf16``, ``fp16``, ``fp32``); None: not known, so bf16.
    """
    training = job.training
    if training.precision == AUTO:
        training = replace(training, precision=_precision(job, stored or "bf16"))
    if training.optimizer == AUTO:
        training = replace(training, optimizer=_optimizer(job))
    return job if training is job.training else replace(job, training=training)


def precision_under(job: Job, *, mixed: str | None, weights: str | None, stored: str | None) -> str:
    """Return the precision of a job for which flags name mixed precision or the type of the weights.

    Args:
        job: the job.
        mixed: ``bf16`` or ``fp16``, as the Trainer's flags of that name; None: not set.
        weights: the type in which the weights are loaded; None: not set. Then mixed precision is taken to mean those of
            a model that is not trained, and those of the other 16-bit type under adapters.
        stored: type of the checkpoint's weights; None: not known, so bf16.
    """
    usually = usual(job.training.framework, "training.precision", _versions(job))
    if usually not in (STORED, "fp32"):
        return f"{mixed or weights}-mixed" if usually.endswith("-mixed") and weights not in HALF else mixed or "fp32"
    strategy = STRATEGIES[job.parallel.strategy]
    trains_all = job.training.mode == "train" and job.lora is None
    keeps_fp32 = strategy.deepspeed or (strategy.fsdp and trains_all)
    if weights is None:
        loaded = (stored or "bf16") if usually == STORED else "fp32"
        if loaded == mixed == "fp16" and trains_all:
            loaded = "fp32"  # torch's GradScaler refuses gradients in fp16
        means_weights = job.training.mode == "inference" or (job.lora is not None and loaded in HALF)
        weights = mixed if mixed and usually == STORED and means_weights else loaded
    return trainer_precision(weights, mixed, keeps_fp32=keeps_fp32)


def trainer_precision(weights: str | None, mixed: str | None, *, keeps_fp32: bool) -> str:
    """Return the precision of weights of a type under mixed precision, as transformers' Trainer combines them.

    Args:
        weights: ``bf16``, ``fp16`` or ``fp32``; None: not known, so fp32.
        mixed: ``bf16`` or ``fp16``; anything else: none.
        keeps_fp32: under mixed precision, trained weights are kept in fp32 besides (DeepSpeed, accelerate's FSDP).
    """
    if weights in HALF and not (mixed in HALF and keeps_fp32):
        return str(weights)
    return f"{mixed}-mixed" if mixed in HALF else "fp32"


def settles(settled: Job, job: Job) -> bool:
    """Return True if a settled job is this one, with a value for each setting that it leaves open.

    Args:
        settled: the job of a budget.
        job: the job as somebody gave it.
    """
    training = job.training
    if training.precision == AUTO:
        training = replace(training, precision=settled.training.precision)
    if training.optimizer == AUTO:
        training = replace(training, optimizer=settled.training.optimizer)
    lora, inference, unsure = job.lora, job.inference, job.unsure
    if lora is not None and settled.lora is not None and lora.quantization == "none":
        lora = replace(lora, quantization=settled.lora.quantization)
    if settled.inference is not None and (inference or Inference()).weights == AUTO:
        inference = replace(inference or Inference(), weights=settled.inference.weights)
        unsure = replace(unsure, weights=settled.unsure.weights)
    return replace(job, training=training, lora=lora, inference=inference, unsure=unsure) == settled


USUAL_LORA_RANK = 16
"""Rank of adapters that are asked for without one."""
QLORA: dict[str, Any] = {"lora.targets": "all-linear", "lora.quantization": "nf4-double"}
"""What QLoRA is (arXiv:2305.14314), by job key."""


def quantized_adapters(job: Job) -> dict[str, Any]:
    """Return what QLoRA sets for a job, by job key; a job with adapters keeps their rank and layers."""
    own = {} if job.lora is None else {"lora.targets": job.lora.targets}
    rank = USUAL_LORA_RANK if job.lora is None else job.lora.rank
    return {"lora.rank": rank, **QLORA, **own, **preparation(job)}


def preparation(job: Job) -> dict[str, Any]:
    """Return what peft's ``prepare_model_for_kbit_training`` sets for a job over quantized weights, by job key.

    A sharded job leaves the casts to fp32 out; other frameworks than transformers do not call it.
    """
    strategy = STRATEGIES[job.parallel.strategy]
    if job.training.framework != "transformers" or job.training.mode != "train":
        return {}
    keys = ["training.activation_checkpointing"]
    if not (strategy.fsdp or strategy.zero_stage == 3):
        keys.append("lora.kbit_preparation")
    words = {key: usual("peft", key, {}) for key in keys}
    return {key: word == "true" if word in ("true", "false") else word for key, word in words.items()}


def served_precision(stored: str | None) -> str:
    """Return the type in which vLLM and SGLang run a checkpoint that is stored in a type; None: not known."""
    return "fp16" if stored == "fp32" else stored or "bf16"


def _precision(job: Job, stored: str) -> str:
    if job.is_served:
        return served_precision(stored)
    usually, strategy = (
        usual(job.training.framework, "training.precision", _versions(job)),
        STRATEGIES[job.parallel.strategy],
    )
    if usually == STORED:
        mixed = (
            stored
            if job.training.mode == "train" and uses_deepspeed(FRAMEWORKS[job.training.framework], strategy)
            else None
        )
        return trainer_precision(stored, mixed, keeps_fp32=True)
    if job.training.framework == "litgpt" and quantization(job.lora):
        return "bf16"  # it refuses mixed precision over quantized weights
    return usually


def _optimizer(job: Job) -> str:
    if job.training.framework == "litgpt" and quantization(job.lora):
        return "paged-adamw"  # litgpt/utils.py, instantiate_bnb_optimizer
    return usual(job.training.framework, "training.optimizer", _versions(job))


def _versions(job: Job) -> dict[str, str | None]:
    return {"transformers": job.software.transformers, "torch": job.software.torch}
