"""What a built model holds, in lists that can be sent: parameters, what is tied, buffers, experts, adapters, plans."""

from __future__ import annotations

import json
import re
from typing import Any

NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
BLOCK = re.compile(r"^(.*?)\.\d+(?=\.)")
EXPERTS = re.compile(r"(^|\.)experts?(\.|$)")


def parameters(model: Any) -> dict[str, Any]:
    """``groups`` of parameters, tied ones once, under their first name; and how many ``layers`` are numbered."""
    modules = dict(model.named_modules())
    kept = kept_by_bitsandbytes(model)
    groups: dict[tuple[Any, ...], int] = {}
    blocks = set()
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        kind = kind_of(modules[path], leaf)
        quantized = kind in ("linear", "conv1d") and leaf == "weight" and not _is_kept(path, modules[path], kept)
        key = (_starred(name), tuple(parameter.shape), kind, _dtype(parameter), quantized)
        groups[key] = groups.get(key, 0) + 1
        block = BLOCK.match(name)
        if block:
            blocks.add(block.group(0))
    names = ("name", "shape", "kind", "dtype", "quantized")
    return {
        "groups": [{**dict(zip(names, key)), "repeat": repeat} for key, repeat in groups.items()],  # noqa: B905 - 3.9
        "layers": len(blocks),
    }


def kind_of(module: Any, leaf: str) -> str:
    """What a parameter is to its module: ``linear``, ``conv1d``, ``embedding``, ``norm``, ``bias`` or ``parameter``."""
    import torch

    class_name = type(module).__name__
    if "norm" in class_name.lower():
        return "norm"
    if isinstance(module, torch.nn.Linear):
        return "linear" if leaf == "weight" else "bias"
    if class_name == "Conv1D":
        return "conv1d" if leaf == "weight" else "bias"
    if isinstance(module, torch.nn.Embedding):
        return "embedding"
    return "parameter"


def tied(model: Any) -> list[list[str]]:
    """The names under which one and the same parameter stands, where there are several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [found for found in names.values() if len(found) > 1]


def buffers(model: Any) -> list[dict[str, Any]]:
    """Tensors of the model that are no parameters, and whether a checkpoint holds them."""
    modules = dict(model.named_modules())
    found: dict[tuple[Any, ...], int] = {}
    for name, buffer in model.named_buffers():
        path, _, leaf = name.rpartition(".")
        persistent = leaf not in modules[path]._non_persistent_buffers_set
        key = (_starred(name), tuple(buffer.shape), _dtype(buffer), buffer.element_size() * buffer.numel(), persistent)
        found[key] = found.get(key, 0) + 1
    names = ("name", "shape", "dtype", "bytes", "persistent")
    return [{**dict(zip(names, key)), "repeat": repeat} for key, repeat in found.items()]  # noqa: B905 - Python 3.9


def experts(model: Any) -> dict[str, int] | None:
    """How many routed experts a layer has at most, and the elements of all of them; None: it has none."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    count = next((getattr(text, name) for name in names if isinstance(getattr(text, name, None), int)), 0)
    elements = sum(p.numel() for name, p in model.named_parameters() if EXPERTS.search(name))
    return {"count": count, "elements": elements} if elements else None


def adapters(model: Any) -> list[dict[str, Any]]:
    """What peft trains, by the names it has there without peft's own prefix."""
    groups: dict[tuple[Any, ...], int] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            key = (_starred(name.replace("base_model.model.", "", 1)), tuple(parameter.shape), _dtype(parameter))
            groups[key] = groups.get(key, 0) + 1
    return [{"name": n, "shape": s, "dtype": d, "repeat": repeat} for (n, s, d), repeat in groups.items()]


def plan(model: Any) -> dict[str, str]:
    """The tensor-parallel plan of the model itself, by pattern; empty where it has none."""
    found = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None) or {}
    return {str(name): str(style) for name, style in found.items()}


def config_of(model: Any) -> dict[str, Any] | None:
    """The model's Hugging Face config; None where it has none that JSON can hold."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        return None
    fields: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    return fields


def kept_by_bitsandbytes(model: Any) -> list[str]:
    """The modules that transformers does not hand to bitsandbytes: the output head, what is tied, the last module."""
    if not hasattr(model, "get_output_embeddings"):
        return []
    try:
        from transformers.quantizers.base import get_keys_to_not_convert
    except ImportError:  # before 5
        try:
            from transformers.integrations.bitsandbytes import get_keys_to_not_convert
        except ImportError:
            return []
    names: list[str] = get_keys_to_not_convert(model)
    return names


def _is_kept(path: str, module: Any, kept: list[str]) -> bool:
    """As ``should_convert_module`` of transformers' quantizers decides; subclasses of Linear are kept as well."""
    import torch

    if isinstance(module, torch.nn.Linear) and type(module) is not torch.nn.Linear:
        return True
    boundary = r"(?:(?<=\.)|(?=\.|$))"
    return any(re.match(rf"(?:{name}){boundary}", path) or path.endswith(name) for name in kept)


def _starred(name: str) -> str:
    return NUMBER.sub("*", name)


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).replace("torch.", "")
