"""The model of a LitGPT job: a checkpoint folder, a name in its list, or a ``Config`` of its own.

Read from ``config.py`` (defaults), ``model.py`` and ``utils.py`` (``extend_checkpoint_dir``) of LitGPT 0.5.13.
"""

import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from ....common import InputError
from ...program import Program
from ...source import LayeredSettings, Setting, read_table
from ..shared import config_of_model, folder_id

_CONFIG_FILE = "model_config.yaml"
_PREFIX = "model_config."
_DEFAULTS: Mapping[str, Any] = {
    "n_layer": 16,
    "n_embd": 4096,
    "n_head": 32,
    "block_size": 4096,
    "vocab_size": 50254,
    "padding_multiple": 512,
    "norm_class_name": "LayerNorm",
    "mlp_class_name": "GptNeoxMLP",
    "bias": True,
    "parallel_residual": True,
    "norm_eps": 1e-5,
}
_LLAMA = ("RMSNorm", "LLaMAMLP")
_GPT_NEOX = ("LayerNorm", "GptNeoxMLP")
_NOT_CONVERTED = (
    *("n_expert", "latent_attention", "norm_qk", "post_attention_norm", "post_mlp_norm", "shared_attention_norm"),
    *("sliding_window_size", "attention_logit_softcapping", "final_logit_softcapping", "lm_head_bias"),
)
"""Parts of a ``Config`` that the two families it is converted to do not have."""


def read_litgpt_model(program: Program, settings: LayeredSettings, *, positional: str | None) -> None:
    """Record ``model.id``, and ``model.config`` where LitGPT's model has a config of its own or unties the head.

    Args:
        program: the program.
        settings: its settings.
        positional: the model on the command line without a flag.
    """
    own = _own_config(settings)
    if own is not None:
        _record_converted(program, own.value, own.origin)
        return
    setting = settings.find("checkpoint_dir", "model_name", "initial_checkpoint_dir", "repo_id")
    if positional is not None:
        setting = Setting(value=positional, origin=f"{positional} on the command line")
    if setting is None:
        return
    text = str(setting.value).rstrip("/")
    folder = _checkpoint_folder(program, text)
    stored = _stored_config(folder / _CONFIG_FILE, program) if folder is not None else {}
    hub = stored.get("hf_config")
    if folder is not None and (found := folder_id(program.filesystem, str(folder))) is not None:
        name = found
    elif isinstance(hub, Mapping) and hub.get("org") and hub.get("name"):
        name = f"{hub['org']}/{hub['name']}"
    elif stored:
        _record_converted(program, stored, f"{setting.origin}: {_CONFIG_FILE}")
        return
    else:
        name = "/".join(PurePath(text).parts[-2:]) if "/" in text else text
    program.findings.record_from(setting, "model.id", name)
    _untie(program, settings, setting.with_value(name))


def _own_config(settings: LayeredSettings) -> Setting | None:
    """Return the ``Config`` that is written out, which wins over the model's name."""
    fields = {name: found for name in settings.names(_PREFIX) if (found := settings.find(name)) is not None}
    if not fields:
        return None
    origin = next(iter(fields.values())).origin
    values = {name.removeprefix(_PREFIX): _number(setting.value) for name, setting in fields.items()}
    return Setting(value=values, origin=origin)


def _number(value: Any) -> Any:
    """Return the value of a flag's text as YAML means it."""
    if not isinstance(value, str):
        return value
    words = {"true": True, "false": False, "null": None, "None": None}
    return words.get(value, int(value) if value.lstrip("-").isdecimal() else value)


def _checkpoint_folder(program: Program, text: str) -> Path | None:
    """Return the folder as LitGPT finds it: as it is written, or below ``checkpoints``."""
    for name in (text, f"checkpoints/{text}"):
        folder = program.filesystem.resolve(name)
        if os.access(folder / _CONFIG_FILE, os.R_OK) or os.access(folder / "config.json", os.R_OK):
            return folder
    return None


def _stored_config(path: Path, program: Program) -> Mapping[str, Any]:
    try:
        return read_table(path) if os.access(path, os.R_OK) else {}
    except InputError as error:
        program.findings.warn(f"The model's own configuration is not counted: {error.message}", unless="model.id")
        return {}


def _untie(program: Program, settings: LayeredSettings, model: Setting) -> None:
    """Record a config without a tied head: LitGPT's ``GPT`` has a head of its own, whatever the checkpoint ties."""
    if settings.is_true("train.tie_embeddings"):
        return
    config = config_of_model(program, model)
    if config is not None and config.get("tie_word_embeddings"):
        untied = {**config, "tie_word_embeddings": False}
        program.findings.record("model.config", untied, f"{model.origin}; LitGPT unties the head", written=False)


def _record_converted(program: Program, own: Mapping[str, Any], origin: str) -> None:
    """Record the Hugging Face config of the same model, for models with Llama's or GPT-NeoX's blocks."""
    known = {**_DEFAULTS, **{name: value for name, value in own.items() if value is not None}}
    sizes = [known[name] for name in ("n_layer", "n_embd", "n_head", "vocab_size", "padding_multiple", "block_size")]
    kind = (known["norm_class_name"], known["mlp_class_name"])
    is_gpt_neox = kind == _GPT_NEOX and bool(known["bias"])
    unusual = [name for name in _NOT_CONVERTED if known.get(name)]
    is_llama = kind == _LLAMA and isinstance(known.get("intermediate_size"), int)
    if unusual or not all(type(size) is int and size > 0 for size in sizes) or not (is_llama or is_gpt_neox):
        part = ", ".join(unusual) or " with ".join(kind)
        program.findings.warn(
            f"{origin}: LitGPT's model with {part} is not known here; give model.config.", unless="model.id"
        )
        return
    _, hidden, heads, vocab, multiple, _ = sizes
    config = {
        "num_hidden_layers": known["n_layer"],
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": known.get("intermediate_size") or 4 * hidden,
        "vocab_size": known.get("padded_vocab_size") or -(-vocab // multiple) * multiple,
        "max_position_embeddings": known["block_size"],
        "tie_word_embeddings": False,
        "attention_bias": bool(known["bias"]),
    }
    if is_llama:
        config |= {"model_type": "llama", "mlp_bias": bool(known["bias"]), "rms_norm_eps": known["norm_eps"]}
        config |= {"num_key_value_heads": known.get("n_query_groups") or heads}
        config |= {"head_dim": known.get("head_size") or hidden // heads, "hidden_act": "silu"}
    else:
        config |= {"model_type": "gpt_neox", "use_parallel_residual": bool(known["parallel_residual"])}
        config |= {"hidden_act": "gelu"}
    program.findings.record("model.config", config, origin)
