"""NeMo AutoModel: its YAML recipes and the overrides on its command line."""

from functools import partial

from ...common.errors import CannotTellError
from ...job.rules.strategies import DTYPE_NAMES, STRATEGIES, Strategy
from ..arguments.table import doubt_arguments, library, record_arguments, record_word
from ..program.program import Program, WorldSize, checked_ranks, read_world_size
from ..source.evidence import MODEL_STATES, FindingCollector, JobReading
from ..source.settings import LayeredSettings, Setting, as_bool, as_int, as_word, is_open
from ..source.versions import version_tuple
from ..trainer.trainer_program import known_config, stored_dtype
from ..trainer.unread_settings import warn_of_unread
from .shared import folder_id, has_any, has_key, known_tool, record_optimizer, record_ranks, tool_settings

_TABLE = partial(library, "automodel")

# The loss of a recipe, and the fused kernels of its model.
#
# ``loss_fn``: components/loss. ``use_liger_kernel``, on by default, patches transformers' models (norms, SwiGLU,
# RoPE; ``_patch_liger_kernel``), not where tensor or context parallelism splits them (``_apply_preload_overrides``).


_IN_PLACE = ("teparallelcrossentropy",)
"""Losses whose kernel writes the gradient over the logits and computes in fp32 itself (TransformerEngine's)."""
_LIGER = ("norm", "mlp", "rope")


