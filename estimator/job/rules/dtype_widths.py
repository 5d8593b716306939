"""Bytes per element: of weights, gradients, optimizer state and activations, by precision and framework.

Sources: torch.amp's and DeepSpeed's documentation, Megatron-LM's distributed optimizer (2 + 4 + 12/N bytes per
parameter, NVIDIA's published steady-state figures), bitsandbytes' block sizes, peft's ``autocast_adapter_dtype``.
"""

from math import prod
from typing import Literal

from msgspec import Struct

from ...common.library_versions import older
from ..settings import Lora, Parallel, Software
from .frameworks import Framework
from .strategies import Precision, Strategy

_BLOCK_ELEMENTS = 64
"""Elements per 4-bit block, each with a constant in fp32."""
_NESTED_BLOCK_CONSTANTS = 256
"""Constants per block of double quantization, each with a constant in fp32."""
_CODE_BYTES = 16 * 4
"""Table of the values that 4 bits stand for."""
_NESTED_CODE_BYTES = 256 * 4
_OFFSET_BYTES = 4
_ALLOCATION_BYTES = 512
"""torch's allocator rounds every tensor up to a multiple of this."""
BITSANDBYTES = ("nf4", "nf4-double", "int8")
"""Formats of bitsandbytes, which replaces linear layers."""
BYTES_PER_ELEMENT = {
    "nf4": 0.5 + 4 / _BLOCK_ELEMENTS,
    "nf4-double": 0.5 + 1 / _BLOCK_ELEMENTS + 4 / (_BLOCK_ELEMENTS * _NESTED_BLOCK_CONSTANTS),
    "int8": 1.0,  # one 4-byte constant per row besides: negligible beside the row
    "int4": 0.5 + 2.5 / 128,  # a 16-bit scale and a 4-bit zero per group of 128
    "fp8": 1 + 4 / 128**2,  # an fp32 scale per tile
    "mxfp4": 0.5 + 1 / 32,  # an 8-bit exponent per block
}
"""Average over a large weight, by the job file's ``lora.quantization`` and ``inference.weights``."""


