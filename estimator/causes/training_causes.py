"""The table of wrong settings of a training step: checkpointing, offload, accumulation, optimizer and adapters.

Scripts, defaults and launchers get these wrong; the comments give the reasons for each plausibility.
"""

from collections.abc import Iterator
from typing import Any

from ..job.resolved_job import ResolvedJob
from ..job.rules.optimizers.table import OPTIMIZERS
from ..job.settings import OptimizerName
from .cause_search import COMMON, RARE, SOME, UNLIKELY, USUAL, Cause, CauseRule, CauseSource

_OPTIMIZERS: dict[OptimizerName, float] = {
    "adamw": USUAL,  # torch's own choice on GPUs
    "adamw-fused": USUAL,  # transformers' default since 4.46
    "adamw-8bit": SOME,
    "paged-adamw-8bit": SOME,
    "adafactor": RARE,
    "muon": UNLIKELY,
    "lion": UNLIKELY,
    "sgd": UNLIKELY,
}
"""Plausibility of each optimizer; of those that need the same memory only one is listed."""
_SAME_MEMORY = {"sgd-momentum": "lion"}
"""Optimizers that are not listed, and the listed one that needs the same memory."""


def _trains_quantized(job: ResolvedJob) -> bool:
    return job.quantization is not None


def _other_optimizers(job: ResolvedJob) -> Iterator[Cause]:
    for name, plausibility in _OPTIMIZERS.items():
        other = OPTIMIZERS[name]
        now = job.optimizer.name
        if name in (now, _SAME_MEMORY.get(now)) or (other.paged and job.optimizer.paged):
            continue
        resident = name == job.optimizer.unpaged
        description = f"the optimizer is {other.description}"
        yield Cause(
            name=f"optimizer {name}",
            description="the optimizer states are on the GPU, not paged" if resident else description,
            plausibility=SOME if resident else plausibility,
            changes={"training.optimizer": name},
        )


_EVALUATION_BATCH = 8
"""transformers' default of ``per_device_eval_batch_size``."""


def _evaluation_is_not_counted(job: ResolvedJob) -> bool:
    training = job.training
    return job.framework.evaluates and training.evaluation_batch is None and training.micro_batch < _EVALUATION_BATCH


def _second_model(job: ResolvedJob) -> dict[str, Any]:
    return {"other_models": [{"role": "ema", "sharded": job.shards.weights > 1}]}


def _may_be_preference_training(job: ResolvedJob) -> bool:
    # with adapters the reference is the model without them
    return not job.job.other_models and job.model.task == "causal-lm" and job.lora is None


def _larger_ranks(job: ResolvedJob) -> Iterator[Cause]:
    if job.lora is None:
        return
    rank = job.lora.rank
    for factor in (4, 16):
        yield Cause(
            name="larger rank",
            description=f"the adapters' rank is {rank * factor}, not {rank}",
            plausibility=UNLIKELY,
            changes={"lora.rank": rank * factor},
        )


