"""The input that each linear layer of a block reads, by the layer's name: layers that share an input save it once."""

from typing import Literal

LinearInput = Literal["attention_in", "attention_out", "mlp_in", "mlp_out"]
"""A tensor that linear layers of a block read; ``*_out``: the input of the last projection."""

_MODULES: dict[LinearInput, tuple[str, ...]] = {
    "attention_in": (
        *("q_proj", "k_proj", "v_proj", "qkv_proj", "c_attn", "query_key_value", "q_lin", "k_lin", "v_lin"),
        *("query", "key", "value", "q", "k", "v", "q_a_proj", "kv_a_proj_with_mqa"),
    ),
    "attention_out": ("o_proj", "out_lin", "o"),
    "mlp_in": ("gate_proj", "up_proj", "gate_up_proj", "fc1", "c_fc", "dense_h_to_4h", "wi", "wi_0", "wi_1", "lin1"),
    "mlp_out": ("down_proj", "fc2", "dense_4h_to_h", "wo", "lin2"),
}
_INPUTS = {module: name for name, modules in _MODULES.items() for module in modules}


def linear_input_of(parameter: str) -> LinearInput | None:
    """Return the input of the linear layer with that parameter name; None if it belongs to no block."""
    parts = parameter.removesuffix(".weight").split(".")
    last = parts[-1]
    if last == "dense":
        if "intermediate" in parts:
            return "mlp_in"
        return "attention_out" if "attention" in parts else "mlp_out"
    if last == "c_proj":
        return "mlp_out" if "mlp" in parts else "attention_out"
    return _INPUTS.get(last)
