"""torchtitan: its TOML (before 2026-02), and ``python -m torchtitan.train --module llama3 --config llama3_8b``.

Names and meanings: ``torchtitan/config/job_config.py``. Since 2026-02 a configuration is a Python function, whose
values a reader that runs nothing cannot see: what no flag says is asked of the user.
"""

import re
from dataclasses import replace

from ..program.program import Program
from ..program.ranks import WorldSize, read_world_size
from ..source.evidence import FindingCollector, JobReading
from ..source.settings import LayeredSettings, Setting, as_bool, as_int, as_word
from ..trainer.unread_settings import warn_of_unread
from .shared.job_keys import put_bool, put_int, put_ranks, put_word
from .shared.known_models import folder_id, torchtitan_id
from .shared.merged_settings import tool_settings

_TYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_CHECKPOINTING = re.compile(r"activation[-_]checkpoint:([\w-]+)")
_FLAVOR = re.compile(r"(\w+?)_(\d+(?:\.\d+|_\d+)?b(?:[-_]a\d+b)?)", re.IGNORECASE)


def read(program: Program) -> JobReading:
    """The job of a torchtitan configuration."""
    checkpointing, program = _checkpointing_word(program)
    findings, settings = program.findings, _settings(program)
    findings.put("training.framework", "torchtitan", "the program is torchtitan's")
    _model(program, settings)
    _batch(settings, findings)
    _precision(settings, findings)
    optimizer = settings.find("optimizer.name") or Setting(value="AdamW", origin="torchtitan's default", written=False)
    if (as_word(optimizer) or "") not in ("adamw", "adam"):
        sentence = f"{optimizer.origin}: optimizer {optimizer.value!r} is not known here and is counted as adamw."
        findings.mark_uncertain("training.optimizer", sentence)
    kind = settings.find("optimizer.implementation")
    fused = kind is None or as_word(kind) == "fused"
    findings.put("training.optimizer", "adamw-fused" if fused else "adamw", optimizer.origin, written=optimizer.written)
    _checkpointing(settings, checkpointing, findings)
    put_bool(findings, "training.compile", settings.find("compile.enable", "training.compile"))
    _float8(settings, findings)
    put_bool(findings, "training.optimizer_in_backward", settings.find("optimizer.early_step_in_backward"))
    _parallel(program, settings)
    warn_of_unread(settings, findings)
    return findings.build()


def _settings(program: Program) -> LayeredSettings:
    """The old TOML is named by ``--job.config_file``; ``--config`` names a function and ``--module`` its package."""
    return tool_settings(program, "job.config_file")


def _model(program: Program, settings: LayeredSettings) -> None:
    findings = program.findings
    assets = settings.find("model.hf_assets_path", "hf_assets_path", "model.tokenizer_path")
    here = folder_id(program.filesystem, str(assets.value)) if assets is not None else None
    if assets is not None and here is not None:
        findings.put("model.id", here, assets.origin)
        return
    name, flavor = settings.find("model.name", "module"), settings.find("model.flavor")
    function = settings.find("config")
    if flavor is None and function is not None and (found := _FLAVOR.fullmatch(str(function.value))):
        flavor = Setting(value=found[2].replace("_", "."), origin=function.origin)
    known = torchtitan_id(str(name.value), str(flavor.value)) if name is not None and flavor is not None else None
    if flavor is not None and name is not None and known is not None:
        findings.put("model.id", known, f"{name.origin}, {flavor.origin}")
    elif flavor is not None and name is not None:
        findings.warn(f"{flavor.origin}: {name.value} {flavor.value} is not known here; give model.id.")


