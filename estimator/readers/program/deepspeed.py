"""DeepSpeed's JSON configuration, as far as memory depends on it. ``auto`` values are filled in by the trainer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...job.rules.frameworks import STRATEGIES
from ...job.rules.optimizers.by_name import NOT_KNOWN, OptimizerChoice, optimizer_by_class
from ..arguments.table import library
from ..source.evidence import (
    FindingCollector,
    LayeredSettings,
    Setting,
    as_bool,
    as_word,
)


def partly_offloaded(deepspeed: LayeredSettings) -> Setting | None:
    """Return the share of the optimizer's states that is offloaded (ZeRO-Offload++), if it is not all of them."""
    ratio = deepspeed.find("offload_ratio")
    value = ratio.value if ratio is not None else 1.0
    return ratio if isinstance(value, int | float) and 0 <= value < 1 else None


# DeepSpeed's sizes of buckets and of what stage 3 gathers (``zero.*``), from its configuration.
#
# ``auto`` stands for a number that the Trainer and accelerate compute from the model's hidden size
# (``trainer_config_finalize`` in transformers' integrations/deepspeed.py, ``_prepare_deepspeed`` of accelerate 1.15).


_MAX_ELEMENTS = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """One size: where DeepSpeed's configuration has it, and what ``auto`` makes of the hidden size."""

    path: str
    auto: Callable[[int], int] | None = None
    stage_3: bool = False


