"""Ranks and dtypes of an Automodel recipe, from its ``distributed`` section.

Sources: ``DistributedSetup``, ``FSDP2Manager``, ``DDPManager`` and ``parallelizer.py`` of Automodel's
components/distributed. Megatron-FSDP, whose buffers differ, is counted as FSDP2 with a doubt.
"""

from functools import partial

from ....job.rules.strategies import DTYPE_NAMES, STRATEGIES, Strategy
from ...arguments.table import doubt_arguments, library, record_arguments, record_word
from ...program.program import Program
from ...program.world_size import WorldSize, checked_ranks, read_world_size
from ...source.evidence import MODEL_STATES, FindingCollector
from ...source.settings import LayeredSettings, Setting, as_bool, as_int, as_word, is_open
from ...trainer.trained_model import known_config, stored_dtype
from ..shared.own_loop import record_ranks

_TABLE = partial(library, "automodel")
_SIZE_NAMES = ("dp", "tp", "cp", "pp", "ep")


def named_strategy(settings: LayeredSettings) -> Setting | None:
    """Return the strategy: FSDP2 where only sizes are given; None where no setting concerns several ranks."""
    named = settings.find("distributed.strategy", "distributed._target_", "distributed_config._target_")
    sized = [name for name in _SIZE_NAMES if settings.find(f"distributed.{name}_size") is not None]
    if named is None and sized:
        return Setting.default("fsdp2", "Automodel's default strategy")
    return named


def strategy_of(program: Program, settings: LayeredSettings) -> Strategy | None:
    """Return the job's strategy; None: one rank, whose model is not spread, or nothing says anything about ranks."""
    named = named_strategy(settings)
    if named is None or as_int(world_size(program, settings).ranks) == 1:
        return None
    return STRATEGIES[_TABLE().words["strategy"].get(as_word(named) or "", "fsdp2")]


def world_size(program: Program, settings: LayeredSettings) -> WorldSize:
    """Return the number of ranks; ``automodel`` itself starts one per GPU, or as many as ``--nproc-per-node``."""
    per_node = settings.find("nproc_per_node")
    if "tool" not in program.launcher.launchers or "RANK" in program.environ:
        return read_world_size(program.launcher, LayeredSettings(), program.environ, findings=program.findings)
    return checked_ranks(None if as_word(per_node) in ("gpu", "auto") else per_node, program.findings)


_POLICY = "distributed.mp_policy"


def read_precision(program: Program, settings: LayeredSettings) -> None:
    """Record ``training.precision``, and for FSDP2 the dtypes of gathered parameters and of reduced gradients.

    On a single GPU the managers of Megatron-FSDP and DDP cast the model to bf16 (``parallelize``), FSDP2's leaves it
    alone. FSDP2's policy is ``mp_policy`` (``FSDP2Config``): bf16 parameters, reduced in fp32 (bf16 before 0.5).
    """
    findings, strategy = program.findings, strategy_of(program, settings)
    weights = _weights(program, settings)
    kept = DTYPE_NAMES.get(as_word(weights) or "")
    autocast = settings.find("distributed.autocast_dtype")
    if strategy is not None and strategy.fsdp2:
        _read_policy(program, settings, weights, kept)
    elif strategy is None and _casts_one_gpu(program, settings):
        origin = f"{weights.origin}; Automodel casts the model to bf16 on a single GPU"
        findings.record("training.precision", "bf16", origin, written=weights.written)
    elif autocast is not None and kept == "fp32":
        low = DTYPE_NAMES.get(as_word(autocast) or "", "bf16")
        findings.record_from(autocast, "training.precision", f"{low}-mixed")
    record_word(findings, "training.precision", weights, DTYPE_NAMES)


def _weights(program: Program, settings: LayeredSettings) -> Setting:
    """Return the dtype in which the weights are loaded, by default as stored."""
    dtype = settings.find("model.torch_dtype", "model.dtype")
    if dtype is not None and as_word(dtype) != "auto":
        return dtype
    stored = stored_dtype(known_config(program.findings.get("model.id"), program.environ))
    return stored or Setting.default("bfloat16", "Automodel's usual torch_dtype")


def _casts_one_gpu(program: Program, settings: LayeredSettings) -> bool:
    named = (as_word(named_strategy(settings)) or "").replace("-", "_")
    return as_int(world_size(program, settings).ranks) == 1 and named.startswith(("megatron", "mfsdp", "nvfsdp", "ddp"))


def _read_policy(program: Program, settings: LayeredSettings, weights: Setting, kept: str | None) -> None:
    """Record what FSDP2's default mixed-precision policy makes of weights that are kept in a dtype."""
    findings, origin = program.findings, "Automodel's default mp_policy"
    if (written := settings.find(*settings.names(f"{_POLICY}."))) is not None:
        sentence = f"{written.origin}: a policy of the recipe's own is not read; {origin} is counted."
        findings.doubt(sentence, "either", *MODEL_STATES, "activations", "logits", unless="training.precision")
    if kept == "fp32":
        text = f"{weights.origin}; FSDP2 gathers in bf16: {origin}"
        findings.record("training.precision", "bf16-mixed", text, written=weights.written)
    findings.infer("parallel.reduce_dtype", "fp32", origin)


def read_parallel(program: Program, settings: LayeredSettings) -> None:
    """Record the strategy, the ranks of every dimension, and the strategy's own settings."""
    findings, strategy = program.findings, strategy_of(program, settings)
    named = named_strategy(settings)
    record_arguments(_TABLE(), "checkpointing", settings, findings)
    if named is None or strategy is None:
        return
    if (as_word(named) or "") not in _TABLE().words["strategy"]:
        sentence = f"{named.origin}: strategy {named.value!r} is not supported; FSDP2 is assumed."
        findings.mark_uncertain("parallel.strategy", sentence, direction="more")
    findings.record_from(named, "parallel.strategy", strategy.name)
    world = world_size(program, settings)
    if strategy.buckets:
        ranks = settings.find("distributed.dp_size")
        ranks = world.ranks if ranks is None or is_open(ranks) else ranks
        findings.record_count("parallel.data_replicate", ranks)
        if ranks is None:
            findings.require("parallel.data_replicate")
        record_arguments(_TABLE(), "ddp", settings, findings)
        return
    record_ranks(program, world, settings, _TABLE(), _data_shards(settings))
    doubt_arguments(_TABLE(), "plan", settings, findings)
    _read_fsdp2(settings, findings)


def _read_fsdp2(settings: LayeredSettings, findings: FindingCollector) -> None:
    if (as_int(settings.find("distributed.ep_size")) or 1) > 1:
        record_arguments(_TABLE(), "experts", settings, findings)
    record_arguments(_TABLE(), "fsdp2", settings, findings)
    policy = "distributed.offload_policy"
    offload = settings.find(f"{policy}._target_", policy, "distributed.cpu_offload")
    if offload is None and (nested := settings.find(*settings.names(f"{policy}."))) is not None:
        offload = nested.with_value(True)
    if offload is not None and (as_bool(offload) or "cpuoffload" in str(offload.value).lower()):
        findings.record_from(offload, "parallel.cpu_offload", "all")
    settings.find(*settings.names(f"{policy}."))


def _data_shards(settings: LayeredSettings) -> Setting | None:
    """Return the number of data shards: ``dp_size`` counts all data-parallel ranks, replicas included."""
    total, copies = settings.find("distributed.dp_size"), settings.find("distributed.dp_replicate_size")
    size = as_int(total)
    if total is None or size is None:
        return None
    return total.with_value(max(1, size // (as_int(copies) or 1)))
