"""Dtypes around LoRA adapters: what k-bit preparation casts to fp32, the adapters' own type, and dropout before them.

Sources: peft 0.21, ``utils/other.py`` (``prepare_model_for_kbit_training``) and ``autocast_adapter_dtype``; TRL's
``SFTTrainer`` and its like: 0.8 to 0.24 call peft's function on a quantized model unless it is sharded, then
``peft_module_casting_to_bf16`` (4 bits under ``bf16``: norms fp32, embedding and head 16 bits); 0.25 casts norms only;
since 0.26 nothing is prepared, and adapters over quantized weights become bf16 (pull request 4577, 2025-12-04).
"""

from typing import Literal

from msgspec import Struct

from ..quantization import is_four_bit, quantization
from ..settings import Lora, Software
from .frameworks import Framework, Precision, Strategy, older

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
    """Autocast is on although the weights have 16 bits: a prepared model runs under the trainer's ``bf16``."""
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
    prepared, assumed = _prepared(lora, software, framework, sharded=sharded)
    if not precision.half_weights:
        prepared = "none"  # they are fp32 as it is
    dtype: str | None = lora.adapter_dtype
    by_trl = software.trl is not None and not older(software.trl, 0, 26) and not lora.kbit_preparation
    if dtype is None and quantization(lora) and framework.trainer and by_trl:
        dtype = "bf16"
    if dtype is None and is_four_bit(lora) and framework.trainer and strategy.fsdp and precision.half_weights:
        dtype = precision.name  # the storage type of 4-bit weights: FSDP shards them together
    return AdapterRules(
        prepared=prepared,
        assumed=assumed and precision.half_weights,
        autocasts=prepared != "none",
        width=None if dtype is None else DTYPE_WIDTHS[dtype],
        dtype=dtype,
        dropout=lora.dropout if lora.dropout is not None else 0.05 * framework.adapter_dropout,
    )


def _prepared(lora: Lora, software: Software, framework: Framework, *, sharded: bool) -> tuple[Prepared, bool]:
    """Return what is cast to fp32, and whether that is assumed.

    A job that states transformers 4 and no TRL was run with the TRL of its time, or with a script that calls peft's
    function; a plugin may replace it by one that casts nothing (fms-acceleration's ``accelerated-peft-bnb``).
    """
    wanted = lora.kbit_preparation
    if quantization(lora) is None or wanted is False or not framework.trainer:
        return "none", False
    by_trl: Prepared = "norms" if is_four_bit(lora) else "all"
    if wanted:
        return (by_trl if older(software.trl, 0, 26) else "all"), False  # a newer TRL leaves that to the script
    if sharded:
        return "none", False
    if software.trl is not None:
        return (by_trl if older(software.trl, 0, 26) else "none"), False
    if older(software.transformers, 5):
        return by_trl, True
    return "none", software.transformers is None
