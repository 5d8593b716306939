"""Defaults of transformers' config classes, for scripts that make a model from a config of their own.

Source: the configuration files of transformers 5 (``models/<family>``). Fields that follow from others are left out.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def _decoder(*sizes: int, **more: Any) -> Mapping[str, Any]:
    hidden, mlp, layers, heads, vocabulary, positions = sizes
    table = {
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        **more,
    }
    return MappingProxyType(table)


_QWEN2 = _decoder(4096, 22016, 32, 32, 151936, 32768, num_key_value_heads=32)
_BERT: Mapping[str, Any] = _decoder(768, 3072, 12, 12, 30522, 512, type_vocab_size=2)

CONFIG_DEFAULTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Llama": ("llama", _decoder(4096, 11008, 32, 32, 32000, 2048)),
    "Mistral": ("mistral", _decoder(4096, 14336, 32, 32, 32000, 131072, num_key_value_heads=8)),
    "Mixtral": (
        "mixtral",
        _decoder(
            *(4096, 14336, 32, 32, 32000, 131072), num_key_value_heads=8, num_local_experts=8, num_experts_per_tok=2
        ),
    ),
    "Qwen2": ("qwen2", _QWEN2),
    "Qwen3": ("qwen3", _decoder(4096, 22016, 32, 32, 151936, 32768, num_key_value_heads=32, head_dim=128)),
    "Gemma": ("gemma", _decoder(3072, 24576, 28, 16, 256000, 8192, num_key_value_heads=16, head_dim=256)),
    "Gemma2": ("gemma2", _decoder(2304, 9216, 26, 8, 256000, 8192, num_key_value_heads=4, head_dim=256)),
    "Gemma3Text": ("gemma3_text", _decoder(2304, 9216, 26, 8, 262208, 131072, num_key_value_heads=4, head_dim=256)),
    "Phi": ("phi", _decoder(2048, 8192, 24, 32, 51200, 2048)),
    "Phi3": ("phi3", _decoder(3072, 8192, 32, 32, 32064, 4096)),
    "Olmo2": ("olmo2", _decoder(4096, 11008, 32, 32, 50304, 2048)),
    "GPTNeoX": ("gpt_neox", _decoder(6144, 24576, 44, 64, 50432, 2048)),
    "GPT2": (
        "gpt2",
        MappingProxyType({"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}),
    ),
    "Bert": ("bert", _BERT),
    "Roberta": ("roberta", MappingProxyType({**_BERT, "vocab_size": 50265})),
    "DistilBert": (
        "distilbert",
        MappingProxyType(
            {
                "vocab_size": 30522,
                "dim": 768,
                "n_layers": 6,
                "n_heads": 12,
                "hidden_dim": 3072,
                "max_position_embeddings": 512,
            }
        ),
    ),
    "T5": (
        "t5",
        MappingProxyType(
            {
                "vocab_size": 32128,
                "d_model": 512,
                "d_kv": 64,
                "d_ff": 2048,
                "num_layers": 6,
                "num_heads": 8,
                "relative_attention_num_buckets": 32,
                "feed_forward_proj": "relu",
                "is_encoder_decoder": True,
            }
        ),
    ),
}
"""``model_type`` and defaults by what a class's name begins with: ``Llama`` of ``LlamaConfig``."""

FIELD_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "hidden_size": ("n_embd", "d_model", "dim"),
        "num_hidden_layers": ("n_layer", "num_layers", "n_layers"),
        "num_attention_heads": ("n_head", "num_heads", "n_heads"),
        "max_position_embeddings": ("n_positions",),
        "intermediate_size": ("n_inner", "d_ff", "hidden_dim"),
    }
)
"""Names that families have for a field which transformers also offers under its general name."""
SHAPE_FIELDS = frozenset(
    {
        *(name for general, names in FIELD_NAMES.items() for name in (general, *names)),
        *("num_labels", "vocab_size", "num_key_value_heads", "head_dim", "tie_word_embeddings", "num_local_experts"),
        *("num_experts", "moe_intermediate_size", "n_routed_experts", "num_decoder_layers", "decoder_layers"),
        *("encoder_layers", "ffn_dim", "type_vocab_size", "num_experts_per_tok"),
    }
)
"""Fields on which parameters or activations depend."""


def general_name(field: str, config: Mapping[str, Any]) -> str:
    """Return the name under which a config has a field."""
    if field in config:
        return field
    return next((name for name in FIELD_NAMES.get(field, ()) if name in config), field)