TRAINING_CAUSES: tuple[CauseSource, ...] = (
    # a flag that the script's own loop never reads, or a model that was wrapped before it was set
    CauseRule(
        name="checkpointing off",
        description="activation checkpointing is off",
        applies=lambda job: job.recomputes,
        plausibility=lambda job: USUAL if job.recomputes_selectively else COMMON,
        changes={"training.activation_checkpointing": "none"},
        fix="make sure that the script calls model.gradient_checkpointing_enable() or passes the setting to the "
        "trainer",
    ),
    # trl and unsloth switch it on by default, and so does peft's prepare_model_for_kbit_training
    CauseRule(
        name="checkpointing on",
        description="activation checkpointing is on",
        applies=lambda job: job.training.activation_checkpointing != "full",
        plausibility=lambda job: COMMON if _trains_quantized(job) else USUAL,
        changes={"training.activation_checkpointing": "full"},
    ),
    CauseRule(
        name="checkpointing selective",
        description="activation checkpointing is selective",
        applies=lambda job: not job.recomputes_selectively,
        plausibility=lambda job: SOME if job.framework.selective_checkpointing else UNLIKELY,  # their own default
        changes={"training.activation_checkpointing": "selective"},
    ),
    CauseRule(
        name="activation offload off",
        description="activations stay on the GPU (no offload)",
        applies=lambda job: job.training.activation_offload,
        plausibility=USUAL,
        changes={"training.activation_offload": False},
    ),
    CauseRule(
        name="activation offload on",
        description="activations are offloaded to the host",
        applies=lambda job: not job.training.activation_offload,
        plausibility=UNLIKELY,  # no framework does so by default
        changes={"training.activation_offload": True},
    ),
    CauseRule(
        name="step after backward",
        description="gradients are kept until the optimizer step",
        applies=lambda job: job.training.optimizer_in_backward,
        plausibility=USUAL,
        changes={"training.optimizer_in_backward": False},
    ),
    CauseRule(
        name="accumulation off",
        description="gradients are not accumulated",
        applies=lambda job: job.training.gradient_accumulation > 1,
        plausibility=RARE,
        changes={"training.gradient_accumulation": 1},
    ),
    CauseRule(
        name="accumulation on",
        description="gradients accumulate over several micro-batches",
        applies=lambda job: job.training.gradient_accumulation == 1,
        plausibility=RARE,
        changes={"training.gradient_accumulation": 8},
    ),
    CauseRule(
        name="compile off",
        description="the model is not compiled",
        applies=lambda job: job.training.compile,
        plausibility=RARE,
        changes={"training.compile": False},
    ),
    CauseRule(
        name="inference alone",
        description="nothing is trained: inference or evaluation only",
        plausibility=UNLIKELY,
        changes={"training.mode": "inference"},
    ),
    _other_optimizers,
    CauseRule(
        name="adapters alone",
        description="only adapters are trained (LoRA)",
        applies=lambda job: job.lora is None,
        plausibility=lambda job: USUAL if job.framework.trainer else RARE,
        changes={"lora.rank": 16, "lora.targets": "all-linear"},
    ),
    CauseRule(
        name="all weights trained",
        description="all weights are trained, not only adapters",
        applies=lambda job: job.lora is not None,
        plausibility=SOME,
        changes={"lora": None},
        fix="pass the trainer the model that get_peft_model() returned, or peft_config",
    ),
    CauseRule(
        name="quantization off",
        description="the frozen weights are not quantized",
        applies=_trains_quantized,
        plausibility=COMMON,  # a quantization_config that never reaches from_pretrained
        changes={"lora.quantization": "none"},
        fix="pass quantization_config (BitsAndBytesConfig) to from_pretrained",
    ),
    CauseRule(
        name="quantization nf4",
        description="the frozen weights are quantized to 4 bits",
        applies=lambda job: job.lora is not None and not job.lora.quantization.startswith("nf4"),
        plausibility=lambda job: RARE if _trains_quantized(job) else SOME,
        changes={"lora.quantization": "nf4"},
    ),
    CauseRule(
        name="quantization int8",
        description="the frozen weights are quantized to 8 bits",
        applies=lambda job: job.lora is not None and job.lora.quantization != "int8",
        plausibility=RARE,
        changes={"lora.quantization": "int8"},
    ),
    CauseRule(
        name="fewer adapters",
        description="adapters are on the query and value projections only",
        applies=lambda job: job.lora is not None and job.lora.targets == "all-linear",
        plausibility=RARE,
        changes={"lora.targets": ["q_proj", "v_proj"]},
    ),
    CauseRule(
        name="more adapters",
        description="adapters are on all linear layers",
        applies=lambda job: job.lora is not None and job.lora.targets != "all-linear",
        plausibility=SOME,
        changes={"lora.targets": "all-linear"},
    ),
    _larger_ranks,
    CauseRule(
        name="upcast for k-bit training",
        description="embedding, head and norms are cast to fp32 (prepare_model_for_kbit_training)",
        applies=lambda job: _trains_quantized(job) and job.adapters.prepared == "none" and job.precision.half_weights,
        plausibility=USUAL,  # trl and many scripts call it
        changes={"lora.kbit_preparation": True},
    ),
    CauseRule(
        name="bucket views",
        description="gradients are views of DDP's buckets (gradient_as_bucket_view)",
        applies=lambda job: job.strategy.buckets and not job.parallel.gradient_as_bucket_view,
        plausibility=SOME,  # off by default in torch and in accelerate
        changes={"parallel.gradient_as_bucket_view": True},
    ),
    CauseRule(
        name="evaluation",
        description=f"evaluation runs with a batch of {_EVALUATION_BATCH} (the Trainer's default)",
        applies=_evaluation_is_not_counted,
        plausibility=SOME,
        changes={"training.evaluation_batch": _EVALUATION_BATCH},
        fix="set per_device_eval_batch_size, eval_accumulation_steps, or prediction_loss_only",
    ),
    CauseRule(
        name="second model",
        description="there is a second copy of the weights: a reference model, a teacher or a moving average",
        applies=lambda job: not job.job.other_models,
        plausibility=lambda job: SOME if _may_be_preference_training(job) else RARE,
        changes=_second_model,
    ),
    CauseRule(
        name="reference model and pairs",
        description="the job is preference training: a reference model, and both answers of a pair in one batch",
        applies=_may_be_preference_training,
        plausibility=RARE,
        changes=lambda job: {**_second_model(job), "training.micro_batch": 2 * job.training.micro_batch},
        fix="precompute the reference's log-probabilities (precompute_ref_log_probs), or train adapters",
    ),
)
"""Causes of jobs that train."""
