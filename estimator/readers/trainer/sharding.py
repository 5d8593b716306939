"""Reads a job's sharding (``parallel.*``) from accelerate's, DeepSpeed's and the trainer's settings."""

import re
from collections.abc import Mapping
from typing import Any

from ...common.errors import InputError
from ...job.rules.strategies import DTYPE_NAMES
from ..arguments.table import doubt_arguments, library, record_arguments
from ..program.deepspeed import deepspeed_layer, partly_offloaded
from ..program.world_size import WorldSize, visible_gpus
from ..source.data_files import table_of_setting
from ..source.evidence import MODEL_STATES, FindingCollector
from ..source.settings import LayeredSettings, Setting, as_bool, as_int, as_word, is_open, parse_digits
from .fsdp import FSDP1_NAMES
from .fsdp_units import read_units
from .trainer_inputs import TrainerInputs

_UNKNOWN_STAGE = "unknown"
"""Stands for a ZeRO stage whose file cannot be read."""
_STAGE_IN_NAME = re.compile(r"(?:z|zero|stage)[-_]?(?:stage[-_]?)?([0-3])(?!\d)", re.IGNORECASE)
_MAX_ZERO_STAGE = 3
_OFFLOAD_DEVICES = ("cpu", "nvme")
_LOADED_WHOLE = (
    "transformers does not split it yet, so each process holds all of it in CPU RAM (not counted) and moves it to its "
    "GPU before ZeRO-3 splits it."
)
"""Source: ``is_deepspeed_zero3_enabled`` of transformers 5.23; ``_configure_distributed_model`` of DeepSpeed 0.16."""


def deepspeed_settings(inputs: TrainerInputs, findings: FindingCollector) -> LayeredSettings | None:
    """Return DeepSpeed's settings where it is used: from the trainer's file, accelerate's file, or accelerate's flags.

    They have the names of accelerate's flags.
    """
    accelerate = inputs.accelerate
    config = None if inputs.settings.is_unset("deepspeed") else inputs.settings.find("deepspeed")
    if config is not None and as_bool(config) is not None:  # a bare --deepspeed: the file has a flag of its own
        config = inputs.settings.find("deepspeed_config") if as_bool(config) else None
    if config is None and accelerate.is_true("use_deepspeed"):
        config = accelerate.find("deepspeed_config_file")
        if config is None:
            return accelerate
    if config is None:
        return None
    try:
        table, source = table_of_setting(config.value, inputs.filesystem)
    except InputError as error:
        findings.warn(f"Could not read DeepSpeed's configuration: {error.message}")
        return LayeredSettings({"zero_stage": _stage_from_file_name(config, findings)})
    return LayeredSettings(deepspeed_layer(table, source=source or config.origin))


def read_parallel(inputs: TrainerInputs, findings: FindingCollector) -> None:
    """Record ``parallel.*``: the strategy and the number of ranks in each dimension."""
    same_data = _read_dimensions(inputs, findings)
    ranks = inputs.ranks
    data = ranks // same_data if ranks and ranks % same_data == 0 else None
    if data is None:
        if ranks:
            findings.warn(f"{ranks} ranks cannot be divided among {same_data} tensor, context and pipeline ranks.")
        own = inputs.accelerate.is_true("script_sharding")
        sharded = own or inputs.deepspeed is not None or inputs.fsdp is not None
        findings.require("parallel.data_shard" if sharded else "parallel.data_replicate")
    if inputs.deepspeed is not None:
        _read_zero(inputs.deepspeed, inputs.accelerate.find("script_model_first"), inputs.world, data, findings)
    elif inputs.fsdp is not None:
        _read_fsdp(inputs.fsdp, inputs, data, findings)
    elif inputs.accelerate.is_true("script_sharding"):
        findings.require("parallel.strategy")
        _record_ranks("parallel.data_shard", data, inputs.world, findings)
    else:
        _read_ddp(inputs, data, findings)


