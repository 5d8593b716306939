"""Reads how a recipe spreads its job over ranks: the ``distributed`` section, by strategy.

Sources: ``DistributedSetup``, ``FSDP2Manager``, ``MegatronFSDPManager``, ``DDPManager`` and ``parallelizer.py`` of
Automodel's components/distributed; ``fully_shard_model`` and ``MegatronFSDP`` of Megatron-LM's megatron_fsdp.
"""

from ...program import Program
from ...source import (
    MODEL_STATES,
    FindingCollector,
    LayeredSettings,
    Setting,
    as_bool,
    as_int,
    as_word,
    default_setting,
    is_open,
)
from ..shared import apply_rules, bool_rule, record_bool, record_int, record_ranks, word_rule
from .megatron_fsdp import read_megatron_fsdp
from .strategies import is_known, named_strategy, strategy_of, version_of, world_size
from .tensor_plan import read_tensor_plan

_CHECKPOINTING = {
    **dict.fromkeys(("true", "on", "yes", "enabled", "full"), "full"),
    "selective": "selective",
    **dict.fromkeys(("false", "off", "no", "disabled", "none"), "none"),
}
_CHECKPOINTING_NAMES = ("distributed.activation_checkpointing", "activation_checkpointing")
_CHECKPOINTING_RULE = word_rule("training.activation_checkpointing", _CHECKPOINTING, *_CHECKPOINTING_NAMES)
_FSDP2_RULES = (
    bool_rule("parallel.sequence_parallel", "distributed.sequence_parallel"),
    bool_rule("parallel.reshard_after_forward", "distributed.reshard_after_forward"),
)
_SCHEDULES = ("1f1b", "schedule1f1b")


def read_parallel(program: Program, settings: LayeredSettings) -> None:
    """Record the strategy, the ranks of every dimension, and the strategy's own settings."""
    findings, strategy = program.findings, strategy_of(program, settings)
    named = named_strategy(settings)
    if strategy is not None and strategy.megatron_fsdp and version_of(program) >= (0, 2):
        _warn_of_checkpointing(settings, findings)
    else:
        apply_rules((_CHECKPOINTING_RULE,), settings, findings, tool="Automodel")
    if named is None or strategy is None:
        return
    if not is_known(named):
        sentence = f"{named.origin}: strategy {named.value!r} is not known here; FSDP2 is counted."
        findings.mark_uncertain("parallel.strategy", sentence, direction="more")
    findings.record_from(named, "parallel.strategy", strategy.name)
    world, find = world_size(program, settings), settings.find
    if strategy.buckets:
        ranks = find("distributed.dp_size")
        ranks = world.ranks if ranks is None or is_open(ranks) else ranks
        record_int(findings, "parallel.data_replicate", ranks)
        if ranks is None:
            findings.require("parallel.data_replicate")
        record_bool(findings, "parallel.gradient_as_bucket_view", find("distributed.gradient_as_bucket_view"))
        return
    sizes = {
        "tensor": find("distributed.tp_size"),
        "pipeline": find("distributed.pp_size"),
        "context": find("distributed.cp_size"),
        "expert": find("distributed.ep_size"),
        "data_replicate": find("distributed.dp_replicate_size"),
    }
    record_ranks(findings, world, sizes, _data_shards(settings))
    read_tensor_plan(program, settings, strategy=strategy)
    if strategy.megatron_fsdp:
        read_megatron_fsdp(program, settings)
    else:
        _read_fsdp2(settings, findings)


def _warn_of_checkpointing(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record that Megatron-FSDP's manager skips activation checkpointing, since 0.2, on several ranks."""
    written = settings.find(*_CHECKPOINTING_NAMES)
    if written is not None and _CHECKPOINTING.get(as_word(written) or "", "none") != "none":
        findings.warn(f"{written.origin} has no effect: Automodel does not support it with Megatron-FSDP.")


def _read_fsdp2(settings: LayeredSettings, findings: FindingCollector) -> None:
    _read_expert_resharding(settings, findings)
    apply_rules(_FSDP2_RULES, settings, findings, tool="Automodel")
    offload = settings.find(
        *("distributed.offload_policy._target_", "distributed.offload_policy", "distributed.cpu_offload")
    )
    if offload is None and settings.names("distributed.offload_policy."):
        offload = settings.find(*settings.names("distributed.offload_policy."))
        offload = offload.with_value(True) if offload is not None else None
    if offload is not None and (as_bool(offload) or "cpuoffload" in str(offload.value).lower()):
        findings.record_from(offload, "parallel.cpu_offload", "all")
    settings.find(*settings.names("distributed.offload_policy."))
    deferred = settings.find("distributed.defer_fsdp_grad_sync")
    deferred = deferred or default_setting(True, "Automodel's default defer_fsdp_grad_sync")
    if as_bool(deferred) is not None:
        findings.record_from(deferred, "parallel.sync_every_micro_batch", not as_bool(deferred))
    _read_pipeline(settings, findings)


def _read_pipeline(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Doubt activations under schedules other than 1F1B, which hold more micro-batches."""
    if (as_int(settings.find("distributed.pp_size")) or 1) == 1:
        return
    schedule = settings.find("distributed.pipeline.pp_schedule_csv", "distributed.pipeline.pp_schedule")
    if schedule is not None and (as_word(schedule) or "") not in _SCHEDULES:
        findings.warn(f"{schedule.origin}: a 1F1B schedule is counted; others hold more micro-batches at once.")
        findings.add_uncertainty("more", "activations")
    uneven = settings.find("distributed.pipeline.module_fqns_per_model_part", "distributed.pipeline.layers_per_stage")
    if uneven is not None or settings.names("distributed.pipeline.module_fqns_per_model_part."):
        findings.warn("distributed.pipeline: blocks are counted as if they were spread evenly over the stages.")
        findings.add_uncertainty("more", *MODEL_STATES, "activations")


def _data_shards(settings: LayeredSettings) -> Setting | None:
    """Return the number of data shards: ``dp_size`` counts all data-parallel ranks, replicas included."""
    total, copies = settings.find("distributed.dp_size"), settings.find("distributed.dp_replicate_size")
    size = as_int(total)
    if total is None or size is None:
        return None
    return total.with_value(max(1, size // (as_int(copies) or 1)))


def _read_expert_resharding(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record that weights stay gathered by default where experts are spread over ranks (``MoEParallelizerConfig``)."""
    experts = settings.find("distributed.ep_size")
    written = settings.find("distributed.moe.reshard_after_forward")
    if experts is not None and (as_int(experts) or 1) > 1:
        default = default_setting(False, f"{experts.origin}: Automodel's default with experts")
        record_bool(findings, "parallel.reshard_after_forward", written or default)
