"""Defaults that follow from a model's config: the dtype of its weights and the layers that peft adapts."""

from collections.abc import Mapping
from typing import Any

from ...common import VramtopError
from ...job import ModelSpec
from ..source import Finding, FindingCollector, Setting, default_setting

_PEFT_TARGETS = {
    **dict.fromkeys(
        ("llama", "llama4", "mistral", "mixtral", "gemma", "gemma2", "gemma3_text", "qwen2", "qwen3"),
        "q_proj v_proj",
    ),
    **dict.fromkeys(("opt", "bart", "gptj", "gpt_neo", "stablelm"), "q_proj v_proj"),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra", "layoutlm"), "query value"),
    **dict.fromkeys(("gpt_neox", "bloom", "falcon", "chatglm"), "query_key_value"),
    **dict.fromkeys(("t5", "mt5"), "q v"),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), "c_attn"),
    "deberta-v2": "query_proj value_proj",
    "deberta": "in_proj",
    "mpt": "Wqkv",
    "codegen": "qkv_proj",
    "nemotron_h": "q_proj k_proj v_proj o_proj",
    "rwkv": "key value receptance output",
    "phi": "q_proj v_proj fc1 fc2",
}
"""By model type, as of peft 0.21 (its ``utils/constants.py``); for other types peft requires target modules."""


def known_config(
    model: Finding | Setting | None, environ: Mapping[str, str], *, folders: bool = True
) -> Mapping[str, Any] | None:
    """Return the model's config; None if it cannot be found here.

    Args:
        model: its name or folder.
        environ: the environment that names the caches to search.
        folders: whether a relative name may be a folder of ours.
    """
    if model is None:
        return None
    from ...model import resolve_model  # here: 20 ms that recognising a running program does not need

    name = str(model.value)
    try:
        return resolve_model(ModelSpec(id=name), environ=environ, folders=folders or name.startswith("/")).config
    except (VramtopError, OSError):  # a model that cannot be estimated is reported elsewhere
        return None


def given_config(findings: FindingCollector, environ: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the config of the model that the user gives in place of the one that is read; None if it is not found."""
    config = findings.get("model.config")
    if config is not None and isinstance(config.value, Mapping):
        return config.value
    return known_config(findings.get("model.id"), environ)


def hidden_size(config: Mapping[str, Any] | None) -> int | None:
    """Return the hidden size as DeepSpeed's integration finds it; None if the config is unknown or has none."""
    for table in (config or {}, (config or {}).get("text_config") or {}):
        names = ("hidden_size", "n_embd", "d_model", "dim")  # transformers' attribute maps know them as hidden_size
        for value in (*(table.get(name) for name in names), max(table.get("hidden_sizes") or [0])):
            if isinstance(value, int) and value > 0:
                return value
    return None


def stored_dtype(config: Mapping[str, Any] | None) -> Setting | None:
    """Return the dtype that ``dtype="auto"`` loads; None if the config is unknown."""
    if config is None:
        return None
    from ...model import stored_dtype as dtype_of_config  # here, as above

    dtype = dtype_of_config(config)
    if dtype is None:  # such configs are older than the field, and their checkpoints are in fp32
        return default_setting("fp32", "the model's config names no type, so fp32")
    return default_setting(dtype, f"the model's config says {dtype}")


def default_targets(config: Mapping[str, Any] | None) -> Setting | None:
    """Return the layers that peft adapts by default; None if peft requires them to be named."""
    if config is None:
        return default_setting(["q_proj", "v_proj"], "peft's default for most decoder models, not set anywhere")
    kind = str(config.get("model_type"))
    if kind not in _PEFT_TARGETS:
        return None
    return default_setting(_PEFT_TARGETS[kind].split(), f"peft's default for {kind}, not set anywhere")