def read_device_map(inputs: TrainerInputs, environ: Mapping[str, str], findings: FindingCollector) -> None:
    """Record a device map that spreads the model over several GPUs of one process, or has limits of its own.

    Without limits, and without ``CUDA_VISIBLE_DEVICES``, the number of GPUs is not known: one is counted, as one rank,
    and noted that there may be more.
    """
    rule, limits = inputs.settings.find("device_map"), inputs.settings.find("max_memory")
    alone = inputs.ranks == 1 and inputs.deepspeed is None and inputs.fsdp is None
    if rule is None or not alone:
        return
    table, by_device = _plain_table(rule.value), _plain_table(limits.value if limits is not None else None)
    if table is None and as_word(rule) not in ("auto", "balanced", "balanced_low_0", "sequential"):
        return
    numbers = [parse_digits(str(name)) for name in (by_device or {})]
    numbers += [parse_digits(str(device).removeprefix("cuda:")) for device in (table or {}).values()]
    known = [number for number in numbers if number is not None]
    visible = as_int(visible_gpus(environ))
    count = max(known) + 1 if known else visible or 1
    split = count > 1 if table is None else len(set(map(str, table.values()))) > 1
    if not split and not by_device:
        findings.spreads_layers = as_word(rule) if table is None and visible is None else None
        return
    findings.record_from(rule, "parallel.device_map", as_word(rule) if table is None else table)
    findings.record_from(limits or rule, "parallel.pipeline", count)
    findings.record_from(limits, "parallel.max_memory", by_device or None)


def _plain_table(value: Any) -> dict[str, int | str] | None:
    """Return a table of devices or sizes by name, numbers as text; None: it is no such table."""
    if not isinstance(value, Mapping) or not value:
        return None
    plain = {str(name): each for name, each in value.items() if isinstance(each, int | str)}
    return plain if len(plain) == len(value) else None


def _stage_from_file_name(config: Setting, findings: FindingCollector) -> Setting:
    """Return the ZeRO stage in the name of a file that cannot be read; it may offload as well."""
    stage = _STAGE_IN_NAME.search(str(config.value).rpartition("/")[2])
    if stage is None:
        findings.require("parallel.strategy")
        return config.with_value(_UNKNOWN_STAGE)
    findings.add_uncertainty("less", *MODEL_STATES, unless="parallel.strategy")
    return Setting.default(int(stage[1]), f"{config.origin}, from the file's name")


def _read_dimensions(inputs: TrainerInputs, findings: FindingCollector) -> int:
    """Record the tensor, context and expert ranks. Return how many ranks process the same data."""
    found: dict[str, Setting | None] = {}
    for short, key in library("accelerate").words["dimension"].items():
        found[key] = found.get(key) or inputs.accelerate.find(f"parallelism_config_{short}_size")
    if inputs.deepspeed is not None:
        found["tensor"] = found["tensor"] or inputs.deepspeed.find("tensor")
    doubt_arguments(library("accelerate"), "megatron", inputs.accelerate, findings)
    return record_dimensions(found, findings)


def record_dimensions(found: Mapping[str, Setting | None], findings: FindingCollector) -> int:
    """Record the ranks of each dimension, by its name in a job. Return how many ranks process the same data."""
    same_data = 1
    for name, setting in found.items():
        size = as_int(setting)
        if setting is not None and size is None and not is_open(setting):
            findings.refuse(f"parallel.{name}", setting)
        elif size is not None and size != 1:
            findings.record_from(setting, f"parallel.{name}", size)
            same_data *= size if name != "expert" else 1
    return same_data