def quantized_bytes(shape: tuple[int, ...], kind: str, *, transposed: bool = False) -> int:
    """Return the GPU bytes of one linear layer's weight, its constants included.

    Sources: bitsandbytes 0.50, ``functional.quantize_4bit`` and ``nn.Int8Params``; transformers' ``quantizers`` and
    ``integrations`` for GPTQ and AWQ (``int4``), ``finegrained_fp8.py`` and ``mxfp4.py``. Every tensor takes whole
    blocks of torch's allocator.

    Args:
        shape: (out, in), or that of a stack of such weights.
        kind: a key of ``BYTES_PER_ELEMENT``.
        transposed: the shape is (in, out).
    """
    block = _ALLOCATION_BYTES
    return sum(-(-size // block) * block for size in tensor_bytes(shape, kind, transposed=transposed))


def tensor_bytes(shape: tuple[int, ...], kind: str, *, transposed: bool = False) -> tuple[int, ...]:
    """Return the bytes of each tensor that stores the layer's weight, the packed values first."""
    elements = prod(shape)
    if kind not in BITSANDBYTES:
        packed = elements if kind == "fp8" else -(-elements // 2)
        return (packed, round(elements * BYTES_PER_ELEMENT[kind]) - packed)
    if kind == "int8":
        rows = shape[-1] if transposed else prod(shape[:-1])
        return (elements, 4 * rows)
    blocks = -(-elements // _BLOCK_ELEMENTS)
    packed = -(-elements // 2)
    if kind == "nf4":
        return (packed, 4 * blocks, _CODE_BYTES)
    nested = 4 * -(-blocks // _NESTED_BLOCK_CONSTANTS)
    return (packed, blocks, _CODE_BYTES, nested, _NESTED_CODE_BYTES, _OFFSET_BYTES)


def is_four_bit(lora: Lora | None) -> bool:
    """Return True if the job stores its frozen linear weights in 4 bits."""
    return lora is not None and lora.quantization in ("nf4", "nf4-double")


def quantization(lora: Lora | None) -> str | None:
    """Return how the job stores its frozen linear weights; None: not quantized."""
    return None if lora is None or lora.quantization == "none" else lora.quantization


Prepared = Literal["none", "norms", "all"]
"""Parameters that are fp32 although not quantized: none, the norms (TRL), or all (peft)."""
DTYPE_WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes per element by the job file's names of dtypes."""


class AdapterRules(Struct, frozen=True, kw_only=True):
    """Dtypes of a model with LoRA adapters."""

    prepared: Prepared = "none"
    """Parameters that were cast to fp32 for training on quantized weights."""
    assumed: bool = False
    """``prepared`` is assumed: neither the job nor its versions tell."""
    autocasts: bool = False
    """Autocast is on although the weights have 16 bits (the Trainer's ``bf16``), as over every prepared model."""
    width: int | None = None
    """Bytes per element of the adapters; None: the framework's rule."""
    dtype: str | None = None
    """Their type as a job file names it, where it is not peft's choice."""
    dropout: float = 0.0
    """Probability with which an adapter's input is dropped out."""


NO_ADAPTERS = AdapterRules()


def adapter_rules(
    lora: Lora | None,
    software: Software,
    framework: Framework,
    strategy: Strategy,
    precision: Precision,
) -> AdapterRules:
    """Return the dtypes that a job's adapters and the weights beside them have.

    Sources: peft 0.21, ``utils/other.py`` (``prepare_model_for_kbit_training``) and ``autocast_adapter_dtype``; TRL's
    ``SFTTrainer`` and its like: 0.8 to 0.24 call peft's function on a quantized model unless it is sharded, then
    ``peft_module_casting_to_bf16`` (4 bits under ``bf16``: norms fp32, embedding and head 16 bits); 0.25 casts norms
    only; since 0.26 nothing is prepared, and adapters over quantized weights become bf16 (pull request 4577,
    2025-12-04). peft 0.6 to 0.11, ``tuners/lora/layer.py``: adapters have the type of weights that are not quantized.

    Args:
        lora: the job's; None: no adapters.
        software: the versions that it states.
        framework: the job's.
        strategy: the job's.
        precision: the job's.
    """
    if lora is None:
        return NO_ADAPTERS
    sharded = strategy.fsdp or strategy.zero_stage == 3
    prepared, assumed = _prepared(lora, software, framework, precision, sharded=sharded)
    if not precision.half_weights:
        prepared = "none"  # they are fp32 as it is
    dtype: str | None = lora.adapter_dtype
    by_trl = software.trl is not None and not older(software.trl, 0, 26) and not lora.kbit_preparation
    if dtype is None and quantization(lora) and framework.trainer and by_trl:
        dtype = "bf16"
    if dtype is None and is_four_bit(lora) and framework.trainer and strategy.fsdp and precision.half_weights:
        dtype = precision.name  # the storage type of 4-bit weights: FSDP shards them together
    of_weights = older(software.peft, 0, 12) and not older(software.peft, 0, 6) and framework.fp32_adapters
    if dtype is None and of_weights and quantization(lora) is None and precision.half_weights:
        dtype = precision.name
    # the Trainer runs the model itself; DeepSpeed's engine and FSDP's policy cast instead
    may_autocast = not (strategy.fsdp or strategy.deepspeed or strategy.megatron_fsdp)
    return AdapterRules(
        prepared=prepared,
        assumed=assumed and precision.half_weights,
        autocasts=prepared != "none" or (bool(lora.autocast) and precision.half_weights and may_autocast),
        width=None if dtype is None else DTYPE_WIDTHS[dtype],
        dtype=dtype,
        dropout=lora.dropout if lora.dropout is not None else 0.05 * framework.adapter_dropout,
    )


def _prepared(
    lora: Lora, software: Software, framework: Framework, precision: Precision, *, sharded: bool
) -> tuple[Prepared, bool]:
    """Return what is cast to fp32, and whether that is assumed.

    A job that states transformers 4 and no TRL was run with the TRL of its time, or with a script that calls peft's
    function; a plugin may replace it by one that casts nothing (fms-acceleration's ``accelerated-peft-bnb``).
    """
    wanted = lora.kbit_preparation
    if quantization(lora) is None or wanted is False or not framework.trainer:
        return "none", False
    by_trl: Prepared = "norms" if is_four_bit(lora) and precision.name != "fp16" else "all"
    if wanted:
        return (by_trl if older(software.trl, 0, 26) else "all"), False  # a newer TRL leaves that to the script
    if sharded:
        return "none", False
    if software.trl is not None:
        return (by_trl if older(software.trl, 0, 26) else "none"), False
    if older(software.transformers, 5):
        return by_trl, True
    return "none", software.transformers is None


class Widths(Struct, frozen=True, kw_only=True):
    """Bytes per element of one job."""

    weight: int
    """Stored weights that are not quantized."""
    quantized: float | None
    """Stored weights of quantized linear layers; None: nothing is quantized."""
    adapter: int
    """LoRA adapter weights, their gradients and optimizer states."""
    gradient: int
    compute: int
    """Operands of matrix products, and most saved activations."""
    residual: int
    """The residual stream: fp32 under autocast over fp32 weights, because adding to fp32 embeddings gives fp32."""
    reduce: int
    """Gradients while they are reduced over ranks."""
    master: int
    """fp32 copy of the weights that the optimizer keeps (DeepSpeed, Megatron); 0: there is none."""
    state: int
    """Each optimizer state that has the dtype of the weights."""
    autocast: bool
    """Weights are cast to ``compute`` on the fly, and the casts are kept for the backward pass."""
    mixed: bool
    """Autocast is on, whether it or FSDP casts the weights: norms, powers and losses run in fp32.

    Under FSDP2, which casts what it gathers, nobody turns it on: accelerate prepares such a model without
    (``Accelerator._prepare_fsdp2``, 1.15), and torchtitan's trainer too.
    """
    casts: bool
    """The weights are fp32, and autocast or FSDP casts them to ``compute``."""
    projected: int
    """Width of the results of a block's linear layers: quantized ones give back the dtype that they read."""


def dtype_widths(
    precision: Precision,
    framework: Framework,
    strategy: Strategy,
    parallel: Parallel,
    *,
    quantized: float | None,
    adapters: AdapterRules = NO_ADAPTERS,
) -> Widths:
    """Return the bytes per element that a job's precision, framework and strategy imply.

    Args:
        precision: the job's.
        framework: the job's.
        strategy: the job's.
        parallel: the job's, whose dtypes count more than the strategy's.
        quantized: bytes per element of quantized weights; None: nothing is quantized.
        adapters: dtypes around adapters.
    """
    low, mixed = precision.width, precision.mixed
    deepspeed, megatron = uses_deepspeed(framework, strategy), uses_megatron_precision(framework, strategy)
    kept = mixed if parallel.main_weights is None or not strategy.megatron_fsdp else parallel.main_weights
    own_master = deepspeed or (low == 2 and megatron and kept)  # DeepSpeed clones fp32 weights too
    weight = 4 if mixed and not (deepspeed or megatron) else low
    reduce = 4 if _reduces_in_fp32(parallel, framework, strategy, precision) else 2
    casts = mixed and weight == 4
    autocast = adapters.autocasts or (casts and not strategy.fsdp)  # FSDP casts the weights that it gathers
    plain = 4 if framework.fp32_adapters and not deepspeed else weight
    if adapters.prepared == "all":
        weight = 4
    widened = autocast and (casts or adapters.prepared != "none")  # by fp32 embeddings or norms
    compute = DTYPE_WIDTHS[parallel.param_dtype] if parallel.param_dtype and strategy.fsdp2 else low
    return Widths(
        weight=weight,
        quantized=quantized,
        adapter=adapters.width or plain,
        gradient=_gradient_width(strategy, parallel) or (reduce if megatron and low == 2 else weight),
        compute=compute,
        residual=4 if widened else compute,
        reduce=reduce,
        master=4 if own_master else 0,
        state=4 if own_master else weight,
        autocast=autocast,
        mixed=(casts and not strategy.fsdp2) or adapters.autocasts,
        casts=casts or adapters.autocasts,
        projected=4 if widened and quantized is not None and not framework.own_adapters else compute,
    )


def _gradient_width(strategy: Strategy, parallel: Parallel) -> int | None:
    """Return the width of accumulated gradients where a setting decides it.

    ZeRO 2 adds them up in the dtype of the weights whatever the setting (``use_grad_accum_attribute`` of DeepSpeed's
    runtime/zero/stage_1_and_2.py).
    """
    decides = strategy.megatron_fsdp or (strategy.deepspeed and strategy.zero_stage != 2)
    return DTYPE_WIDTHS[parallel.gradient_dtype] if decides and parallel.gradient_dtype else None


def uses_deepspeed(framework: Framework, strategy: Strategy) -> bool:
    """Return True if DeepSpeed runs the job: 16-bit weights, and an fp32 copy in the optimizer."""
    return strategy.deepspeed and not framework.low_precision_weights


def uses_megatron_precision(framework: Framework, strategy: Strategy) -> bool:
    """Return True if mixed precision is Megatron's: 16-bit weights, fp32 gradients, an fp32 copy in the optimizer."""
    return framework.low_precision_weights or strategy.low_precision_weights


def _reduces_in_fp32(parallel: Parallel, framework: Framework, strategy: Strategy, precision: Precision) -> bool:
    """Return True if gradients are reduced in fp32.

    accelerate's policy for FSDP reduces in the compute type (``set_mixed_precision`` in ``utils/dataclasses.py``,
    1.15), that of Megatron-FSDP in the weights' (``MixedPrecisionPolicy``), and Megatron-LM in fp32.
    """
    if parallel.reduce_dtype is None:
        if strategy.megatron_fsdp and not framework.gradient_buffer:
            return precision.width == 4
        by_accelerate = strategy.fsdp2 and framework.trainer
        by_trainer = strategy.flat_parameters and framework.transformers_models
        return precision.width == 4 or not (by_accelerate or by_trainer)
    return parallel.reduce_dtype == "fp32"
