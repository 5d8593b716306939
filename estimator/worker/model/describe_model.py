"""Contents of a built model in lists that JSON can hold: parameters, ties, buffers, experts, adapters, plans."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
FIRST_LAYER_NUMBER = re.compile(r"^(.*?)\.\d+(?=\.)")
EXPERT_MODULE = re.compile(r"(^|\.)experts?(\.|$)")
EXPERT_COUNT_FIELDS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def parameter_groups(model: Any, *, places: bool = False) -> dict[str, Any]:
    """Return ``groups`` of parameters, tied ones once under their first name, and the number of numbered ``layers``.

    Args:
        model: the model.
        places: with the numbers in the names of each group's parameters.
    """
    modules = dict(model.named_modules())
    kept = modules_kept_by_bitsandbytes(model)
    groups: Counter[tuple[Any, ...]] = Counter()
    numbers: dict[tuple[Any, ...], list[list[int]]] = {}
    layers = set()
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        kind = parameter_kind(modules[path], leaf)
        quantized = leaf == "weight" and is_quantizable(path, modules[path], kept)
        group = _without_numbers(name), tuple(parameter.shape), kind, _dtype(parameter), quantized
        groups[group] += 1
        if ".*." in group[0]:
            numbers.setdefault(group, []).append([int(number) for number in LAYER_NUMBER.findall(name)])
        layer = FIRST_LAYER_NUMBER.match(name)
        if layer:
            layers.add(layer.group(0))
    found = _as_mappings(groups, ("name", "shape", "kind", "dtype", "quantized"))
    if places:
        found = [{**each, "places": numbers.get(group)} for each, group in zip(found, groups)]  # noqa: B905 - 3.9
    return {"groups": found, "layers": len(layers)}


def parameter_kind(module: Any, leaf: str) -> str:
    """Return a parameter's kind: ``linear``, ``conv1d``, ``embedding``, ``norm``, ``bias`` or ``parameter``."""
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


def tied_parameters(model: Any) -> list[list[str]]:
    """Return the names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [found for found in names.values() if len(found) > 1]


def buffer_groups(model: Any) -> list[dict[str, Any]]:
    """Return groups of buffers; a checkpoint holds the persistent ones."""
    modules = dict(model.named_modules())
    groups: Counter[tuple[Any, ...]] = Counter()
    for name, buffer in model.named_buffers():
        path, _, leaf = name.rpartition(".")
        persistent = leaf not in modules[path]._non_persistent_buffers_set
        buffer_bytes = buffer.element_size() * buffer.numel()
        groups[_without_numbers(name), tuple(buffer.shape), _dtype(buffer), buffer_bytes, persistent] += 1
    return _as_mappings(groups, ("name", "shape", "dtype", "bytes", "persistent"))


def routed_experts(model: Any) -> dict[str, int] | None:
    """Return the most routed experts of a layer and the elements of all experts; None: the model has none."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    counts = [getattr(text, field, None) for field in EXPERT_COUNT_FIELDS]
    count = next((count for count in counts if isinstance(count, int)), 0)
    elements = sum(p.numel() for name, p in model.named_parameters() if EXPERT_MODULE.search(name))
    return {"count": count, "elements": elements} if elements else None


def adapter_groups(model: Any) -> list[dict[str, Any]]:
    """Return groups of the parameters that peft trains, under peft's names without its prefix."""
    groups: Counter[tuple[Any, ...]] = Counter()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            own_name = _without_numbers(name.replace("base_model.model.", "", 1))
            groups[own_name, tuple(parameter.shape), _dtype(parameter)] += 1
    return _as_mappings(groups, ("name", "shape", "dtype"))


def tensor_parallel_plan(model: Any) -> dict[str, str]:
    """Return the model's own tensor-parallel plan, by pattern; empty: it has none."""
    plan = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None) or {}
    return {str(name): str(style) for name, style in plan.items()}


def config_fields(model: Any) -> dict[str, Any] | None:
    """Return the model's Hugging Face config; None: it has none."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        return None
    fields: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    return fields


def modules_kept_by_bitsandbytes(model: Any) -> list[str]:
    """Return the modules that transformers does not quantize: the output head, tied modules, the last module."""
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


def is_quantizable(path: str, module: Any, kept: list[str]) -> bool:
    """Return True for a module that bitsandbytes replaces, as ``should_convert_module`` of transformers decides.

    Args:
        path: of the module.
        module: the module; subclasses of ``Linear`` stay as they are.
        kept: from ``modules_kept_by_bitsandbytes``.
    """
    import torch

    if type(module) is not torch.nn.Linear and type(module).__name__ != "Conv1D":
        return False
    boundary = r"(?:(?<=\.)|(?=\.|$))"
    return not any(re.match(rf"(?:{name}){boundary}", path) or path.endswith(name) for name in kept)


def _as_mappings(groups: Counter[tuple[Any, ...]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{**dict(zip(names, key)), "repeat": repeat} for key, repeat in groups.items()]  # noqa: B905 - Python 3.9


def _without_numbers(name: str) -> str:
    """Return a parameter's name with ``*`` for layer numbers."""
    return LAYER_NUMBER.sub("*", name)


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).replace("torch.", "")
