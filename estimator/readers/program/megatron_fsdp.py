"""Records Megatron-FSDP's settings (``parallel.*``) as a script's own loop has them."""

from ..source.evidence import FindingCollector, LayeredSettings, as_bool

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
