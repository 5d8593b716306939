"""NeMo Automodel: its YAML and the overrides of ``automodel cfg.yaml --step_scheduler.local_batch_size 4``.

Names and meanings: ``nemo_automodel/recipes`` and ``components/distributed`` of Automodel 0.3. Models are
transformers' own; FSDP2 gathers in bf16 and reduces in fp32.
"""

from ..program.program import Program
from ..program.ranks import WorldSize, read_world_size
from ..source.evidence import FindingCollector, JobReading
from ..source.settings import LayeredSettings, Setting, as_bool, as_int, as_word
from ..trainer.model_facts import known_config, stored_dtype
from ..trainer.precision import WEIGHT_TYPES
from ..trainer.unread_settings import warn_of_unread
from .shared.job_keys import put_bool, put_int, put_ranks, put_word
from .shared.known_models import folder_id
from .shared.merged_settings import tool_settings

_STRATEGIES = {
    "fsdp2": "fsdp2",
    **dict.fromkeys(("fsdp2manager", "fsdp2config"), "fsdp2"),
    **dict.fromkeys(("megatron_fsdp", "megatron-fsdp", "mfsdp"), "megatron-fsdp"),
    **dict.fromkeys(("megatronfsdpmanager", "megatronfsdpconfig"), "megatron-fsdp"),
    "nvfsdp": "megatron-fsdp",
    "nvfsdpmanager": "megatron-fsdp",
    "ddp": "ddp",
    **dict.fromkeys(("ddpmanager", "ddpconfig"), "ddp"),
}
_SHARDING = {
    "0": "none",
    "1": "optim",
    "2": "optim_grads",
    "3": "optim_grads_params",
    "no_shard": "none",
    "optim": "optim",
    "optim_grads": "optim_grads",
    "optim_grads_params": "optim_grads_params",
}
_OPTIMIZERS = {
    **dict.fromkeys(("adamw", "adam"), "adamw"),
    **dict.fromkeys(("fusedadam", "fusedadamw"), "adamw-fused"),
    "adamw8bit": "adamw-8bit",
    "sgd": "sgd",
    "adafactor": "adafactor",
    "muon": "muon",
    "lion": "lion",
}
_LOSSES = {"fusedlinearcrossentropy": "fused-linear", "chunkedcrossentropy": "chunked"}
_TASKS = {
    "ForSequenceClassification": "sequence-classification",
    "ForImageTextToText": "image-text-to-text",
    "ForTextToWaveform": "text-to-waveform",
}
_ATTENTION = {name: name for name in ("sdpa", "eager", "flash_attention_2", "flash_attention_3")}


def read(program: Program) -> JobReading:
    """The job of an Automodel recipe."""
    findings, settings = program.findings, tool_settings(program, "c", "config")
    find = settings.find
    _model(program, settings)
    put_int(
        findings, "training.micro_batch", find("step_scheduler.local_batch_size", "step_scheduler.micro_batch_size")
    )
    _length(settings, findings)
    _precision(program, settings)
    _optimizer(settings, findings)
    loss = find("loss_fn._target_", "loss_fn")
    if loss is not None:
        findings.put("training.loss", _LOSSES.get(as_word(loss) or "", "full"), loss.origin)
    put_bool(findings, "training.compile", find("compile.enabled", "compile"))
    _adapters(settings, findings)
    _checkpointing(settings, findings)
    _parallel(program, settings)
    if (total := find("step_scheduler.global_batch_size")) is not None:
        findings.put_global_batch(as_int(total), total.origin)
    warn_of_unread(settings, findings)
    return findings.build()


def _model(program: Program, settings: LayeredSettings) -> None:
    findings = program.findings
    name = settings.find(
        "model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path", "model.config.name_or_path"
    )
    if name is not None:
        findings.put("model.id", folder_id(program.filesystem, str(name.value)) or str(name.value), name.origin)
    builder = settings.find("model._target_")
    task = next((task for word, task in _TASKS.items() if builder is not None and word in str(builder.value)), None)
    if builder is not None and task is not None:
        findings.put("model.task", task, builder.origin)
    attention = settings.find("model.attn_implementation", "model.backend.attn")
    if attention is not None and as_word(attention) in _ATTENTION:
        findings.put("model.attention", as_word(attention), attention.origin)
    elif attention is not None:
        sentence = f"{attention.origin}: attention {attention.value!r} is not known here and is counted as sdpa."
        findings.mark_uncertain("model.attention", sentence)
    origin = "written nowhere; FlashAttention 2 where it is installed, which takes as much"
    findings.put("model.attention", "sdpa", origin, written=False)


