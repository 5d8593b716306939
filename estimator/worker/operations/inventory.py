"""Operation ``inventory``: builds a model on the meta device and lists its parameters and buffers.

    {"op": "inventory", "config": {"model_type": ..., ...}, "task": "causal-lm",
     "lora": {"rank", "targets"} or absent, "places": true or absent,
     "code": {"folder", "model", "remote"} or absent, "device_map": as ``device_map`` takes it, or absent}
        -> {"groups": [{"name", "shape", "repeat", "dtype", "kind", "quantized", "places"}, ...],
            "layers": ..., "tied_head": ..., "tied": [[name, ...], ...],
            "buffers": [{"name", "shape", "repeat", "dtype", "bytes", "persistent"}, ...],
            "adapters": [{"name", "shape", "repeat", "dtype"}, ...] or null,
            "experts": {"count", "elements"} or null, "tp_plan": {pattern: style}, "no_split": [class, ...],
            "config": {...}, "device_map": {module: device} or null, "versions": {...}}

Needs torch (2.4 or newer) and transformers (4.45 or newer). No weights are read and nothing is downloaded. Code that
belongs to a model or to the user runs only where ``code`` names it.
"""

from __future__ import annotations

from typing import Any


def inventory(request: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters and buffers of the model with this config and task, grouped by name and shape."""
    import torch

    from ..model import build as contents
    from ..model.build import add_lora_adapters, build_model, has_tied_head
    from ..request.protocol import library_versions
    from ..request.request import Lora, read_user_code
    from .device_map import empty_weights, inferred_device_map

    code = read_user_code(request)
    placing = request.get("device_map")
    with empty_weights() if placing else torch.device("meta"):  # shapes without storage
        model = build_model(request.get("config") or {}, request["task"], code=code)
        answer = {
            **contents.parameter_groups(model, places=bool(request.get("places"))),
            "tied_head": has_tied_head(model),
            "tied": contents.tied_parameters(model),
            "buffers": contents.buffer_groups(model),
            "experts": contents.routed_experts(model),
            "tp_plan": contents.tensor_parallel_plan(model),
            "no_split": sorted(getattr(model, "_no_split_modules", None) or ()),
            "config": contents.config_fields(model),
            "adapters": None,
            "device_map": inferred_device_map(model, placing) if placing else None,
        }
        if request.get("lora"):
            answer["adapters"] = contents.adapter_groups(add_lora_adapters(model, Lora(**request["lora"])))
    return {**answer, "versions": library_versions()}