def _batch(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Under a pipeline the local batch is cut into micro-batches of ``pipeline_parallel_microbatch_size``."""
    length = settings.find("training.seq_len", "training.max_context_length")
    put_int(findings, "training.sequence_length", length)
    batch = settings.find("training.local_batch_size", "training.batch_size")
    tokens = settings.find("training.num_tokens_per_microbatch_per_dp_rank")
    if tokens is not None and (count := as_int(tokens)) and (long := as_int(length)):
        findings.put("training.micro_batch", max(1, count // long), f"{tokens.origin}, over the length")
        if (step := settings.find("training.num_tokens_per_train_step")) is not None and (all_tokens := as_int(step)):
            findings.put_global_batch(all_tokens // long, f"{step.origin}, over the length")
        return
    if (total := settings.find("training.global_batch_size")) is not None:
        findings.put_global_batch(as_int(total), total.origin)
    stages = as_int(settings.find("parallelism.pipeline_parallel_degree")) or 1
    if stages > 1 and batch is not None and (local := as_int(batch)):
        micro = settings.find("parallelism.pipeline_parallel_microbatch_size")
        size = as_int(micro) or 1
        origin = micro.origin if micro is not None else "torchtitan's default micro-batch of a pipeline"
        findings.put("training.micro_batch", size, origin, written=micro is not None)
        findings.put(
            "training.gradient_accumulation", max(1, local // size), f"{batch.origin}, in micro-batches of {size}"
        )
        return
    put_int(findings, "training.micro_batch", batch)


def _precision(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Weights are kept in ``training.dtype`` and gathered in ``mixed_precision_param``."""
    stored = settings.find("training.dtype")
    compute = settings.find("training.mixed_precision_param")
    kept = _TYPES.get(as_word(stored) or "float32", "fp32")
    low = _TYPES.get(as_word(compute) or "bfloat16", "bf16")
    value = kept if kept != "fp32" else ("fp32" if low == "fp32" else f"{low}-mixed")
    said = stored or compute
    origin = said.origin if said is not None else "torchtitan's default: fp32 weights gathered in bf16"
    findings.put("training.precision", value, origin, written=said is not None)
    reduce = settings.find("training.mixed_precision_reduce")
    put_word(findings, "parallel.reduce_dtype", reduce, _TYPES)


def _checkpointing_word(program: Program) -> tuple[Setting | None, Program]:
    """``activation-checkpoint:full``, today's way to say it, and the program without that word."""
    words = program.launch.arguments
    found = next((match for word in words if (match := _CHECKPOINTING.fullmatch(word))), None)
    if found is None:
        return None, program
    rest = tuple(word for word in words if word != found[0])
    mode = Setting(value=found[1].replace("-", "_"), origin=f"{found[0]} on the command line")
    return mode, replace(program, launch=replace(program.launch, arguments=rest))


def _checkpointing(settings: LayeredSettings, word: Setting | None, findings: FindingCollector) -> None:
    mode = (
        word
        or settings.find("activation_checkpoint.mode")
        or Setting(value="selective", origin="torchtitan's default activation_checkpoint.mode", written=False)
    )
    option = settings.find("activation_checkpoint.selective_ac_option")
    if as_word(mode) == "memory_budget":
        sentence = f"{mode.origin}: a memory budget is counted as selective checkpointing."
        findings.mark_uncertain("training.activation_checkpointing", sentence)
        findings.put("training.activation_checkpointing", "selective", mode.origin, written=False)
        return
    put_word(
        findings,
        "training.activation_checkpointing",
        mode,
        {"none": "none", "selective": "selective", "full": "full"},
    )
    if as_word(mode) == "selective" and option is not None and as_word(option) != "op":
        sentence = f"{option.origin}: every {option.value}th layer is checkpointed; counted as if chosen by operation."
        findings.mark_uncertain("training.activation_checkpointing", sentence)


def _float8(settings: LayeredSettings, findings: FindingCollector) -> None:
    """float8 is a converter of the model; its options alone do nothing."""
    converters = settings.find("model.converters")
    if converters is not None and any(word in str(converters.value) for word in ("float8", "mx")):
        findings.warn(f"{converters.origin}: linear layers in 8 bits are counted as in bf16.")
        findings.add_uncertainty("more", "weights")  # copies in 8 bits
        findings.add_uncertainty("less", "activations")
    settings.find("quantize.linear.float8.filter_fqns", "float8.filter_fqns")


def _parallel(program: Program, settings: LayeredSettings) -> None:
    findings = program.findings
    find = settings.find
    world = (
        read_world_size(program.launcher, LayeredSettings(), program.environ) if program.config_file is None else None
    )
    shard = find("parallelism.data_parallel_shard_degree")
    copies = find("parallelism.data_parallel_replicate_degree")
    tensor = find("parallelism.tensor_parallel_degree")
    stages = find("parallelism.pipeline_parallel_degree")
    one = shard is not None and as_int(shard) == 1
    if not one and (world is None or (as_int(world.ranks) or 1) > 1):
        origin = shard.origin if shard is not None else "torchtitan shards over all ranks unless told otherwise"
        findings.put("parallel.strategy", "fsdp2", origin, written=shard is not None)
    elif (as_int(copies) or 1) > 1 and copies is not None:
        findings.put("parallel.strategy", "ddp", copies.origin)
    sizes = {
        "data_replicate": copies,
        "tensor": tensor,
        "pipeline": stages,
        "context": find("parallelism.context_parallel_degree"),
        "expert": find("parallelism.expert_parallel_degree"),
    }
    put_ranks(
        program,
        world or WorldSize(ranks=None),
        sizes,
        Setting(value=1, origin=shard.origin) if one and shard else shard,
    )
    if (as_int(tensor) or 1) > 1 and tensor is not None:
        origin = f"{tensor.origin}: torchtitan's tensor parallelism splits norms and residuals too"
        findings.put("parallel.sequence_parallel", True, origin, written=False)
    whole = find("parallelism.disable_loss_parallel")
    if whole is not None and as_bool(whole) and (as_int(tensor) or 1) > 1:
        findings.warn(f"{whole.origin}: the loss is counted as split over the tensor-parallel ranks.")
        findings.add_uncertainty("more", "logits")
    _reshard(settings, stages, findings)
    offload = find("training.enable_cpu_offload")
    if offload is not None and as_bool(offload):
        findings.put("parallel.cpu_offload", "all", offload.origin)


def _reshard(settings: LayeredSettings, stages: Setting | None, findings: FindingCollector) -> None:
    """By default weights stay gathered under a pipeline only."""
    policy = settings.find("parallelism.fsdp_reshard_after_forward")
    if policy is not None and as_word(policy) in ("always", "never"):
        findings.put("parallel.reshard_after_forward", as_word(policy) == "always", policy.origin)
    elif (as_int(stages) or 1) > 1 and stages is not None:
        findings.put("parallel.reshard_after_forward", False, f"{stages.origin}: torchtitan's default", written=False)
