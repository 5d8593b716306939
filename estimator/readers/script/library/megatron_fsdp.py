"""Megatron-FSDP, once nvFSDP, in a script's own loop: its strategy, units, buffers and dtypes.

Names and defaults: ``megatron_fsdp/fully_shard.py`` and ``mixed_precision.py`` of Megatron-LM (core 0.20).
"""

from typing import Any

from ...source import MEGATRON_OUTER_SHARDING, MEGATRON_SHARDING, Setting
from ..models import Model, Notes, models_in
from ..python import UNKNOWN, Call, Instance, Thing, plain

_OWN_ARGUMENTS = {
    *("zero_dp_strategy", "fsdp_unit_modules", "dp_shard_dim", "outer_dp_sharding_strategy", "nvfsdp_unit_modules"),
    *("data_parallel_sharding_strategy", "init_model_with_meta_device", "init_nvfsdp_with_meta_device"),
}


class MainDtypes(Thing):
    """``megatron_fsdp.MixedPrecisionPolicy(main_params_dtype=...)``: whether there is an fp32 copy of the weights."""

    def __init__(self, call: Call) -> None:
        self.has_main_weights = call.value(0, "main_params_dtype", default=True) is not None


def is_megatron_fsdp(call: Call) -> bool:
    """Return True for a call of Megatron-FSDP's functions, whose ``fully_shard`` has the name of torch's."""
    return call.name in ("fully_shard_model", "nvfsdp") or bool(_OWN_ARGUMENTS & set(call.kwargs))


def shard_with_megatron(call: Call, notes: Notes) -> Any:
    """Follow ``fully_shard_model(model, ...)``, and ``fully_shard(model, optimizer, ...)``, which returns both."""
    setting = Setting(value=True, origin=f"{call.where}: {call.name}(...)")
    model = call.value(0, "module", default=UNKNOWN)
    own: dict[str, Any] = {"megatron_fsdp": True, "megatron_fsdp_main_weights": True}
    names = ("zero_dp_strategy", "data_parallel_sharding_strategy")
    _take_word(call, own, "megatron_fsdp_sharding", MEGATRON_SHARDING, *names)
    _take_word(call, own, "megatron_fsdp_outer", MEGATRON_OUTER_SHARDING, "outer_dp_sharding_strategy")
    units = call.value(None, "fsdp_unit_modules", "nvfsdp_unit_modules")
    if units is None:
        own["megatron_fsdp_units"] = "model"
    if any(call.value(None, name) is True for name in ("nccl_ub", "fsdp_double_buffer")):
        own["megatron_fsdp_double_buffer"] = True
    policy = call.value(None, "mixed_precision_policy")
    if isinstance(policy, MainDtypes):
        own["megatron_fsdp_main_weights"] = policy.has_main_weights
    elif call.value(None, "preserve_fp32_weights", default=True) is False:
        own["megatron_fsdp_main_weights"] = False
    for name, value in own.items():
        notes.own_loop.setdefault(name, setting.with_value(value))
    if call.value(None, "keep_fp8_transpose_cache", default=False) is not False:
        sentence = f"{call.where}: keep_fp8_transpose_cache keeps transposed copies of FP8 weights; none are counted."
        notes.doubt(sentence, "weights", direction="more")
    for each in models_in(model):
        if isinstance(each, Model):
            each.on_gpu, each.sharded = True, True
    optimizer = call.value(1, "optimizer") if call.name == "fully_shard" else None
    return (model, optimizer) if isinstance(optimizer, Thing | Instance) else model


def _take_word(call: Call, own: dict[str, Any], key: str, words: dict[str, str], *names: str) -> None:
    value = plain(call.value(None, *names))
    known = words.get(str(value).lower())
    if known is not None:
        own[key] = known
