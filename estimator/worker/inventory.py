"""The model, built from its config without weights, and its parameters, ties, buffers, experts and plans."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import torch

from .replaced import replaced
from .request.protocol import RefusedError
from .request.tasks import NOT_IN_MODELS, auto_class_name
from .request.user_code import UserCode, build_user_model, refusing_errors


def auto_class(task: str) -> Any:
    """Return the auto class of a task.

    Raises:
        RefusedError: this version of transformers does not have it.
    """
    import transformers

    found = getattr(transformers, auto_class_name(task), None)
    if found is None:
        raise RefusedError(f"transformers {transformers.__version__} has no {auto_class_name(task)} (task {task})")
    return found


def build_model(fields: dict[str, Any], task: str, *, code: UserCode | None = None) -> Any:
    """Build a model on the current default device, in fp32.

    Args:
        fields: of the Hugging Face config.
        task: the head, named as in job files.
        code: code that the user allows to run beside the installed libraries; a model of the user's is not changed.

    Raises:
        RefusedError: transformers does not know the model type or has no such head for it, or the user's code fails.
    """
    if code is not None and code.model:
        return build_user_model(code.model, code.folder)
    if code is not None and code.remote and fields.get("auto_map"):
        return _from_remote_code(code, task)
    return _from_transformers(fields, task)


def resolved_config(fields: dict[str, Any]) -> Any:
    """Return the config with transformers' defaults for the fields that it leaves out."""
    import transformers

    kwargs = {key: value for key, value in fields.items() if key not in NOT_IN_MODELS}
    return transformers.AutoConfig.for_model(fields["model_type"], **kwargs)


def add_lora_adapters(model: Any, rank: int, targets: Any) -> Any:
    """Return the model with peft's LoRA adapters.

    Raises:
        RefusedError: peft is not installed, or finds nothing to adapt.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise RefusedError("adapters need the library peft, which this interpreter does not have") from None
    try:
        # parameters without storage cannot be moved
        with replaced((torch.nn.Module, "to", lambda module, *_args, **_kwargs: module)):
            return get_peft_model(model, LoraConfig(r=rank, target_modules=targets))
    except ValueError as error:
        raise RefusedError(f"peft cannot adapt this model: {' '.join(str(error).split())[:200]}") from None


def has_tied_head(model: Any) -> bool:
    """Return True if the output layer's weight is the token embedding's parameter."""
    if not hasattr(model, "get_output_embeddings"):
        return False
    head, tokens = model.get_output_embeddings(), _input_embeddings(model)
    return head is not None and tokens is not None and getattr(head, "weight", None) is getattr(tokens, "weight", None)


def require_known_type(fields: dict[str, Any]) -> None:
    """Refuse a config whose type transformers does not have.

    Raises:
        RefusedError: it may come with its own code.
    """
    import transformers

    name = fields.get("model_type")
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if name not in known and fields.get("auto_map"):
        raise RefusedError(
            f"the model type {name!r} comes with its own code; give --trust-remote-code (model.trust_remote_code = "
            "true) to run it"
        )
    if name not in known:
        raise RefusedError(f"transformers {transformers.__version__} does not know the model type {name!r}")


def _from_transformers(fields: dict[str, Any], task: str) -> Any:
    """Build a model of a type that the installed transformers has."""
    import transformers

    require_known_type(fields)
    config = resolved_config(fields)
    head = auto_class(task)
    if type(config) not in head._model_mapping:
        raise RefusedError(
            f"transformers {transformers.__version__} has no {task} head for the model type {config.model_type!r}"
        )
    model = head.from_config(config, attn_implementation="eager", trust_remote_code=False)
    if fields.get("tie_word_embeddings") is False and has_tied_head(model):
        # transformers 5 ties T5's head whatever the config says, but unties what a checkpoint holds apart
        output = model.get_output_embeddings()
        output.weight = torch.nn.Parameter(torch.empty_like(output.weight))
    return model


def _from_remote_code(code: UserCode, task: str) -> Any:
    """Build a model from the code in its folder, which transformers imports by the config's ``auto_map``."""
    import transformers

    head = auto_class(task)
    with refusing_errors(f"the code in {code.folder}", code.folder):
        config = transformers.AutoConfig.from_pretrained(code.folder, trust_remote_code=True)
        if head.__name__ not in (getattr(config, "auto_map", None) or {}) and type(config) not in head._model_mapping:
            raise RefusedError(f"{code.folder}: its auto_map has no {head.__name__} (task {task})")
        for name in ("dtype", "torch_dtype"):
            if getattr(config, name, None) is not None:
                setattr(config, name, None)  # the job's precision decides
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        return head.from_config(config, attn_implementation="eager", trust_remote_code=True)


