"""The settings of LitGPT's model, from the config of the Hugging Face model that it converts.

Source: LitGPT 0.5.13 ``config.py``, the entries of these families.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...model.build import resolved_config
from ...request.errors import UnsupportedError


@dataclass(frozen=True)
class Sizes:
    """LitGPT's ``Config``, under its names."""

    vocab_size: int
    n_embd: int
    n_layer: int
    n_head: int
    n_query_groups: int
    head_size: int
    intermediate_size: int
    rope_n_elem: int
    rms_norm: bool = True
    add_unit_offset: bool = False
    gated: bool = True
    activation: str = "silu"
    bias: bool = False
    attn_bias: bool = False
    lm_head_bias: bool = False
    parallel_residual: bool = False
    shared_attention_norm: bool = False
    norm_qk: bool = False
    scale_embeddings: bool = False


_PHI = {
    "rms_norm": False,
    "gated": False,
    "activation": "gelu",
    "bias": True,
    "lm_head_bias": True,
    "parallel_residual": True,
    "shared_attention_norm": True,
}
_NEOX = {"rms_norm": False, "gated": False, "activation": "gelu", "bias": True}
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "phi3": {},
    "qwen2": {"attn_bias": True},
    "qwen3": {"norm_qk": True},
    "gemma": {"activation": "gelu", "add_unit_offset": True, "scale_embeddings": True},
    "phi": _PHI,
    "falcon": {**_PHI, "bias": False, "lm_head_bias": False},
    "gpt_neox": _NEOX,
}
"""What distinguishes a family, by ``model_type``."""


def read_sizes(fields: dict[str, Any]) -> Sizes:
    """Return the settings for the config of a Hugging Face model.

    Raises:
        UnsupportedError: LitGPT's model of this family is not known here.
    """
    family = fields.get("model_type", "")
    if family not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise UnsupportedError(f"LitGPT's model of the type {family} cannot be traced, only those of {known}")
    config = resolved_config(fields)
    heads = config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    settings = dict(_FAMILIES[family])
    if family == "falcon":
        new = config.new_decoder_architecture
        groups = config.num_kv_heads if new else 1 if config.multi_query else heads
        settings["shared_attention_norm"] = not new or getattr(config, "num_ln_in_parallel_attn", 2) == 1
    if family == "gpt_neox":
        settings["parallel_residual"] = config.use_parallel_residual
    if family == "llama":
        settings["attn_bias"] = bool(getattr(config, "attention_bias", False))
    return Sizes(
        vocab_size=config.vocab_size,
        n_embd=config.hidden_size,
        n_layer=config.num_hidden_layers,
        n_head=heads,
        n_query_groups=groups,
        head_size=head_size,
        intermediate_size=getattr(config, "intermediate_size", None) or config.ffn_hidden_size,
        rope_n_elem=int(_rotary_share(config) * head_size),
        **settings,
    )


def _rotary_share(config: Any) -> float:
    """Return the share of a head that is rotated, under the names of old and new configs."""
    rope = getattr(config, "rope_parameters", None) or {}
    for holder in (rope, vars(config)):
        for name in ("partial_rotary_factor", "rotary_pct"):
            if isinstance(holder, dict) and holder.get(name) is not None:
                return float(holder[name])
    return 1.0