def _precision(program: Program, settings: LayeredSettings) -> None:
    """The type the weights are loaded in, by default as stored; FSDP2 gathers fp32 weights in 16 bits."""
    findings, dtype = program.findings, settings.find("model.torch_dtype", "model.dtype")
    if dtype is None or as_word(dtype) == "auto":
        stored = stored_dtype(known_config(findings.get("model.id"), program.environ))
        dtype = stored or Setting(value="bfloat16", origin="Automodel's usual torch_dtype", written=False)
    policy = settings.find("distributed.mp_policy.param_dtype")
    low = WEIGHT_TYPES.get(as_word(policy) or "bfloat16", "bf16")
    if WEIGHT_TYPES.get(as_word(dtype) or "") == "fp32" and low != "fp32" and _shards(program, settings):
        origin = f"{dtype.origin}; FSDP2 gathers in {policy.origin if policy is not None else 'bf16 by default'}"
        findings.put("training.precision", f"{low}-mixed", origin, written=dtype.written)
    elif (kept := settings.find("distributed.preserve_fp32_weights")) is not None and as_bool(kept):
        findings.put("training.precision", f"{low}-mixed", kept.origin)
    else:
        put_word(findings, "training.precision", dtype, WEIGHT_TYPES)


def _shards(program: Program, settings: LayeredSettings) -> bool:
    named = _strategy(settings)
    several = as_int(_world(program, settings).ranks) != 1
    return named is not None and several and _STRATEGIES.get(as_word(named) or "", "fsdp2") == "fsdp2"


def _length(settings: LayeredSettings, findings: FindingCollector) -> None:
    packed = settings.find("packed_sequence.packed_sequence_size")
    if as_int(packed):
        put_int(findings, "training.sequence_length", packed)
        return
    length = settings.find("dataset.seq_length", "dataset.seq_len", "dataset.max_seq_length", "dataset.max_length")
    put_int(findings, "training.sequence_length", length)


def _optimizer(settings: LayeredSettings, findings: FindingCollector) -> None:
    setting = settings.find("optimizer._target_", "optimizer.name", "optimizer")
    if setting is None:
        return
    known = _OPTIMIZERS.get(as_word(setting) or "")
    if known is None:
        sentence = f"{setting.origin}: optimizer {setting.value!r} is not known here and is counted as adamw."
        findings.mark_uncertain("training.optimizer", sentence)
    if known in (None, "adamw"):
        known = "adamw-fused" if settings.is_true("optimizer.fused") else "adamw"
    findings.put("training.optimizer", known, setting.origin)


def _adapters(settings: LayeredSettings, findings: FindingCollector) -> None:
    find = settings.find
    target = find("peft._target_", "peft.dim", "peft.peft_scheme")
    if target is None:
        return
    rank = find("peft.dim") or Setting(value=8, origin="Automodel's default peft.dim", written=False)
    put_int(findings, "lora.rank", rank)
    modules = find("peft.target_modules")
    everything = find("peft.match_all_linear")
    if everything is not None and as_bool(everything):
        findings.put("lora.targets", "all-linear", everything.origin)
    elif modules is not None:
        _targets(modules, findings)
    four, eight = find("quantization.load_in_4bit"), find("quantization.load_in_8bit")
    double = find("quantization.bnb_4bit_use_double_quant")
    if four is not None and as_bool(four):
        findings.put("lora.quantization", "nf4-double" if as_bool(double) else "nf4", four.origin)
    elif eight is not None and as_bool(eight):
        findings.put("lora.quantization", "int8", eight.origin)


def _targets(modules: Setting, findings: FindingCollector) -> None:
    """Names may be patterns: ``*_proj`` is every projection of a block, ``*.q_proj`` the one of that name."""
    patterns = modules.value if isinstance(modules.value, list) else [modules.value]
    names = [str(pattern).rpartition(".")[2] for pattern in patterns]
    if names == ["*_proj"]:
        findings.put("lora.targets", "all-linear", modules.origin)
    elif any("*" in name for name in names):
        findings.warn(f"{modules.origin}: the pattern {modules.value} is not understood; give lora.targets as names.")
        findings.require("lora.targets")
    else:
        findings.put("lora.targets", names, modules.origin)


