"""The checkpoints of a recipe (``CheckpointingConfig``, ``Checkpointer.save_model``).

Each rank writes its shard with torch's distributed checkpoints; ``save_consolidated`` merges the files on the host.
Adapters are gathered whole, parameter by parameter, and copied to the CPU. Optimizer states are saved in both cases.
"""

from ...source import FindingCollector, LayeredSettings, as_bool, default_setting


def read_saving(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record the table ``saving`` unless checkpoints are off."""
    enabled = settings.find("checkpoint.enabled")
    if enabled is not None and as_bool(enabled) is False:
        return
    adapters = settings.find("peft._target_", "peft.dim", "peft.peft_scheme")
    chosen = enabled or adapters or default_setting(True, "Automodel's default checkpoint.enabled")
    findings.record_from(chosen, "saving.weights", "adapters" if adapters is not None else "sharded")
    findings.record_from(chosen, "saving.optimizer", True)
    settings.find(*settings.names("checkpoint."))
