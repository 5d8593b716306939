"""Megatron-FSDP's words for what it shards, and the record of its settings (``parallel.*``) in a script's own loop."""

from ..source import FindingCollector, LayeredSettings, as_bool

MEGATRON_SHARDING = {
    **dict.fromkeys(("0", "no_shard"), "none"),
    **dict.fromkeys(("1", "optim"), "optim"),
    **dict.fromkeys(("2", "optim_grads"), "optim_grads"),
    **dict.fromkeys(("3", "optim_grads_params"), "optim_grads_params"),
}
"""``parallel.sharding`` by the strategy's name or number (``megatron_fsdp/fully_shard.py`` of Megatron-LM)."""
MEGATRON_OUTER_SHARDING = {word: kind for word, kind in MEGATRON_SHARDING.items() if kind in ("none", "optim")}
"""``parallel.outer_sharding`` likewise."""
_WORDS = {
    "parallel.sharding": "megatron_fsdp_sharding",
    "parallel.outer_sharding": "megatron_fsdp_outer",
    "parallel.fsdp_units": "megatron_fsdp_units",
}
_SWITCHES = {
    "parallel.double_buffer": "megatron_fsdp_double_buffer",
    "parallel.main_weights": "megatron_fsdp_main_weights",
}


def record_megatron_fsdp(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record the strategy, what it shards, its units, and its buffers."""
    strategy = settings.find("megatron_fsdp")
    if strategy is None:
        return
    findings.record_from(strategy, "parallel.strategy", "megatron-fsdp")
    for key, name in _WORDS.items():
        if (setting := settings.find(name)) is not None:
            findings.record_from(setting, key, setting.value)
    for key, name in _SWITCHES.items():
        if (setting := settings.find(name)) is not None:
            findings.record_from(setting, key, as_bool(setting))
