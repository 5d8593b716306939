"""Words of Megatron-FSDP for what it shards, as scripts, Megatron-LM and Automodel pass them to it."""

MEGATRON_SHARDING = {
    **dict.fromkeys(("0", "no_shard"), "none"),
    **dict.fromkeys(("1", "optim"), "optim"),
    **dict.fromkeys(("2", "optim_grads"), "optim_grads"),
    **dict.fromkeys(("3", "optim_grads_params"), "optim_grads_params"),
}
"""``parallel.sharding`` by the strategy's name or number (``megatron_fsdp/fully_shard.py`` of Megatron-LM)."""
MEGATRON_OUTER_SHARDING = {word: kind for word, kind in MEGATRON_SHARDING.items() if kind in ("none", "optim")}
"""``parallel.outer_sharding`` likewise."""
