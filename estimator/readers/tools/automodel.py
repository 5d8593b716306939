"""NeMo Automodel: its YAML and the overrides of ``automodel cfg.yaml --step_scheduler.local_batch_size 4``.

Names and meanings: ``nemo_automodel/recipes`` and ``components/distributed`` of Automodel 0.3. Models are
transformers' own; FSDP2 gathers in bf16 and reduces in fp32.
"""

import re

from ..program import Program, ToolCommand, WorldSize, checked_ranks, read_world_size
from ..source import FindingCollector, JobReading, LayeredSettings, Setting, as_bool, as_int, as_word, default_setting
from ..trainer import WEIGHT_DTYPES, known_config, stored_dtype, warn_of_unread
from .shared import (
    CHECKPOINTING_SWITCH,
    Tool,
    ToolKey,
    ToolKeys,
    apply_rules,
    bool_rule,
    folder_id,
    has_any,
    has_key,
    int_rule,
    optimizer_options,
    record_bool,
    record_int,
    record_optimizer,
    record_ranks,
    record_word,
    tool_settings,
    word_rule,
)

_STRATEGIES = {
    **dict.fromkeys(("fsdp2", "fsdp2manager", "fsdp2config"), "fsdp2"),
    **dict.fromkeys(("megatron_fsdp", "megatron-fsdp", "mfsdp"), "megatron-fsdp"),
    **dict.fromkeys(("megatronfsdpmanager", "megatronfsdpconfig"), "megatron-fsdp"),
    **dict.fromkeys(("nvfsdp", "nvfsdpmanager"), "megatron-fsdp"),
    **dict.fromkeys(("ddp", "ddpmanager", "ddpconfig"), "ddp"),
}
_SHARDING = {
    **dict.fromkeys(("0", "no_shard"), "none"),
    **dict.fromkeys(("1", "optim"), "optim"),
    **dict.fromkeys(("2", "optim_grads"), "optim_grads"),
    **dict.fromkeys(("3", "optim_grads_params"), "optim_grads_params"),
}
_LOSSES = {"fusedlinearcrossentropy": "fused-linear", "chunkedcrossentropy": "chunked"}
_TASKS = {
    "ForSequenceClassification": "sequence-classification",
    "ForImageTextToText": "image-text-to-text",
    "ForTextToWaveform": "text-to-waveform",
}
"""Tasks by a part of the builder's name."""
_ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")
_CHECKPOINTING = {"true": "full", "full": "full", "selective": "selective", "false": "none", "none": "none"}
_LENGTH_NAMES = ("dataset.seq_length", "dataset.seq_len", "dataset.max_seq_length", "dataset.max_length")
_SIZE_NAMES = ("dp", "tp", "cp", "pp", "ep")
_RULES = (
    int_rule("training.micro_batch", "step_scheduler.local_batch_size", "step_scheduler.micro_batch_size"),
    bool_rule("training.compile", "compile.enabled", "compile"),
    word_rule(
        "training.activation_checkpointing",
        _CHECKPOINTING,
        *("distributed.activation_checkpointing", "activation_checkpointing"),
    ),
)
_SHARDED_RULES = (
    bool_rule("parallel.sequence_parallel", "distributed.sequence_parallel"),
    bool_rule("parallel.reshard_after_forward", "distributed.reshard_after_forward"),
    bool_rule("parallel.double_buffer", "distributed.fsdp_double_buffer"),
)