def _read_zero(
    deepspeed: LayeredSettings, first: Setting | None, world: WorldSize, data: int | None, findings: FindingCollector
) -> None:
    stage = deepspeed.find("zero_stage") or Setting.default(2, "accelerate's default ZeRO stage")
    if stage.value == _UNKNOWN_STAGE:
        _record_ranks("parallel.data_shard", data, world, findings)
        return
    number = as_int(stage) or 0
    if number > _MAX_ZERO_STAGE or (number == 0 and not _is_zero(stage)):
        findings.refuse("parallel.strategy", stage, f"stage of ZeRO (0 to {_MAX_ZERO_STAGE})")
        return
    if number == 0:
        origin = f"{stage.origin} (stage 0 shards nothing)"
        findings.record("parallel.strategy", "ddp", origin, written=stage.written)
        _record_ranks("parallel.data_replicate", data, world, findings)
        return
    findings.record_from(stage, "parallel.strategy", f"zero{number}")
    _record_ranks("parallel.data_shard", data, world, findings)
    _read_zero_offload(deepspeed, number, findings)
    doubt_arguments(library("deepspeed"), "all", deepspeed, findings)
    if number == _MAX_ZERO_STAGE and first is not None:
        findings.doubt(f"{first.origin}: {_LOADED_WHOLE}", "more", "communication")


def _read_zero_offload(deepspeed: LayeredSettings, stage: int, findings: FindingCollector) -> None:
    """Record the offloading: of the optimizer by one setting, of the parameters (stage 3 only) by another."""
    optimizer, weights = (deepspeed.find(f"offload_{part}_device") for part in ("optimizer", "param"))
    optimizer = optimizer if as_word(optimizer) in _OFFLOAD_DEVICES else None
    weights = weights if stage == 3 and as_word(weights) in _OFFLOAD_DEVICES else None
    share = partly_offloaded(deepspeed) if optimizer is not None else None
    if share is not None:
        findings.warn(f"{share.origin}: only part of the optimizer is offloaded; all of it is counted on the GPU.")
        findings.add_uncertainty("less", *MODEL_STATES, unless="parallel.cpu_offload")
    elif weights is not None and optimizer is not None:
        findings.record("parallel.cpu_offload", "all", weights.origin)
    elif optimizer is not None:
        findings.record("parallel.cpu_offload", "optimizer", optimizer.origin)
    elif weights is not None:
        findings.warn(f"{weights.origin}: weights are offloaded without the optimizer; they are counted on the GPU.")
        findings.add_uncertainty("less", "weights", unless="parallel.cpu_offload")


def _read_fsdp(fsdp: LayeredSettings, inputs: TrainerInputs, data: int | None, findings: FindingCollector) -> None:
    version = fsdp.find("fsdp_version") or Setting.default(1, "accelerate's default FSDP version")
    if as_int(version) not in (1, 2):
        findings.refuse("parallel.strategy", version, "version of FSDP (1 or 2)")
        return
    if as_int(version) == 2:
        findings.record_from(version, "parallel.strategy", "fsdp2")
        record_arguments(library("accelerate"), "fsdp2", fsdp, findings)
        _read_storage(inputs, findings)
        _record_shards_and_replicas(inputs, data, findings)
    else:
        _read_fsdp1(fsdp, version, inputs, data, findings)
    record_arguments(library("accelerate"), "fsdp", fsdp, findings)
    by_trainer = not inputs.accelerate.is_true("script_own_loop")
    read_units(fsdp, findings, first_version=as_int(version) == 1, by_trainer=by_trainer)


def _read_storage(inputs: TrainerInputs, findings: FindingCollector) -> None:
    """Doubt that FSDP 2 shards 4-bit weights: only those that a script stores in a floating type.

    Source: ``fsdp2_prepare_model`` of accelerate 1.15 ("incompatible_params4bit").
    """
    made, storage = inputs.settings.find("bitsandbytes_config"), inputs.settings.find("bnb_4bit_quant_storage")
    if made is not None and inputs.settings.find_true("load_in_4bit") and as_word(storage) not in DTYPE_NAMES:
        what = "without bnb_4bit_quant_storage" if storage is None else f"with {storage.value}"
        findings.doubt(f"{made.origin} {what}: FSDP 2 keeps 4-bit weights whole on each GPU.", "more", "communication")