def _parallel(program: Program, settings: LayeredSettings) -> None:
    findings, find = program.findings, settings.find
    world = _world(program, settings)
    named = _strategy(settings)
    strategy = _STRATEGIES.get(as_word(named) or "") if named is not None else None
    if named is None or as_int(world.ranks) == 1:
        return
    if strategy is None:
        sentence = f"{named.origin}: strategy {named.value!r} is not known here; FSDP2 is counted."
        findings.mark_uncertain("parallel.strategy", sentence, direction="more")
    findings.put("parallel.strategy", strategy or "fsdp2", named.origin, written=named.written)
    sizes = {
        "tensor": find("distributed.tp_size"),
        "pipeline": find("distributed.pp_size"),
        "context": find("distributed.cp_size"),
        "expert": find("distributed.ep_size"),
        "data_replicate": find("distributed.dp_replicate_size"),
    }
    if strategy == "ddp":
        put_int(findings, "parallel.data_replicate", find("distributed.dp_size") or world.ranks)
        return
    put_ranks(program, world, sizes, _data_shards(settings))
    put_bool(findings, "parallel.sequence_parallel", find("distributed.sequence_parallel"))
    _reshard(settings, findings)
    put_bool(findings, "parallel.double_buffer", find("distributed.fsdp_double_buffer"))
    sharding = find("distributed.data_parallel_sharding_strategy", "distributed.zero_dp_strategy")
    if strategy == "megatron-fsdp":
        default = Setting(value="optim_grads_params", origin="Automodel's default sharding", written=False)
        put_word(findings, "parallel.sharding", sharding or default, _SHARDING)
    offload = find("distributed.offload_policy", "distributed.cpu_offload", "distributed.offload_policy._target_")
    if offload is not None and (as_bool(offload) or "cpuoffload" in str(offload.value).lower()):
        findings.put("parallel.cpu_offload", "all", offload.origin)
    reduce = find("distributed.mp_policy.reduce_dtype", "distributed.grad_reduce_in_fp32")
    if reduce is None and strategy == "megatron-fsdp":
        reduce = Setting(value=False, origin="Automodel's default grad_reduce_in_fp32", written=False)
    if reduce is not None:
        value = WEIGHT_TYPES.get(as_word(reduce) or "", "fp32" if as_bool(reduce) else "bf16")
        findings.put("parallel.reduce_dtype", value, reduce.origin, written=reduce.written)


def _strategy(settings: LayeredSettings) -> Setting | None:
    """FSDP2 where only sizes are given; None where nothing is said of several ranks."""
    named = settings.find("distributed.strategy", "distributed._target_", "distributed_config._target_")
    sized = [name for name in ("dp", "tp", "cp", "pp", "ep") if settings.find(f"distributed.{name}_size") is not None]
    if named is None and sized:
        return Setting(value="fsdp2", origin="Automodel's default strategy", written=False)
    return named


def _data_shards(settings: LayeredSettings) -> Setting | None:
    """``dp_size`` counts all data-parallel ranks, the copies among them."""
    total, copies = settings.find("distributed.dp_size"), settings.find("distributed.dp_replicate_size")
    size = as_int(total)
    if total is None or size is None:
        return None
    return Setting(value=max(1, size // (as_int(copies) or 1)), origin=total.origin)


def _reshard(settings: LayeredSettings, findings: FindingCollector) -> None:
    """By default weights stay gathered where experts are spread over ranks (``MoEParallelizerConfig``)."""
    experts = settings.find("distributed.ep_size")
    said = settings.find("distributed.moe.reshard_after_forward")
    if experts is not None and (as_int(experts) or 1) > 1:
        default = Setting(value=False, origin=f"{experts.origin}: Automodel's default with experts", written=False)
        put_bool(findings, "parallel.reshard_after_forward", said or default)
    put_bool(findings, "parallel.reshard_after_forward", settings.find("distributed.reshard_after_forward"))


def _world(program: Program, settings: LayeredSettings) -> WorldSize:
    """``automodel`` itself starts a rank per GPU, or as many as ``--nproc-per-node`` says."""
    per_node = settings.find("nproc_per_node")
    if "tool" not in program.launcher.launchers or "RANK" in program.environ:
        return read_world_size(program.launcher, LayeredSettings(), program.environ)
    return WorldSize(ranks=per_node if as_int(per_node) else None)


def _checkpointing(settings: LayeredSettings, findings: FindingCollector) -> None:
    setting = settings.find("distributed.activation_checkpointing", "activation_checkpointing")
    put_word(
        findings,
        "training.activation_checkpointing",
        setting,
        {"true": "full", "full": "full", "selective": "selective", "false": "none", "none": "none"},
    )