def read(program: Program) -> JobReading:
    """Return the job of an Automodel recipe."""
    findings, settings = program.findings, tool_settings(program, "c", "config")
    _read_model(program, settings)
    apply_rules(_RULES, settings, findings, tool="Automodel")
    _read_length(settings, findings)
    _read_precision(program, settings)
    _read_optimizer(settings, findings)
    loss = settings.find("loss_fn._target_", "loss_fn")
    if loss is not None:
        findings.record_from(loss, "training.loss", _LOSSES.get(as_word(loss) or "", "full"))
    _read_adapters(settings, findings)
    _read_parallel(program, settings)
    if (total := settings.find("step_scheduler.global_batch_size")) is not None:
        findings.record_global_batch(as_int(total), total)
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
    task = next((task for word, task in _TASKS.items() if builder is not None and word in str(builder.value)), None)
    if builder is not None and task is not None:
        findings.record_from(builder, "model.task", task)
    attention = settings.find("model.attn_implementation", "model.backend.attn")
    if attention is not None and as_word(attention) in _ATTENTION:
        findings.record_from(attention, "model.attention", as_word(attention))
    elif attention is not None:
        sentence = f"{attention.origin}: attention {attention.value!r} is not known here and is counted as sdpa."
        findings.mark_uncertain("model.attention", sentence)
    origin = "not set anywhere; FlashAttention 2, the default where it is installed, needs as much memory"
    findings.record("model.attention", "sdpa", origin, written=False)


def _read_precision(program: Program, settings: LayeredSettings) -> None:
    """Record the dtype in which the weights are loaded, by default as stored; FSDP2 gathers fp32 weights in 16 bits."""
    findings, dtype = program.findings, settings.find("model.torch_dtype", "model.dtype")
    if dtype is None or as_word(dtype) == "auto":
        stored = stored_dtype(known_config(findings.get("model.id"), program.environ))
        dtype = stored or default_setting("bfloat16", "Automodel's usual torch_dtype")
    policy = settings.find("distributed.mp_policy.param_dtype")
    low = WEIGHT_DTYPES.get(as_word(policy) or "bfloat16", "bf16")
    if WEIGHT_DTYPES.get(as_word(dtype) or "") == "fp32" and low != "fp32" and _is_fsdp2(program, settings):
        origin = f"{dtype.origin}; FSDP2 gathers in {policy.origin if policy is not None else 'bf16 by default'}"
        findings.record("training.precision", f"{low}-mixed", origin, written=dtype.written)
    elif (kept := settings.find_true("distributed.preserve_fp32_weights")) is not None:
        findings.record_from(kept, "training.precision", f"{low}-mixed")
    else:
        record_word(findings, "training.precision", dtype, WEIGHT_DTYPES)


def _read_length(settings: LayeredSettings, findings: FindingCollector) -> None:
    packed = settings.find("packed_sequence.packed_sequence_size")
    length = packed if packed is not None and str(packed.value) != "0" else settings.find(*_LENGTH_NAMES)
    record_int(findings, "training.sequence_length", length)


def _read_optimizer(settings: LayeredSettings, findings: FindingCollector) -> None:
    setting = settings.find("optimizer._target_", "optimizer.name", "optimizer")
    if setting is None:
        return
    record_optimizer(findings, setting, options=optimizer_options(settings, "optimizer."))


def _read_adapters(settings: LayeredSettings, findings: FindingCollector) -> None:
    if settings.find("peft._target_", "peft.dim", "peft.peft_scheme") is None:
        return
    record_int(findings, "lora.rank", settings.find("peft.dim") or default_setting(8, "Automodel's default peft.dim"))
    modules, all_linear = settings.find("peft.target_modules"), settings.find_true("peft.match_all_linear")
    if all_linear is not None:
        findings.record_from(all_linear, "lora.targets", "all-linear")
    elif modules is not None:
        _read_targets(modules, findings)
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
        findings.warn(f"{modules.origin}: the pattern {modules.value} is not understood; give lora.targets as names.")
        findings.require("lora.targets")
    else:
        findings.record_from(modules, "lora.targets", names)


def _read_parallel(program: Program, settings: LayeredSettings) -> None:
    findings, find = program.findings, settings.find
    world = _world_size(program, settings)
    named = _named_strategy(settings)
    if named is None or as_int(world.ranks) == 1:
        return
    strategy = _STRATEGIES.get(as_word(named) or "")
    if strategy is None:
        sentence = f"{named.origin}: strategy {named.value!r} is not known here; FSDP2 is counted."
        findings.mark_uncertain("parallel.strategy", sentence, direction="more")
    findings.record_from(named, "parallel.strategy", strategy or "fsdp2")
    sizes = {
        "tensor": find("distributed.tp_size"),
        "pipeline": find("distributed.pp_size"),
        "context": find("distributed.cp_size"),
        "expert": find("distributed.ep_size"),
        "data_replicate": find("distributed.dp_replicate_size"),
    }
    if strategy == "ddp":
        record_int(findings, "parallel.data_replicate", find("distributed.dp_size") or world.ranks)
        return
    record_ranks(findings, world, sizes, _data_shards(settings))
    _read_expert_resharding(settings, findings)
    apply_rules(_SHARDED_RULES, settings, findings, tool="Automodel")
    _read_sharding_options(settings, findings, is_megatron_fsdp=strategy == "megatron-fsdp")