def _read_fsdp1(
    fsdp: LayeredSettings, version: Setting, inputs: TrainerInputs, data: int | None, findings: FindingCollector
) -> None:
    strategy, reshard = fsdp.find("fsdp_sharding_strategy"), fsdp.find("fsdp_reshard_after_forward")
    if strategy is None and reshard is not None and as_bool(reshard) is None:
        strategy = reshard
    strategy = strategy or Setting.default("full_shard", "FSDP's default sharding strategy")
    word = (as_word(strategy) or "").removeprefix("_")
    if 1 <= (parse_digits(word) or 0) <= len(FSDP1_NAMES):
        word = FSDP1_NAMES[int(word) - 1].lower()
    findings.record_from(version, "parallel.strategy", "fsdp1")
    known = library("accelerate").words["fsdp1_sharding"]
    if word not in known:
        sentence = f"FSDP sharding strategy {strategy.value!r} ({strategy.origin}) is not known; full is assumed."
        findings.mark_uncertain("parallel.sharding", sentence, direction="more")
    findings.record_from(strategy, "parallel.sharding", known.get(word, "full"))
    record_arguments(library("accelerate"), "fsdp1", fsdp, findings)
    origin = "accelerate's default fsdp_backward_prefetch"
    findings.infer("parallel.fsdp_backward_prefetch", "none", origin)
    per_node = inputs.world.per_node
    if word == "no_shard":
        _record_ranks("parallel.data_replicate", data, inputs.world, findings)
    elif word.startswith("hybrid") and data and per_node and data % per_node == 0:
        _record_ranks("parallel.data_shard", per_node, inputs.world, findings)
        _record_ranks("parallel.data_replicate", data // per_node, inputs.world, findings)
    else:
        _record_shards_and_replicas(inputs, data, findings)


def _record_shards_and_replicas(inputs: TrainerInputs, data: int | None, findings: FindingCollector) -> None:
    """Record shards and replicas from ParallelismConfig; without it, all ranks share one copy."""
    replicate = inputs.accelerate.find("parallelism_config_dp_replicate_size")
    shard = inputs.accelerate.find("parallelism_config_dp_shard_size")
    copies = as_int(replicate) or 1
    if replicate is not None and not is_open(replicate) and as_int(replicate) != 1:
        findings.record_count("parallel.data_replicate", replicate)
    if shard is not None and not is_open(shard):
        findings.record_count("parallel.data_shard", shard)
    elif data is not None and data % copies == 0:
        _record_ranks("parallel.data_shard", data // copies, inputs.world, findings)


def _read_ddp(inputs: TrainerInputs, data: int | None, findings: FindingCollector) -> None:
    """Record replicas under DDP. Of its own settings, none but these decides about bytes that count."""
    settings, accelerate, world = inputs.settings, inputs.accelerate, inputs.world
    shard = accelerate.find("parallelism_config_dp_shard_size")
    if shard is not None and (as_int(shard) or 1) > 1:
        findings.record("parallel.strategy", "fsdp2", shard.origin)
        _record_shards_and_replicas(inputs, data, findings)
    elif data is not None and data > 1:
        findings.infer("parallel.strategy", "ddp", f"{_origin(world)}, and no setting asks for sharding")
        _record_ranks("parallel.data_replicate", data, world, findings)
    elif world.one_per_gpu is not None:
        sentence = f"{world.one_per_gpu}. One process is counted; with several, DDP adds a copy of the gradients."
        findings.doubt(sentence, "more", "gradients", unless="parallel.data_replicate")
        findings.one_per_gpu = sentence
    record_arguments(library("accelerate"), "ddp", accelerate, findings)
    for each in (settings, accelerate):
        doubt_arguments(library("accelerate"), "ddp", each, findings)


def _is_zero(setting: Setting) -> bool:
    text = str(setting.value).strip()
    return not isinstance(setting.value, bool) and bool(text) and not text.strip("0.") and text[0] == "0"


def _record_ranks(key: str, size: int | None, world: WorldSize, findings: FindingCollector) -> None:
    if size is not None:
        findings.record(key, size, _origin(world), written=world.ranks is not None and world.ranks.written)


def _origin(world: WorldSize) -> str:
    return world.ranks.origin if world.ranks else "a single process"