_SIZES = {
    "reduce_bucket": _Size(path="reduce_bucket_size", auto=lambda hidden: hidden**2),
    "allgather_bucket": _Size(path="allgather_bucket_size"),
    "prefetch_bucket": _Size(
        path="stage3_prefetch_bucket_size", auto=lambda hidden: int(0.9 * hidden**2), stage_3=True
    ),
    "max_live_parameters": _Size(path="stage3_max_live_parameters", stage_3=True),
    "max_reuse_distance": _Size(path="stage3_max_reuse_distance", stage_3=True),
    "persistence_threshold": _Size(
        path="stage3_param_persistence_threshold", auto=lambda hidden: 10 * hidden, stage_3=True
    ),
    "sub_group": _Size(path="sub_group_size", stage_3=True),
}
_SWITCHES = {
    "overlap_comm": "overlap_comm",
    "contiguous_gradients": "contiguous_gradients",
}
ZERO_PATHS = {
    **{f"zero_{name}": f"zero_optimization.{size.path}" for name, size in _SIZES.items()},
    **{f"zero_{name}": f"zero_optimization.{path}" for name, path in _SWITCHES.items()},
}
"""Settings by our names, and where DeepSpeed's configuration has them."""
AUTO_SIZES = tuple(f"zero_{name}" for name, size in _SIZES.items() if size.auto is not None)
"""Settings whose ``auto`` has a meaning of its own."""
_GRADIENT_DTYPES = {
    **dict.fromkeys(("fp32", "float32", "float"), "fp32"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half"), "fp16"),
}


def record_zero_sizes(
    settings: LayeredSettings, findings: FindingCollector, hidden_size: Callable[[], int | None]
) -> None:
    """Record ``zero.*``, and the dtype in which gradients are accumulated, for a job under ZeRO.

    Args:
        settings: DeepSpeed's, by the names of ``deepspeed_layer``.
        findings: they have the strategy already.
        hidden_size: returns the model's hidden size; None: not known.
    """
    found = findings.get("parallel.strategy")
    strategy = STRATEGIES[found.value] if found is not None else None
    if strategy is None or not strategy.deepspeed:
        return
    stage_3 = strategy.zero_stage == 3
    for name, size in _SIZES.items():
        setting = settings.find(f"zero_{name}")
        if setting is not None and (stage_3 or not size.stage_3):
            _record_size(name, size, setting, findings, hidden_size)
    for name in _SWITCHES:
        setting = settings.find(f"zero_{name}")
        if setting is not None and as_bool(setting) is not None:
            findings.record(f"zero.{name}", as_bool(setting), setting.origin)
    dtype = settings.find("gradient_dtype")
    if dtype is not None and (known := _GRADIENT_DTYPES.get(as_word(dtype) or "")) is not None:
        findings.record_from(dtype, "parallel.gradient_dtype", known)


def _record_size(
    name: str, size: _Size, setting: Setting, findings: FindingCollector, hidden_size: Callable[[], int | None]
) -> None:
    if as_word(setting) == "auto" and size.auto is not None:
        hidden = hidden_size()
        if hidden is not None:
            origin = f"{setting.origin}: auto, from the hidden size {hidden:,}"
            findings.record(f"zero.{name}", size.auto(hidden), origin)
        elif name == "reduce_bucket":
            sentence = f"{setting.origin}: auto depends on the model's hidden size, which is not known; 5e8 is assumed."
            findings.warn(sentence, unless="zero.reduce_bucket")
            findings.add_uncertainty("less", "communication", unless="zero.reduce_bucket")
        return
    elements = _elements(setting)
    if elements is None:
        findings.refuse(f"zero.{name}", setting, "number of elements")
    else:
        findings.record(f"zero.{name}", elements, setting.origin)


def _elements(setting: Setting) -> int | None:
    try:
        number = float(str(setting.value)) if not isinstance(setting.value, bool) else -1.0
    except ValueError:
        return None
    return int(min(number, _MAX_ELEMENTS)) if number >= 0 else None


_WITH_AUTO = ("zero_stage", *AUTO_SIZES)
"""Settings whose ``auto`` is no gap: nothing fills it in, or it is computed from the model's hidden size."""
_COPIED = {
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "micro_batch": "train_micro_batch_size_per_gpu",
    "train_batch": "train_batch_size",
    "tensor": "tensor_parallel.autotp_size",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "gradient_dtype": "data_types.grad_accum_dtype",
    **ZERO_PATHS,
    **{path: path for path in library("deepspeed").doubt["all"]},
    "offload_ratio": "zero_optimization.offload_optimizer.ratio",
    "zero_hpz_partition_size": "zero_optimization.zero_hpz_partition_size",
}
"""Settings by our names, and where DeepSpeed's configuration has them."""

_OLD_BF16 = "bfloat16"
"""The old name of the section ``bf16``, which counts where that is absent (DeepSpeed runtime/precision_config.py)."""
_PRECISION_SECTIONS = {"bf16": "bf16", _OLD_BF16: "bf16", "fp16": "fp16"}
_OWN_OPTIMIZERS = {
    **dict.fromkeys(("adam", "adamw"), "deepspeed.ops.adam.FusedAdam"),
    **dict.fromkeys(("onebitadam", "zerooneadam"), "deepspeed.runtime.fp16.onebit.adam.OnebitAdam"),
    "onebitlamb": "deepspeed.runtime.fp16.onebit.lamb.OnebitLamb",
    "lamb": "deepspeed.ops.lamb.FusedLamb",
    "lion": "deepspeed.ops.lion.FusedLion",
    "muon": "deepspeed.runtime.zero.muon.MuonWithAuxAdam",
    "muadam": "mup.MuAdam",
    "muadamw": "mup.MuAdamW",
    "musgd": "mup.MuSGD",
}
"""DeepSpeed's own classes by ``optimizer.type`` in lower case; any other type is a class of torch.optim."""


def deepspeed_layer(table: Mapping[str, Any], *, source: str) -> dict[str, Setting]:
    """Return a DeepSpeed configuration by the names of accelerate's flags (``zero_stage``, ...).

    ``mixed_precision`` is ``bf16`` or ``fp16`` where it is switched on, ``no`` where both are off or absent, and
    left out where it is ``auto``; ``precision_sections`` names the sections that speak of it. ``micro_batch`` and
    ``optimizer`` are DeepSpeed's own.
    """
    zero = _inner(table, "zero_optimization")
    values: dict[str, tuple[Any, str]] = {name: (_value_at(table, path), path) for name, path in _COPIED.items()}
    stage = zero.get("stage", 0)
    values["zero_stage"] = "none" if stage is None else stage, "zero_optimization.stage"
    if zero.get("cpu_offload") is True:
        values["offload_optimizer_device"] = "cpu", "zero_optimization.cpu_offload"
    values["mixed_precision"] = _mixed_precision(table)
    values["precision_sections"] = tuple(name for name in _PRECISION_SECTIONS if name in table), "bf16, fp16"
    values["optimizer"] = _optimizer(_inner(table, "optimizer")), "optimizer.type"
    return {
        name: Setting(value=value, origin=f"{source}: {path}")
        for name, (value, path) in values.items()
        if value is not None and (value != "auto" or name in _WITH_AUTO)
    }


def _mixed_precision(table: Mapping[str, Any]) -> tuple[str | None, str]:
    named = [name for name in _PRECISION_SECTIONS if name in table and not (name == _OLD_BF16 and "bf16" in table)]
    enabled = {name: _inner(table, name).get("enabled", False) for name in named}
    on = next((name for name, value in enabled.items() if value is True), None)
    if on:
        return _PRECISION_SECTIONS[on], f"{on}.enabled"
    return None if "auto" in enabled.values() else "no", "neither bf16 nor fp16 is enabled"


def _optimizer(table: Mapping[str, Any]) -> OptimizerChoice | None:
    """Return the optimizer: DeepSpeed's own class for some names, torch's for others (``runtime/engine.py``)."""
    kind = table.get("type")
    if kind is None:
        return None
    params = _inner(table, "params")
    given = {name: NOT_KNOWN if value == "auto" else value for name, value in params.items() if name != "weight_decay"}
    own = _OWN_OPTIMIZERS.get(str(kind).lower())
    if own is not None and given.get("torch_adam") is not True:
        return optimizer_by_class(own, given)
    return optimizer_by_class(f"torch.optim.{kind}", given)


def _value_at(table: Mapping[str, Any], path: str) -> Any:
    *sections, name = path.split(".")
    for section in sections:
        table = _inner(table, section)
    return table.get(name)


def _inner(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = table.get(name)
    return value if isinstance(value, Mapping) else {}
