"""Over what a job is spread: accelerate's, DeepSpeed's and the trainer's settings to ``parallel.*``."""

import re
from dataclasses import dataclass
from typing import Any

from ...common.errors import InputError
from ..program.deepspeed import deepspeed_layer
from ..program.ranks import WorldSize
from ..source.data_files import layer_from_table, table_of_setting
from ..source.evidence import MODEL_STATES, FindingCollector
from ..source.filesystem_view import FilesystemView
from ..source.settings import LayeredSettings, Setting, as_bool, as_int, as_word, parse_digits

UNKNOWN_STAGE = "unknown"
"""In place of a ZeRO stage whose file cannot be read."""
_STAGE_IN_NAME = re.compile(r"(?:z|zero|stage)[-_]?(?:stage[-_]?)?([0-3])(?!\d)", re.IGNORECASE)
_FSDP1_NAMES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_FSDP1 = {"full_shard": "full", "shard_grad_op": "grad_op", "hybrid_shard": "hybrid", "hybrid_shard_zero2": "hybrid"}
_DIMENSIONS = {"tensor": "tp", "context": "cp", "sequence": "sp", "expert": "ep"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where sharding is asked for: the trainer's arguments and the launcher's."""

    trainer: LayeredSettings
    accelerate: LayeredSettings
    world: WorldSize
    filesystem: FilesystemView
    """Where the program's paths lead."""


def deepspeed_settings(sources: Sources, findings: FindingCollector) -> LayeredSettings | None:
    """DeepSpeed's settings where it is used: the trainer's file, then accelerate's file, then accelerate's flags."""
    accelerate = sources.accelerate
    asked = sources.trainer.find("deepspeed")
    if asked is not None and as_bool(asked) is not None:  # a bare --deepspeed: the file is in a flag of its own
        asked = sources.trainer.find("deepspeed_config") if as_bool(asked) else None
    if asked is None and accelerate.is_true("use_deepspeed"):
        asked = accelerate.find("deepspeed_config_file")
        if asked is None:
            return accelerate
    if asked is None:
        return None
    try:
        table, source = table_of_setting(asked.value, sources.filesystem)
    except InputError as error:
        findings.warn(f"DeepSpeed's configuration is not counted: {error.message}")
        stage = _STAGE_IN_NAME.search(str(asked.value).rpartition("/")[2])
        if stage is not None:
            origin = f"{asked.origin}, by the file's name"
            findings.add_uncertainty("less", *MODEL_STATES, unless="parallel.strategy")  # it may offload
            return LayeredSettings({"zero_stage": Setting(value=int(stage[1]), origin=origin, written=False)})
        findings.require("parallel.strategy")
        return LayeredSettings({"zero_stage": Setting(value=UNKNOWN_STAGE, origin=asked.origin)})
    return LayeredSettings(deepspeed_layer(table, source=source or asked.origin))


def fsdp_settings(sources: Sources, findings: FindingCollector) -> LayeredSettings | None:
    """FSDP's settings by accelerate's names where it is used: the trainer's arguments, else accelerate's."""
    asked = sources.trainer.find("fsdp")
    if asked is None or as_bool(asked) is False or asked.value == []:
        return sources.accelerate if sources.accelerate.is_true("use_fsdp") else None
    table: dict[str, Any] = {}
    source = "fsdp_config"
    config = sources.trainer.find("fsdp_config")
    if config is not None:
        try:
            table, named = table_of_setting(config.value, sources.filesystem)
            source = named or config.origin
        except InputError as error:
            findings.mark_uncertain("parallel.strategy", f"fsdp_config is not counted: {error.message}")
    named_table = {name if name.startswith("fsdp_") else f"fsdp_{name}": value for name, value in table.items()}
    layer = layer_from_table(named_table, source=source)
    if "fsdp_cpu_offload" in layer:
        layer["fsdp_offload_params"] = layer["fsdp_cpu_offload"]
    if as_bool(asked) is None:
        layer.update(_legacy_fsdp(asked, layer))
    layer.setdefault("fsdp_version", _trainer_version(sources.trainer, asked))
    return LayeredSettings(layer)


def read_parallel(
    sources: Sources, deepspeed: LayeredSettings | None, fsdp: LayeredSettings | None, findings: FindingCollector
) -> None:
    """Put ``parallel.*``: the strategy, and how many ranks share what."""
    dimensions = _dimensions(sources, deepspeed, findings)
    ranks = as_int(sources.world.ranks)
    data = ranks // dimensions if ranks and ranks % dimensions == 0 else None
    if ranks and data is None:
        findings.warn(f"{ranks} ranks cannot be split by {dimensions} tensor, context and pipeline ranks.")
        findings.require("parallel.data_replicate" if deepspeed is None and fsdp is None else "parallel.data_shard")
    if deepspeed is not None:
        _zero(deepspeed, sources.world, data, findings)
    elif fsdp is not None:
        _fsdp(fsdp, sources, data, findings)
    else:
        _ddp(sources.accelerate, sources.world, data, findings)
    if ranks is None:
        findings.require("parallel.data_replicate" if deepspeed is None and fsdp is None else "parallel.data_shard")


def _legacy_fsdp(asked: Setting, given: dict[str, Setting]) -> dict[str, Setting]:
    """``--fsdp "full_shard auto_wrap offload"``, as transformers had it before 5."""
    words = asked.value if isinstance(asked.value, list) else str(asked.value).replace(",", " ").split()
    layer = {}
    for word in (str(word).lower() for word in words):
        if word == "offload":
            layer["fsdp_offload_params"] = Setting(value=True, origin=asked.origin)
        elif word.upper() in _FSDP1_NAMES:
            layer["fsdp_sharding_strategy"] = Setting(value=word, origin=asked.origin)
            if "fsdp_reshard_after_forward" not in given:
                layer["fsdp_reshard_after_forward"] = Setting(value=word == "full_shard", origin=asked.origin)
    return layer


def _trainer_version(trainer: LayeredSettings, asked: Setting) -> Setting:
    default = trainer.find("fsdp_version_default")
    return default or Setting(value=2, origin=f"{asked.origin}; version 2 by default", written=False)


def _dimensions(sources: Sources, deepspeed: LayeredSettings | None, findings: FindingCollector) -> int:
    """Put tensor, context and expert ranks; how many ranks see the same data."""
    same_data = 1
    for key, short in _DIMENSIONS.items():
        setting = sources.accelerate.find(f"parallelism_config_{short}_size")
        if key == "tensor" and deepspeed is not None and setting is None:
            setting = deepspeed.find("tensor")
        size = as_int(setting)
        if setting is None or size is None or size == 1:
            continue
        if key != "expert":
            same_data *= size
        findings.put(f"parallel.{'context' if key == 'sequence' else key}", size, setting.origin)
    if sources.accelerate.is_true("use_megatron_lm"):
        findings.warn("accelerate's Megatron-LM plugin is not read: tensor and pipeline ranks are not counted.")
        findings.add_uncertainty("less", *MODEL_STATES, "activations")
    return same_data


def _zero(deepspeed: LayeredSettings, world: WorldSize, data: int | None, findings: FindingCollector) -> None:
    stage = deepspeed.find("zero_stage") or Setting(value=2, origin="accelerate's default ZeRO stage", written=False)
    if stage.value == UNKNOWN_STAGE:
        _put_ranks("parallel.data_shard", data, world, findings)
        return
    number = as_int(stage) or 0
    if number not in (1, 2, 3):
        findings.put("parallel.strategy", "ddp", f"{stage.origin} (stage 0 shards nothing)", written=stage.written)
        _put_ranks("parallel.data_replicate", data, world, findings)
        return
    findings.put("parallel.strategy", f"zero{number}", stage.origin, written=stage.written)
    _put_ranks("parallel.data_shard", data, world, findings)
    _offload(deepspeed, number, findings)
    if (hpz := deepspeed.find("zero_hpz_partition_size")) and (as_int(hpz) or 0) > 1:
        findings.warn(f"{hpz.origin}: the second copy of the weights that hpZ keeps on each machine is not counted.")
        findings.add_uncertainty("more", "weights")


def _offload(deepspeed: LayeredSettings, stage: int, findings: FindingCollector) -> None:
    """The optimizer is offloaded by itself, in stage 3 the parameters as well, each by its own setting."""
    optimizer, weights = (deepspeed.find(f"offload_{what}_device") for what in ("optimizer", "param"))
    off_optimizer = optimizer is not None and as_word(optimizer) in ("cpu", "nvme")
    off_weights = stage == 3 and weights is not None and as_word(weights) in ("cpu", "nvme")
    if off_weights and off_optimizer and weights is not None:
        findings.put("parallel.cpu_offload", "all", weights.origin)
    elif off_optimizer and optimizer is not None:
        findings.put("parallel.cpu_offload", "optimizer", optimizer.origin)
    elif off_weights and weights is not None:
        findings.warn(f"{weights.origin}: weights offloaded without the optimizer are counted as if on the GPU.")
        findings.add_uncertainty("less", "weights", unless="parallel.cpu_offload")


def _fsdp(fsdp: LayeredSettings, sources: Sources, data: int | None, findings: FindingCollector) -> None:
    version = fsdp.find("fsdp_version") or Setting(value=1, origin="accelerate's default FSDP version", written=False)
    if str(version.value) == "2":
        findings.put("parallel.strategy", "fsdp2", version.origin, written=version.written)
        reshard = fsdp.find("fsdp_reshard_after_forward")
        if reshard is not None and as_bool(reshard) is not None:
            findings.put("parallel.reshard_after_forward", as_bool(reshard), reshard.origin)
        _shard_sizes(sources, data, findings)
    else:
        _fsdp1(fsdp, version, sources, data, findings)
    once = fsdp.find("fsdp_cpu_ram_efficient_loading")
    if once is not None and as_bool(once) is not None:
        findings.put("parallel.load_on_rank_zero", as_bool(once), once.origin)
    wrap = fsdp.find("fsdp_auto_wrap_policy")
    if wrap is not None and as_word(wrap) in ("no_wrap", "size_based_wrap"):
        findings.warn(f"{wrap.origin}: units are counted as one for each block, as TRANSFORMER_BASED_WRAP makes them.")
        findings.add_uncertainty("more", "weights")
    offload = fsdp.find("fsdp_offload_params")
    if offload is not None and as_bool(offload):
        findings.put("parallel.cpu_offload", "all", offload.origin)


def _fsdp1(
    fsdp: LayeredSettings, version: Setting, sources: Sources, data: int | None, findings: FindingCollector
) -> None:
    strategy = fsdp.find("fsdp_sharding_strategy")
    reshard = fsdp.find("fsdp_reshard_after_forward")
    if strategy is None and reshard is not None and as_bool(reshard) is None:
        strategy = reshard
    strategy = strategy or Setting(value="full_shard", origin="FSDP's default sharding strategy", written=False)
    word = as_word(strategy) or ""
    if 1 <= (parse_digits(word) or 0) <= len(_FSDP1_NAMES):
        word = _FSDP1_NAMES[int(word) - 1].lower()
    if word == "no_shard":
        findings.put("parallel.strategy", "ddp", f"{strategy.origin} (NO_SHARD)")
        _put_ranks("parallel.data_replicate", data, sources.world, findings)
        return
    findings.put("parallel.strategy", "fsdp1", version.origin, written=version.written)
    if word not in _FSDP1:
        sentence = f"FSDP sharding strategy {strategy.value!r} ({strategy.origin}) is not known; full is assumed."
        findings.mark_uncertain("parallel.sharding", sentence, direction="more")
    findings.put("parallel.sharding", _FSDP1.get(word, "full"), strategy.origin, written=strategy.written)
    here = sources.world.per_node
    if word.startswith("hybrid") and data and here and data % here == 0:
        _put_ranks("parallel.data_shard", here, sources.world, findings)
        _put_ranks("parallel.data_replicate", data // here, sources.world, findings)
    else:
        _shard_sizes(sources, data, findings)


def _shard_sizes(sources: Sources, data: int | None, findings: FindingCollector) -> None:
    """Shards and replicas: as ParallelismConfig says, else all ranks share one copy."""
    replicate = sources.accelerate.find("parallelism_config_dp_replicate_size")
    shard = sources.accelerate.find("parallelism_config_dp_shard_size")
    copies = as_int(replicate) or 1
    if replicate is not None and copies > 1:
        findings.put("parallel.data_replicate", copies, replicate.origin)
    if shard is not None and as_int(shard):
        findings.put("parallel.data_shard", as_int(shard), shard.origin)
    elif data is not None and data % copies == 0:
        _put_ranks("parallel.data_shard", data // copies, sources.world, findings)


def _ddp(accelerate: LayeredSettings, world: WorldSize, data: int | None, findings: FindingCollector) -> None:
    shard = accelerate.find("parallelism_config_dp_shard_size")
    if shard is not None and (as_int(shard) or 1) > 1:
        findings.put("parallel.strategy", "fsdp2", shard.origin)
        findings.put("parallel.data_shard", as_int(shard), shard.origin)
    elif data is not None and data > 1:
        findings.put("parallel.strategy", "ddp", f"{_origin(world)}, and nothing asks for sharding", written=False)
        _put_ranks("parallel.data_replicate", data, world, findings)


def _put_ranks(key: str, size: int | None, world: WorldSize, findings: FindingCollector) -> None:
    if size is not None:
        findings.put(key, size, _origin(world), written=world.ranks is not None and world.ranks.written)


def _origin(world: WorldSize) -> str:
    return world.ranks.origin if world.ranks else "a single process"
