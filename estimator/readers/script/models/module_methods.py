"""Methods of models and their modules that move, convert, freeze, resize or rebuild them."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from ...source import MODEL_STATES, Setting
from ..python import UNKNOWN, Call, External, Thing, as_number, plain, short_text
from .model import Adapter, Model, Part
from .parameters import Parameter, ParameterList

_DTYPES = {
    **dict.fromkeys(("bfloat16", "bf16"), "bfloat16"),
    **dict.fromkeys(("float16", "half", "fp16"), "float16"),
    **dict.fromkeys(("float32", "float", "fp32"), "float32"),
}
_CONVERTERS = {"half": "float16", "bfloat16": "bfloat16", "float": "float32"}
_WITHOUT_EFFECT = (
    *("state_dict", "load_state_dict", "save_pretrained", "push_to_hub", "generate", "forward", "zero_grad"),
    *("print_trainable_parameters", "num_parameters", "tie_weights", "init_weights", "post_init", "buffers"),
    *("enable_input_require_grads", "set_adapter", "backward", "step", "get_memory_footprint", "no_sync"),
    *("named_buffers", "get_nb_trainable_parameters", "register_forward_hook"),
)
_SMALL_PART = 0.01
"""Share of a model's parameters below which a new head needs no mention."""


def _is_whole(part: Part) -> bool:
    return part.prefixes == ("",) and not part.unknown


def _shown(call: Call) -> str:
    return short_text(call.node)


def convert(part: Part, dtype: Any, call: Call) -> None:
    """Convert a model's weights to a dtype."""
    owner = part.owner
    if not isinstance(owner, Model):
        owner.dtype = _DTYPES.get(str(plain(dtype)).rpartition(".")[2], owner.dtype)
    if not isinstance(owner, Model) or dtype is None:
        return
    word = _DTYPES.get(str(plain(dtype)).rpartition(".")[2])
    if word is not None and _is_whole(part):
        owner.put("dtype", word, call.where, f".{call.name}({_arguments(call)})")
    elif word is not None and owner.size_of(part.prefixes) < _SMALL_PART:
        return
    elif isinstance(dtype, str) and word is None:
        owner.uncertain_type(call, f"weights in {dtype!r} are not known here")
    elif not _is_whole(part):
        owner.uncertain_type(call, "only a part of the model is converted; the estimate counts one type")
    else:
        owner.settings.pop("dtype", None)
        owner.settings.pop("torch_dtype", None)
        owner.unresolved["dtype"] = (
            f"{call.where}: .{call.name}({_arguments(call)}) is only known when the script runs."
        )


def given_dtype(call: Call) -> str | None:
    """Return the type to which a method converts; None if it converts to none that is known."""
    if call.name in _CONVERTERS:
        return _CONVERTERS[call.name]
    given = [*call.args, *call.kwargs.values()] if call.name in ("to", "type") else []
    return next((word for each in given if (word := _DTYPES.get(str(plain(each)).rpartition(".")[2]))), None)


def _arguments(call: Call) -> str:
    return ", ".join(
        f"{key}={short_text(node)}" if isinstance(key, str) else short_text(node) for key, node in call.nodes.items()
    )


def _to(part: Part, call: Call) -> Any:
    """Follow ``model.to(device, dtype)``."""
    for at, value in enumerate([*call.args, *(call.kwargs.get(name) for name in ("device", "dtype"))]):
        if value is None:
            continue
        is_dtype = at == len(call.args) + 1 or (isinstance(value, External) and value.owner == "torch")
        shown = short_text(call.nodes.get(at))
        is_dtype = is_dtype or (value is UNKNOWN and re.search(r"(?i)dtype|float|half|precision", shown) is not None)
        if is_dtype:
            convert(part, value, call)
        elif isinstance(part.owner, Model) and _is_whole(part):
            part.owner.on_gpu = not (isinstance(value, str) and value.startswith(("cpu", "meta")))
    return _itself(part)


def _itself(part: Part) -> Any:
    return part.owner if _is_whole(part) else part


def _converter(word: str) -> Callable[[Part, Call], Any]:
    def apply(part: Part, call: Call) -> Any:
        convert(part, word, call)
        return _itself(part)

    return apply


def _type(part: Part, call: Call) -> Any:
    convert(part, call.value(0, "dst_type"), call)
    return _itself(part)


def _move(on_gpu: bool) -> Callable[[Part, Call], Any]:
    def apply(part: Part, call: Call) -> Any:
        if isinstance(part.owner, Model) and _is_whole(part):
            part.owner.on_gpu = on_gpu
        return _itself(part)

    return apply


def _require(part: Part, value: Any, call: Call) -> Any:
    """Freeze or train the parameters of modules."""
    if part.unknown or (
        isinstance(part.owner, Model) and any(p and part.owner.has_part(p) is False for p in part.prefixes)
    ):
        part.owner.uncertain.append(f"{call.where}: {_shown(call)} may freeze or train parameters and is not counted.")
        return part
    part.owner.train(None if _is_whole(part) else part.prefixes, value, call)
    if _is_whole(part) and isinstance(part.owner, Model) and isinstance(value, bool):
        part.owner.adapters_train = value
    return _itself(part)


