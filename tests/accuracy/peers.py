"""Other estimators as small reference functions: bytes per GPU of a job, or None for a job that they do not cover.

Each implements a published formula, named in its docstring. None of them supports adapters, so for a job with adapters
only the lower bound, which counts nothing but stored weights, returns a figure.
"""

from collections.abc import Callable
from math import prod

from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job
from vramtop.estimator.model.architecture import Architecture
from vramtop.estimator.model.inventory import Inventory

Peer = Callable[[Job, Architecture, Inventory], int | None]

_ZERO_LEVEL = {"none": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp1": 3, "fsdp2": 3, "megatron-fsdp": 3}


def accelerate(job: Job, arch: Architecture, inventory: Inventory) -> int | None:
    """``accelerate estimate-memory``: the largest of weights, gradients and four times (mixed: twice) the fp32 weights.

    ``accelerate/commands/estimate.py``, ``estimate_training_usage``: ignores batch, length, activations and sharding.
    """
    if job.lora:
        return None
    return inventory.parameters * 4 * (4 if job.training.precision == "fp32" else 2)


def deepspeed(job: Job, arch: Architecture, inventory: Inventory) -> int | None:
    """``estimate_zero2_model_states_mem_needs`` and ``estimate_zero3_...``: model states under ZeRO only.

    4 P + 16 P / N for ZeRO-1 and 2 (and without it, N = 1), 4 x the largest layer + 18 P / N for ZeRO-3; from
    ``deepspeed/runtime/zero/stage_1_and_2.py`` and ``stage3.py``. Ignores tensor and pipeline parallelism.
    """
    if job.lora:
        return None
    count, ranks = inventory.parameters, job.parallel.world_size
    level = _ZERO_LEVEL[job.parallel.strategy]
    if level == 3:
        largest = max(prod(group.shape) for group in inventory.groups)
        if job.parallel.cpu_offload != "none":
            return 4 * largest
        return 4 * largest + 18 * count // ranks
    return 4 * count + 16 * count // (ranks if level else 1)


def eleuther(job: Job, arch: Architecture, inventory: Inventory) -> int | None:
    """``calc_transformer_mem.py`` (EleutherAI/cookbook): states by ZeRO level, activations (arXiv:2205.05198), 5 GiB.

    Activations per layer: s b h (10 + 24/t + 5 a s / (h t)); selective checkpointing drops the scores, full keeps 2.
    """
    if job.lora or arch.encoder_decoder:
        return None
    parallel, training = job.parallel, job.training
    split = parallel.tensor * parallel.pipeline
    count = inventory.parameters / split
    level = _ZERO_LEVEL[parallel.strategy]
    ranks = parallel.world_size
    low = 4 if training.precision == "fp32" else 2
    weights = low * count / (ranks if level >= 3 else 1)
    gradients = 4 * count / (ranks if level >= 2 else 1)
    optimizer = (8 if low == 4 else 12) * count / (ranks if level >= 1 else 1)
    tokens, t = training.micro_batch * training.sequence_length, parallel.tensor
    per_layer = {
        "none": 10 + 24 / t + 5 * arch.heads * training.sequence_length / (arch.hidden * t),
        "selective": 10 + 24 / t,
        "full": 2.0,
    }[training.activation_checkpointing]
    return round(weights + gradients + optimizer + tokens * arch.hidden * per_layer * arch.layers + 5 * GIB)


def preflight(job: Job, arch: Architecture, inventory: Inventory) -> int:
    """``N x b + overhead``: stored weights and a fixed overhead, an intentional lower bound.

    Common in preflight checks. The overhead here, 0.75 GiB, is one CUDA context with its libraries.
    """
    width = 4.0 if job.training.precision in ("fp32", "fp16-mixed", "bf16-mixed") else 2.0
    quantized = {"nf4": 0.5625, "nf4-double": 0.5159, "int8": 1.0}.get(job.lora.quantization) if job.lora else None
    linear = sum(g.elements for g in inventory.groups if g.linear and g.role != "head") if quantized else 0
    weights = (inventory.parameters - linear) * width + linear * (quantized or 0)
    ranks = job.parallel.data_shard if _ZERO_LEVEL[job.parallel.strategy] == 3 else 1
    return round(weights / ranks / job.parallel.tensor / job.parallel.pipeline + 0.75 * GIB)


def space(job: Job, arch: Architecture, inventory: Inventory) -> int | None:
    """The training-memory Space on Hugging Face: the sum of states, activations and logits.

    As published, it assumes h x h matrices for queries, keys and values (no GQA), always counts biases, and does not
    divide activations by the number of pipeline stages.
    """
    if job.lora or arch.encoder_decoder:
        return None
    parallel, training, h = job.parallel, job.training, arch.hidden
    mlp = (3 if arch.gated else 2) * (h * arch.mlp_size + arch.mlp_size) * max(1, arch.experts)
    layer = 4 * (h * h + h) + mlp + 4 * h
    count = (arch.layers * layer / parallel.pipeline + 2 * arch.vocab * h) / parallel.tensor
    level, ranks = _ZERO_LEVEL[parallel.strategy], parallel.data_ranks
    low = 4 if training.precision == "fp32" else 2
    states = count * (
        low / (ranks if level >= 3 else 1)
        + 4 / (ranks if level >= 2 else 1)
        + (8 if low == 4 else 12) / (ranks if level >= 1 else 1)
    )
    tokens = training.micro_batch * training.sequence_length / parallel.context
    scores = 5 * arch.heads * training.sequence_length / parallel.context / h if job.model.attention == "eager" else 0
    per_layer = 2.0 if training.activation_checkpointing == "full" else (34 + scores) / parallel.tensor
    return round(states + tokens * h * per_layer * arch.layers + 4 * tokens * arch.vocab / parallel.tensor)


PEERS: dict[str, Peer] = {
    "accelerate": accelerate,
    "DeepSpeed": deepspeed,
    "EleutherAI": eleuther,
    "N x b": preflight,
    "Space": space,
}
