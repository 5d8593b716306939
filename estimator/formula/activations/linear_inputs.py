"""Which input of a block each of its linear layers reads, by the layer's name: those that read one save it once."""

LinearInput = str
"""An input that linear layers of a block share: ``attention_in``, ``attention_out``, ``mlp_in``, ``mlp_out``."""

_LINEAR_INPUTS: dict[str, LinearInput] = {
    **dict.fromkeys(
        ("q_proj", "k_proj", "v_proj", "qkv_proj", "c_attn", "query_key_value", "q_lin", "k_lin", "v_lin"),
        "attention_in",
    ),
    **dict.fromkeys(("query", "key", "value", "q", "k", "v", "q_a_proj", "kv_a_proj_with_mqa"), "attention_in"),
    **dict.fromkeys(("o_proj", "out_lin", "o"), "attention_out"),
    **dict.fromkeys(
        ("gate_proj", "up_proj", "gate_up_proj", "fc1", "c_fc", "dense_h_to_4h", "wi", "wi_0", "wi_1", "lin1"),
        "mlp_in",
    ),
    **dict.fromkeys(("down_proj", "fc2", "dense_4h_to_h", "wo", "lin2"), "mlp_out"),
}


def linear_input_of(name: str) -> LinearInput | None:
    """Which shared input the linear layer of that parameter name reads; None: none of a block's."""
    parts = name.removesuffix(".weight").split(".")
    last = parts[-1]
    if last == "dense":
        if "intermediate" in parts:
            return "mlp_in"
        return "attention_out" if "attention" in parts else "mlp_out"
    if last == "c_proj":
        return "mlp_out" if "mlp" in parts else "attention_out"
    return _LINEAR_INPUTS.get(last)