def _requires_grad(part: Part, call: Call) -> Any:
    return _require(part, call.value(0, "requires_grad", default=True), call)


def _freeze_body(part: Part, call: Call) -> Any:
    if isinstance(part.owner, Model):
        _require(part.owner.body(), value=False, call=call)
    return part


def _freeze_named(part: Part, call: Call) -> Any:
    """Follow ``freeze_feature_encoder()`` and the like, which freeze a module that the library chooses."""
    owner, name = part.owner, call.name.removeprefix("freeze_")
    if isinstance(owner, Model):
        word = "feature_extractor" if name.startswith("feature") else name
        shapes = owner.shapes() or {}
        found = sorted({_up_to(each, word) for each in shapes if f".{word}." in f".{each}"})
        if found:
            owner.train(found[:1], value=False, call=call)
        else:
            sentence = f"{call.where}: {_shown(call)} freezes parameters of the model and is not counted."
            owner.uncertain.append(sentence)
    return None


def _up_to(name: str, word: str) -> str:
    parts = name.split(".")
    return ".".join(parts[: parts.index(word) + 1])


def _parameters(part: Part, call: Call) -> Any:
    return ParameterList([(part.owner, part.prefixes, "")], named=call.name.startswith("named"))


def _modules(part: Part, call: Call) -> Any:
    if part.owner.shapes() is None:
        return UNKNOWN
    found: list[tuple[str, Any]] = [("", part), *_below(part, 0)]
    if isinstance(part.owner, Model) and part.owner.has_adapters and _is_whole(part):
        found.append(("lora", Adapter(part.owner)))
    return found if call.name == "named_modules" else [each for _, each in found]


def _below(part: Part, depth: int) -> list[tuple[str, Part]]:
    found: list[tuple[str, Part]] = []
    for _, child in part.children() or [] if depth < 8 else ():
        found.append((child.prefixes[0], child))
        found += _below(child, depth + 1)
    return found


def _children(part: Part, call: Call) -> Any:
    found = part.children()
    if found is None:
        return UNKNOWN
    return found if call.name == "named_children" else [each for _, each in found]


def _apply(part: Part, call: Call) -> Any:
    modules: list[Any] = [each for _, each in _below(part, 0)] if part.owner.shapes() is not None else [UNKNOWN]
    for each in (*modules, part):
        call.run.call(call.value(0), Call(call.run, call.node, "", None, [each]))
    return _itself(part)


def _checkpoint(on: bool) -> Callable[[Part, Call], Any]:
    def apply(part: Part, call: Call) -> Any:
        if isinstance(part.owner, Model):
            part.owner.put("activation_checkpointing", on, call.where, f"{call.name}()")
        return None

    return apply


