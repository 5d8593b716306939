"""DeepSpeed's JSON configuration, as far as memory depends on it. ``auto`` means: the trainer fills it in."""

from collections.abc import Mapping
from typing import Any

from ..source.settings import Setting


def deepspeed_layer(table: Mapping[str, Any], *, source: str) -> dict[str, Setting]:
    """A DeepSpeed configuration by the names of accelerate's flags (``zero_stage``, ``offload_param_device``, ...).

    ``mixed_precision`` is ``bf16`` or ``fp16`` where it is switched on, ``no`` where both are off or absent, and
    left out where it is ``auto``. ``micro_batch`` and ``optimizer`` are DeepSpeed's own.
    """
    layer: dict[str, Setting] = {}

    def put(name: str, value: Any, place: str) -> None:
        if value is not None and value != "auto":
            layer[name] = Setting(value=value, origin=f"{source}: {place}")

    zero = _inner(table, "zero_optimization")
    put("zero_stage", zero.get("stage", 0), "zero_optimization.stage")
    for name in ("optimizer", "param"):
        device = _inner(zero, f"offload_{name}").get("device")
        put(f"offload_{name}_device", device, f"zero_optimization.offload_{name}.device")
    if zero.get("cpu_offload") is True:
        put("offload_optimizer_device", "cpu", "zero_optimization.cpu_offload")
    put("zero_hpz_partition_size", zero.get("zero_hpz_partition_size"), "zero_optimization.zero_hpz_partition_size")
    enabled = {kind: _inner(table, kind).get("enabled", False) for kind in ("bf16", "fp16")}
    on = next((kind for kind, value in enabled.items() if value is True), None)
    if on:
        put("mixed_precision", on, f"{on}.enabled")
    elif "auto" not in enabled.values():
        put("mixed_precision", "no", "neither bf16 nor fp16 is enabled")
    put("gradient_accumulation_steps", table.get("gradient_accumulation_steps"), "gradient_accumulation_steps")
    put("micro_batch", table.get("train_micro_batch_size_per_gpu"), "train_micro_batch_size_per_gpu")
    put("train_batch", table.get("train_batch_size"), "train_batch_size")
    put("optimizer", _optimizer(_inner(table, "optimizer")), "optimizer.type")
    put("tensor", _inner(table, "tensor_parallel").get("autotp_size"), "tensor_parallel.autotp_size")
    return layer


def _optimizer(table: Mapping[str, Any]) -> Any:
    """DeepSpeed steps with a fused AdamW of its own unless ``torch_adam`` is on (``runtime/engine.py``)."""
    kind = table.get("type")
    own = str(kind).lower() in ("adam", "adamw") and _inner(table, "params").get("torch_adam") is not True
    return "adamw_torch_fused" if own else kind


def _inner(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = table.get(name)
    return value if isinstance(value, Mapping) else {}
