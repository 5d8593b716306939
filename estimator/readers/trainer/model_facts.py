"""What a model's config says where a launch line leaves it open: the weights' type, the layers that peft adapts."""

from collections.abc import Mapping
from typing import Any

from ...common.errors import VramtopError
from ...job.job import ModelSpec
from ...model.find_config import resolve_model
from ..source.evidence import Finding
from ..source.settings import Setting

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
    "phi": "q_proj v_proj fc1 fc2",
}
"""By model type, as of peft 0.18 (its ``utils/constants.py``); of other types peft wants to be told."""


def known_config(
    model: Finding | None, environ: Mapping[str, str], *, folders: bool = True
) -> Mapping[str, Any] | None:
    """The model's config; None where there is none to be had here.

    Args:
        model: its name or folder.
        environ: whose cache is looked into.
        folders: whether a relative name may be a folder of ours.
    """
    if model is None:
        return None
    name = str(model.value)
    try:
        return resolve_model(ModelSpec(id=name), environ=environ, folders=folders or name.startswith("/")).config
    except (VramtopError, OSError):  # a model that cannot be estimated is said elsewhere; here it stays open
        return None


def stored_dtype(config: Mapping[str, Any] | None) -> Setting | None:
    """What ``dtype="auto"`` loads; None where the config is not known."""
    if config is None:
        return None
    kind = config.get("dtype") or config.get("torch_dtype")
    if kind is None:  # such configs are older than the field, and their checkpoints are in fp32
        return Setting(value="float32", origin="the model's config names no type, so fp32", written=False)
    return Setting(value=kind, origin=f"the model's config says {kind}", written=False)


def usual_targets(config: Mapping[str, Any] | None) -> Setting | None:
    """The layers that peft adapts unless it is told; None where it wants to be told."""
    if config is None:
        origin = "peft's choice for most decoder models, written nowhere"
        return Setting(value=["q_proj", "v_proj"], origin=origin, written=False)
    kind = str(config.get("model_type"))
    if kind not in _PEFT_TARGETS:
        return None
    return Setting(
        value=_PEFT_TARGETS[kind].split(), origin=f"peft's choice for {kind}, written nowhere", written=False
    )