def _input_embeddings(model: Any) -> Any:
    try:
        return model.get_input_embeddings()
    except NotImplementedError:  # raised by transformers' models of some other modalities
        return None


LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
FIRST_LAYER_NUMBER = re.compile(r"^(.*?)\.\d+(?=\.)")


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
        group = _without_numbers(name), tuple(parameter.shape), kind, quantized
        groups[group] += 1
        if ".*." in group[0]:
            numbers.setdefault(group, []).append([int(number) for number in LAYER_NUMBER.findall(name)])
        layer = FIRST_LAYER_NUMBER.match(name)
        if layer:
            layers.add(layer.group(0))
    found = _as_mappings(groups, ("name", "shape", "kind", "quantized"))
    if places:
        found = [{**each, "places": numbers.get(group)} for each, group in zip(found, groups)]  # noqa: B905 - 3.9
    return {"groups": found, "layers": len(layers)}


def parameter_kind(module: Any, leaf: str) -> str:
    """Return a parameter's kind: ``linear``, ``conv1d``, ``embedding``, ``norm``, ``bias`` or ``parameter``."""
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
    """Return groups of buffers."""
    groups: Counter[tuple[Any, ...]] = Counter()
    for name, buffer in model.named_buffers():
        buffer_bytes = buffer.element_size() * buffer.numel()
        groups[_without_numbers(name), buffer_bytes] += 1
    return _as_mappings(groups, ("name", "tensor_bytes"))


def adapter_groups(model: Any) -> list[dict[str, Any]]:
    """Return groups of the parameters that peft trains, under peft's names without its prefix."""
    groups: Counter[tuple[Any, ...]] = Counter()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            own_name = _without_numbers(name.replace("base_model.model.", "", 1))
            groups[own_name, tuple(parameter.shape), "linear"] += 1
    return _as_mappings(groups, ("name", "shape", "kind"))


def config_fields(model: Any) -> dict[str, Any] | None:
    """Return the model's Hugging Face config; None: it has none."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        return None
    fields: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    return fields


def modules_kept_by_bitsandbytes(model: Any) -> list[str]:
    """Return the modules that transformers does not quantize: head, tied modules, the last one, and T5's ``wo``."""
    if not hasattr(model, "get_output_embeddings"):
        return []
    try:
        from transformers.quantizers.base import get_keys_to_not_convert
    except ImportError:  # before 5
        try:
            from transformers.integrations.bitsandbytes import get_keys_to_not_convert
        except ImportError:
            return []
    return [*get_keys_to_not_convert(model), *(getattr(model, "_keep_in_fp32_modules", None) or ())]


def is_quantizable(path: str, module: Any, kept: list[str]) -> bool:
    """Return True for a module that bitsandbytes replaces, as ``should_convert_module`` of transformers decides.

    Args:
        path: of the module.
        module: the module; subclasses of ``Linear`` stay as they are.
        kept: from ``modules_kept_by_bitsandbytes``.
    """
    if type(module) is not torch.nn.Linear and type(module).__name__ != "Conv1D":
        return False
    boundary = r"(?:(?<=\.)|(?=\.|$))"
    return not any(re.match(rf"(?:{name}){boundary}", path) or path.endswith(name) for name in kept)


def _as_mappings(groups: Counter[tuple[Any, ...]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{**dict(zip(names, key)), "repeat": repeat} for key, repeat in groups.items()]  # noqa: B905 - Python 3.9


def _without_numbers(name: str) -> str:
    """Return a parameter's name with ``*`` for layer numbers."""
    return LAYER_NUMBER.sub("*", name)
