"""Bytes per element: of weights, gradients, optimizer state and activations, by precision and framework.

Sources: torch.amp's and DeepSpeed's documentation, Megatron-LM's distributed optimizer (2 + 4 + 12/N bytes per
parameter, NVIDIA's published steady-state figures), bitsandbytes' block sizes, peft's ``autocast_adapter_dtype``.
"""

from dataclasses import dataclass

from .job import Job

_QUANTIZED_BYTES = {
    "nf4": 0.5 + 4 / 64,  # 4 bits, and a 4-byte constant per block of 64
    "nf4-double": 0.5 + 1 / 64 + 4 / (64 * 256),  # constants in 8 bits, with a 4-byte constant per 256 of them
    "int8": 1.0,  # one 4-byte constant per row besides: nothing beside the row
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Bytes per element of one job."""

    weight: int
    """Stored weights, where they are not quantized."""
    quantized: float | None
    """Stored weights of quantized linear layers; None: nothing is quantized."""
    adapter: int
    """Adapter weights and, with them, their gradients and states."""
    gradient: int
    compute: int
    """What matrices are multiplied in, and most activations are saved in."""
    residual: int
    """The residual stream: fp32 under autocast, because adding to fp32 embeddings gives fp32."""
    reduce: int
    """Gradients while they are reduced over ranks."""
    master: int
    """An fp32 copy of the weights that the optimizer keeps (DeepSpeed, Megatron); 0 where there is none."""
    state: int
    """Optimizer states that follow the weights' type, per state."""
    autocast: bool
    """Weights are cast to ``compute`` on the fly, and the casts are kept for the backward pass."""
    mixed: bool
    """Autocast is on, whether it or FSDP casts the weights: it runs norms, powers and losses in fp32."""


def read_widths(job: Job) -> Widths:
    """The bytes per element that the job's precision, strategy and framework come to."""
    precision = job.training.precision
    low = 4 if precision == "fp32" else 2
    mixed = precision.endswith("-mixed")
    zero, megatron = uses_zero(job), uses_megatron(job)
    own_master = low == 2 and (zero or (megatron and mixed))
    weight = 4 if mixed and not (zero or megatron) else low
    reduce = 4 if job.parallel.reduce_dtype == "fp32" else 2
    casts = mixed and weight == 4
    sharded = job.parallel.strategy in ("fsdp1", "fsdp2")
    peft = job.training.framework == "transformers" and not zero
    gradient = reduce if megatron and low == 2 else weight
    return Widths(
        weight=weight,
        quantized=_QUANTIZED_BYTES.get(job.lora.quantization) if job.lora else None,
        adapter=4 if peft else weight,
        gradient=gradient,
        compute=low,
        residual=4 if casts and not sharded else low,
        reduce=reduce,
        master=4 if own_master else 0,
        state=4 if own_master else weight,
        autocast=casts and not sharded,
        mixed=casts,
    )


def uses_zero(job: Job) -> bool:
    """DeepSpeed runs the job: its engine keeps low-precision weights and an fp32 copy in the optimizer."""
    return job.parallel.strategy in ("zero1", "zero2", "zero3") and job.training.framework != "megatron"


def uses_megatron(job: Job) -> bool:
    """Megatron's mixed precision: low-precision weights, fp32 gradients, an fp32 copy in the optimizer."""
    return job.training.framework == "megatron" or job.parallel.strategy == "megatron-fsdp"