def read_loss(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record ``training.loss`` and ``training.fused_kernels``."""
    named = settings.find("loss_fn._target_", "loss_fn")
    loss = as_word(named) or ""
    record_arguments(_TABLE(), "loss", settings, findings)
    without = _without_liger(settings)
    if loss in _IN_PLACE and named is not None:
        kernels = ["cross-entropy"] if without is not None else [*_LIGER, "cross-entropy"]
        findings.record_from(named, "training.fused_kernels", kernels)
    elif without is not None:
        findings.record_from(without, "training.fused_kernels", [])


def _without_liger(settings: LayeredSettings) -> Setting | None:
    """Return the setting that keeps Liger's kernels off; None: they are on."""
    switch = settings.find("model.use_liger_kernel", "use_liger_kernel")
    if switch is not None and as_bool(switch) is False:
        return switch
    for name in ("distributed.tp_size", "distributed.cp_size"):
        size = settings.find(name)
        if (as_int(size) or 1) > 1:
            return size
    return None


# The strategy of a recipe's ``distributed`` section, and the version of AutoModel that reads it.


_SIZE_NAMES = ("dp", "tp", "cp", "pp", "ep")
_LATEST = (0, 5)
"""The version whose source these rules follow (tag v0.5.0 of NVIDIA-NeMo/Automodel)."""


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


# The dtypes of a recipe: of the weights as they are loaded, and those that each strategy computes and reduces in.
#
# FSDP2: ``mp_policy`` (``FSDP2Config``, by default bf16 parameters, reduced in fp32 since 0.5 and in bf16 before).
# On a single GPU the managers of Megatron-FSDP and DDP cast the model to bf16 (``parallelize``), FSDP2's leaves it
# alone.


_POLICY = "distributed.mp_policy"


def read_precision(program: Program, settings: LayeredSettings) -> None:
    """Record ``training.precision``, and for FSDP2 the dtypes of gathered parameters and of reduced gradients."""
    findings, strategy = program.findings, strategy_of(program, settings)
    weights = _weights(program, settings)
    kept = DTYPE_NAMES.get(as_word(weights) or "")
    autocast = settings.find("distributed.autocast_dtype")
    if strategy is not None and strategy.fsdp2:
        _read_policy(program, settings, weights, kept)
    elif (
        strategy is not None
        and strategy.megatron_fsdp
        and (preserved := settings.find_true("distributed.preserve_fp32_weights"))
    ):
        findings.record_from(preserved, "training.precision", "bf16-mixed")
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


# Megatron-FSDP, once nvFSDP, under Automodel: its keys, and what Megatron-FSDP itself makes of them.
#
# Megatron-FSDP turns both overlaps on where it shards what they move, builds double buffers for user buffers of NCCL,
# and refuses a strategy that it does not know (megatron_fsdp.py, fully_shard.py, param_and_grad_buffer.py of core
# 0.16).


_UNIT_NAMES = ("distributed.nvfsdp_unit_modules", "distributed.megatron_fsdp_unit_modules")


def read_megatron_fsdp(program: Program, settings: LayeredSettings) -> None:
    """Record how Megatron-FSDP shards, in which units, and what its buffers keep."""
    findings = program.findings
    _read_units(settings, findings)
    record_arguments(_TABLE(), "megatron_fsdp", settings, findings)
    doubt_arguments(_TABLE(), "megatron_fsdp", settings, findings)
    if (sharding := findings.get("parallel.sharding")) is None or sharding.value != "optim_grads_params":
        doubt_arguments(_TABLE(), "not_all_sharded", settings, findings)
    settings.find("distributed.overlap_grad_reduce", "distributed.overlap_param_gather")


def _read_units(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Doubt the units that a recipe names itself; by default they are the classes that the model does not split."""
    named = settings.find(*_UNIT_NAMES) or settings.find_unset(*_UNIT_NAMES)
    if named is not None:
        sentence = f"{named.origin}: Megatron-FSDP's units are not read; blocks are assumed."
        findings.mark_uncertain("parallel.fsdp_units", sentence, direction="more")


# Reads how a recipe spreads its job over ranks: the ``distributed`` section, by strategy.
#
# Sources: ``DistributedSetup``, ``FSDP2Manager``, ``MegatronFSDPManager``, ``DDPManager`` and ``parallelizer.py`` of
# Automodel's components/distributed; ``fully_shard_model`` and ``MegatronFSDP`` of Megatron-LM's megatron_fsdp.


def read_parallel(program: Program, settings: LayeredSettings) -> None:
    """Record the strategy, the ranks of every dimension, and the strategy's own settings."""
    findings, strategy = program.findings, strategy_of(program, settings)
    named = named_strategy(settings)
    if strategy is None or not strategy.megatron_fsdp:
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
    if strategy.megatron_fsdp:
        read_megatron_fsdp(program, settings)
    else:
        _read_fsdp2(settings, findings)


def _read_fsdp2(settings: LayeredSettings, findings: FindingCollector) -> None:
    if (as_int(settings.find("distributed.ep_size")) or 1) > 1:
        record_arguments(_TABLE(), "experts", settings, findings)
    record_arguments(_TABLE(), "fsdp2", settings, findings)
    offload = settings.find(
        *("distributed.offload_policy._target_", "distributed.offload_policy", "distributed.cpu_offload")
    )
    if offload is None and settings.names("distributed.offload_policy."):
        offload = settings.find(*settings.names("distributed.offload_policy."))
        offload = offload.with_value(True) if offload is not None else None
    if offload is not None and (as_bool(offload) or "cpuoffload" in str(offload.value).lower()):
        findings.record_from(offload, "parallel.cpu_offload", "all")
    settings.find(*settings.names("distributed.offload_policy."))


def _data_shards(settings: LayeredSettings) -> Setting | None:
    """Return the number of data shards: ``dp_size`` counts all data-parallel ranks, replicas included."""
    total, copies = settings.find("distributed.dp_size"), settings.find("distributed.dp_replicate_size")
    size = as_int(total)
    if total is None or size is None:
        return None
    return total.with_value(max(1, size // (as_int(copies) or 1)))


# The checkpoints of a recipe (``CheckpointingConfig``, ``Checkpointer.save_model``).
#
# Each rank writes its shard with torch's distributed checkpoints; ``save_consolidated`` merges the files on the host.
# Adapters are gathered whole, parameter by parameter, and copied to the CPU. Optimizer states are saved in both
# cases.


def read_saving(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record the table ``saving`` unless checkpoints are off."""
    enabled = settings.find("checkpoint.enabled")
    if enabled is not None and as_bool(enabled) is False:
        return
    adapters = settings.find("peft._target_", "peft.dim", "peft.peft_scheme")
    chosen = enabled or adapters or Setting.default(True, "Automodel's default checkpoint.enabled")
    findings.record_from(chosen, "saving.weights", "adapters" if adapters is not None else "sharded")
    findings.record_from(chosen, "saving.optimizer", True)
    settings.find(*settings.names("checkpoint."))


# A recipe's model, batch, optimizer and adapters; the other modules of this room read the rest of it.
#
# Names and meanings: ``nemo_automodel/recipes``, ``_transformers`` and ``components`` of Automodel 0.5.


_ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")
_LENGTH_NAMES = ("dataset.seq_length", "dataset.seq_len", "dataset.max_seq_length", "dataset.max_length")


def read(program: Program) -> JobReading:
    """Return the job of an Automodel recipe."""
    findings, settings = program.findings, tool_settings(program, "c", "config")
    findings.infer("training.framework", "automodel", "the program that is started")
    known = program.versions.get("nemo_automodel") or program.versions.get("nemo-automodel")
    if (version_tuple(known) or _LATEST) < _LATEST:
        raise CannotTellError(
            f"NeMo Automodel {known} is older than 0.5, the first version that is read: rehearse it without a GPU "
            "(vramtop rehearse -- COMMAND)"
        )
    _read_model(program, settings)
    _read_batch(settings, findings)
    read_loss(settings, findings)
    _read_adapters(settings, findings)
    read_precision(program, settings)
    optimizer = settings.find("optimizer._target_", "optimizer.name", "optimizer")
    record_optimizer(program, settings, optimizer, "optimizer.")
    read_parallel(program, settings)
    read_saving(settings, findings)
    doubt_arguments(_TABLE(), "all", settings, findings)
    warn_of_unread(settings, findings)
    return findings.build()


def _read_model(program: Program, settings: LayeredSettings) -> None:
    findings = program.findings
    name = settings.find(
        "model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path", "model.config.name_or_path"
    )
    if name is not None:
        findings.record_from(name, "model.id", folder_id(program.filesystem, str(name.value)) or str(name.value))
    builder = settings.find("model._target_")
    task = next(
        (task for word, task in _TABLE().words["task"].items() if builder is not None and word in str(builder.value)),
        None,
    )
    findings.record_from(builder, "model.task", task)
    packed = settings.find("packed_sequence.packed_sequence_size")
    if packed is not None and str(packed.value) != "0" and as_int(settings.find("distributed.cp_size")) in (None, 1):
        findings.record_from(packed, "model.attention", "flash_attention_2")  # kernel_patches.py asserts it
    attention = settings.find("model.attn_implementation", "model.backend.attn")
    if attention is not None and as_word(attention) in _ATTENTION:
        findings.record_from(attention, "model.attention", as_word(attention))
    elif attention is not None:
        sentence = f"{attention.origin}: attention {attention.value!r} is not supported; sdpa is assumed."
        findings.mark_uncertain("model.attention", sentence)
    origin = "not set; FlashAttention 2, the default if it is installed, needs the same memory"
    findings.infer("model.attention", "sdpa", origin)


def _read_batch(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record micro-batch and length: a pipeline runs parts of the local batch, packed sequences are all of one length.

    Without packing the collater pads a batch to its longest sequence (components/datasets/utils.py).
    """
    staged = settings.find("distributed.pp_size")
    if staged is not None and (as_int(staged) or 1) > 1:
        record_arguments(_TABLE(), "pipeline", settings, findings)
    record_arguments(_TABLE(), "step", settings, findings)
    packed = settings.find("packed_sequence.packed_sequence_size")
    is_packed = packed is not None and str(packed.value) != "0"
    findings.record_count("training.sequence_length", packed if is_packed else settings.find(*_LENGTH_NAMES))
    if is_packed and packed is not None:
        findings.record_from(packed, "training.varying_lengths", False)
    else:
        origin = "Automodel pads a batch to its longest sequence unless it packs them"
        findings.infer("training.varying_lengths", True, origin)
    findings.record_global_batch(settings.find("step_scheduler.global_batch_size"))


def _read_adapters(settings: LayeredSettings, findings: FindingCollector) -> None:
    if settings.find("peft._target_", "peft.dim", "peft.peft_scheme") is None:
        return
    record_arguments(_TABLE(), "lora", settings, findings)
    modules, all_linear = settings.find("peft.target_modules"), settings.find_true("peft.match_all_linear")
    if all_linear is not None:
        findings.record_from(all_linear, "lora.targets", "all-linear")
    elif modules is not None:
        _read_targets(modules, findings)
    dropout = settings.find("peft.dropout") or Setting.default(0.0, "Automodel's default peft.dropout")
    findings.record_dropout(dropout)  # of the input or of the output, as dropout_position says
    four, eight = settings.find_true("quantization.load_in_4bit"), settings.find_true("quantization.load_in_8bit")
    double = settings.is_true("quantization.bnb_4bit_use_double_quant")
    if four is not None:
        findings.record_from(four, "lora.quantization", "nf4-double" if double else "nf4")
    elif eight is not None:
        findings.record_from(eight, "lora.quantization", "int8")


def _read_targets(modules: Setting, findings: FindingCollector) -> None:
    """Record names, which may be patterns: ``*_proj`` is every projection of a block, ``*.q_proj`` the one named so."""
    patterns = modules.value if isinstance(modules.value, list) else [modules.value]
    names = [str(pattern).rpartition(".")[2] for pattern in patterns]
    if names == ["*_proj"]:
        findings.record_from(modules, "lora.targets", "all-linear")
    elif any("*" in name for name in names):
        findings.warn(
            f"{modules.origin}: the pattern {modules.value} is not understood; give lora.targets as a list of names."
        )
        findings.require("lora.targets")
    else:
        findings.record_from(modules, "lora.targets", names)


TOOL = known_tool(
    "automodel", read, is_own=lambda table: has_key(table, "_target_") and has_any(table, "step_scheduler", "recipe")
)