def _read_sharding_options(settings: LayeredSettings, findings: FindingCollector, *, is_megatron_fsdp: bool) -> None:
    find = settings.find
    sharding = find("distributed.data_parallel_sharding_strategy", "distributed.zero_dp_strategy")
    if is_megatron_fsdp:
        default = default_setting("optim_grads_params", "Automodel's default sharding")
        record_word(findings, "parallel.sharding", sharding or default, _SHARDING)
    offload = find("distributed.offload_policy", "distributed.cpu_offload", "distributed.offload_policy._target_")
    if offload is not None and (as_bool(offload) or "cpuoffload" in str(offload.value).lower()):
        findings.record_from(offload, "parallel.cpu_offload", "all")
    reduce = find("distributed.mp_policy.reduce_dtype", "distributed.grad_reduce_in_fp32")
    if reduce is None and is_megatron_fsdp:
        reduce = default_setting(False, "Automodel's default grad_reduce_in_fp32")
    if reduce is not None:
        dtype = WEIGHT_DTYPES.get(as_word(reduce) or "", "fp32" if as_bool(reduce) else "bf16")
        findings.record_from(reduce, "parallel.reduce_dtype", dtype)


def _is_fsdp2(program: Program, settings: LayeredSettings) -> bool:
    named = _named_strategy(settings)
    several = as_int(_world_size(program, settings).ranks) != 1
    return named is not None and several and _STRATEGIES.get(as_word(named) or "", "fsdp2") == "fsdp2"


def _named_strategy(settings: LayeredSettings) -> Setting | None:
    """Return the strategy: FSDP2 where only sizes are given; None where no setting concerns several ranks."""
    named = settings.find("distributed.strategy", "distributed._target_", "distributed_config._target_")
    sized = [name for name in _SIZE_NAMES if settings.find(f"distributed.{name}_size") is not None]
    if named is None and sized:
        return default_setting("fsdp2", "Automodel's default strategy")
    return named


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


def _world_size(program: Program, settings: LayeredSettings) -> WorldSize:
    """Return the number of ranks; ``automodel`` itself starts one per GPU, or as many as ``--nproc-per-node``."""
    per_node = settings.find("nproc_per_node")
    if "tool" not in program.launcher.launchers or "RANK" in program.environ:
        return read_world_size(program.launcher, LayeredSettings(), program.environ, findings=program.findings)
    return checked_ranks(None if as_word(per_node) in ("gpu", "auto") else per_node, program.findings)


TOOL = Tool(
    name="NeMo Automodel",
    programs=re.compile(r"(.*/)?automodel|nemo_automodel(\.\w+)*|(.*/)?nemo_automodel/.*"),
    commands=(ToolCommand(name="automodel", subcommands=None),),
    is_config=lambda table: has_key(table, "_target_") and has_any(table, "step_scheduler", "recipe"),
    read=read,
    keys=ToolKeys(
        settings={
            "training.micro_batch": ToolKey(name="step_scheduler.local_batch_size"),
            "training.sequence_length": ToolKey(name="packed_sequence.packed_sequence_size"),
            "training.activation_checkpointing": ToolKey(
                name="distributed.activation_checkpointing", values=CHECKPOINTING_SWITCH
            ),
            "parallel.reshard_after_forward": ToolKey(name="distributed.reshard_after_forward"),
            "lora.rank": ToolKey(name="peft.dim"),
        },
        derived={"training.gradient_accumulation": "step_scheduler.global_batch_size"},
    ),
)
