"""Configs of small Llamas by their sizes, for tests in which nothing but these matters."""

from typing import Any


def llama_config(
    *,
    hidden: int | None = None,
    mlp: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    vocab: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return the config of a Llama of these sizes, without those that are not given, and with further fields."""
    sizes = {
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
    }
    return {"model_type": "llama", **{name: size for name, size in sizes.items() if size is not None}, **more}