def _resize(part: Part, call: Call) -> Any:
    """Follow ``resize_token_embeddings(n)``; the few tokens that scripts add to a tokenizer change nothing."""
    owner, number = part.owner, as_number(call.value(0, "new_num_tokens"))
    if not isinstance(owner, Model) or number is None:
        return UNKNOWN
    multiple = call.value(1, "pad_to_multiple_of")
    if isinstance(number, int) and number > 0:
        if isinstance(multiple, int) and multiple > 0:
            number = -(-number // multiple) * multiple
        if owner.config is not None:
            owner.config.set_field("vocab_size", number, call.where, f"resize_token_embeddings({number})")
            owner.forget_shapes()
    elif owner.notes.added_tokens is None or owner.notes.added_tokens > 1000 or _tokenizer_of_another(owner):
        owner.notes.doubt(
            f"{call.where}: resize_token_embeddings({_arguments(call)}) is only known when the script runs; the "
            "vocabulary of the model is counted as it is.",
            *MODEL_STATES,
            "logits",
            direction="more",
        )
    return part


def _tokenizer_of_another(owner: Model) -> bool:
    """Return True if the tokenizer is not the model's own, so that its vocabulary may be another."""
    tokenizer, name = owner.notes.names_found.get(2), owner.name
    return tokenizer is not None and name is not None and tokenizer.value != name.value


def _embeddings(part: Part, call: Call) -> Any:
    """Return the module of the token embedding or of the output head."""
    shapes = part.owner.shapes()
    if shapes is None:
        return Part(part.owner, ("embed_tokens" if "input" in call.name else "lm_head",))
    if "output" in call.name:
        return Part(part.owner, ("lm_head",))
    endings = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight", "shared.weight")
    found = next((name for name in shapes if name.endswith(endings)), None)
    return Part(part.owner, (found.rpartition(".")[0],)) if found else Part(part.owner, ("",), unknown=True)


def _stack(part: Part, call: Call) -> Any:
    name = call.name.removeprefix("get_")
    owner = part.owner
    if isinstance(owner, Model) and owner.has_part(name) is False:
        return owner.body()
    shared = isinstance(owner, Model) and owner.has_part("shared")
    return Part(owner, (name, "shared") if shared else (name,))


def _submodule(part: Part, call: Call) -> Any:
    name = call.value(0, "target")
    if not isinstance(name, str):
        return Part(part.owner, part.prefixes, unknown=True)
    full = f"{part.prefixes[0]}.{name}" if part.prefixes[0] else name
    return (
        Parameter(part.owner, part.owner.full_name(full)) if call.name == "get_parameter" else Part(part.owner, (full,))
    )


def _add_adapter(part: Part, call: Call) -> Any:
    from .adapters import add_adapters

    if isinstance(part.owner, Model):
        add_adapters(part.owner, call.value(0, "adapter_config", "peft_config"), call)
    return None


def _load_adapter(part: Part, call: Call) -> Any:
    from .adapters import load_adapters

    if isinstance(part.owner, Model):
        load_adapters(part.owner, call, trains=call.value(None, "is_trainable", default=False))
    return None


def _merge(part: Part, call: Call) -> Any:
    if isinstance(part.owner, Model):
        part.owner.has_adapters = False
        part.owner.settings = {
            name: setting
            for name, setting in part.owner.settings.items()
            if not name.startswith("lora_") and name != "use_peft"
        }
    return part.owner


def _compile(part: Part, call: Call) -> Any:
    if isinstance(part.owner, Model) and _is_whole(part):
        part.owner.put("torch_compile", True, call.where, "compile()")
    return None


def _set_embeddings(part: Part, call: Call) -> Any:
    value = call.value(0)
    if isinstance(part.owner, Model) and isinstance(value, Thing):
        from .layers import replace_part

        replace_part(part.owner, "lm_head" if "output" in call.name else "embed_tokens", value, call)
    return None


def _add_module(part: Part, call: Call) -> Any:
    name = call.value(0)
    if isinstance(name, str):
        part.set_attribute(name, call.value(1), call)
    return None


def _share(part: Part, call: Call) -> Any:
    return _itself(part)


def _fit(part: Part, call: Call) -> Any:
    """Follow ``fit(objectives, use_amp=True)``, which trains a model of sentence-transformers."""
    if isinstance(part.owner, Model):
        notes = part.owner.notes
        notes.parameters_given.append(part.owner)
        if plain(call.value(None, "use_amp", default=False)) is True:
            setting = Setting(value="fp16", origin=f"{call.where}: fit(use_amp=True)")
            notes.own_loop.setdefault("mixed_precision", setting)
    return None


def _hook(part: Part, call: Call) -> Any:
    """Note a communication hook of DDP's, which may copy its buckets."""
    if isinstance(part.owner, Model):
        part.owner.put("ddp_comm_hook", "hook", call.where, f".{call.name}({_arguments(call)})")
    return UNKNOWN


MODULE_METHODS: Mapping[str, Callable[[Part, Call], Any]] = {
    **dict.fromkeys(("parameters", "named_parameters"), _parameters),
    **dict.fromkeys(("modules", "named_modules"), _modules),
    **dict.fromkeys(("children", "named_children"), _children),
    "to": _to,
    "type": _type,
    "cuda": _move(on_gpu=True),
    "cpu": _move(on_gpu=False),
    **{name: _converter(word) for name, word in _CONVERTERS.items()},
    "requires_grad_": _requires_grad,
    **dict.fromkeys(("freeze", "freeze_parameters"), lambda part, call: _require(part, value=False, call=call)),
    **dict.fromkeys(("unfreeze", "unfreeze_parameters"), lambda part, call: _require(part, value=True, call=call)),
    **dict.fromkeys(("freeze_base_model", "freeze_backbone"), _freeze_body),
    **dict.fromkeys(("freeze_feature_encoder", "freeze_feature_extractor", "freeze_encoder"), _freeze_named),
    **dict.fromkeys(("gradient_checkpointing_enable", "enable_gradient_checkpointing"), _checkpoint(on=True)),
    **dict.fromkeys(("gradient_checkpointing_disable", "disable_gradient_checkpointing"), _checkpoint(on=False)),
    "resize_token_embeddings": _resize,
    **dict.fromkeys(("get_input_embeddings", "get_output_embeddings"), _embeddings),
    **dict.fromkeys(("set_input_embeddings", "set_output_embeddings"), _set_embeddings),
    **dict.fromkeys(("get_encoder", "get_decoder"), _stack),
    **dict.fromkeys(("get_submodule", "get_parameter"), _submodule),
    "add_adapter": _add_adapter,
    "load_adapter": _load_adapter,
    "apply": _apply,
    "compile": _compile,
    "fit": _fit,
    "register_comm_hook": _hook,
    **dict.fromkeys(("add_module", "register_module"), _add_module),
    **dict.fromkeys(("merge_and_unload", "unload", "merge_adapter"), _merge),
    **dict.fromkeys(
        ("train", "eval", "get_base_model", "get_model", "share_memory", "unwrap", "to_bettertransformer"), _share
    ),
    **dict.fromkeys(_WITHOUT_EFFECT, lambda _, __: UNKNOWN),
}
"""Methods of modules by name."""
