"""torchtitan: its TOML (before 2026-02), and ``python -m torchtitan.train --module llama3 --config llama3_8b``.

Names and meanings: ``torchtitan/config/job_config.py``. Since 2026-02 a configuration is a Python function, whose
values a reader that runs nothing cannot see: what no flag says is asked of the user.
"""

import re
from dataclasses import replace

from ..program.program import Program
from ..program.ranks import World, read_world
from ..source.evidence import JobReading, Notes
from ..source.settings import Setting, Settings, as_bool, as_int, as_word
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
    notes, settings = program.notes, _settings(program)
    notes.put("training.framework", "torchtitan", "the program is torchtitan's")
    _model(program, settings)
    _batch(settings, notes)
    _precision(settings, notes)
    optimizer = settings.find("optimizer.name") or Setting(value="AdamW", origin="torchtitan's default", written=False)
    if (as_word(optimizer) or "") not in ("adamw", "adam"):
        sentence = f"{optimizer.origin}: optimizer {optimizer.value!r} is not known here and is counted as adamw."
        notes.unsure("training.optimizer", sentence)
    kind = settings.find("optimizer.implementation")
    fused = kind is None or as_word(kind) == "fused"
    notes.put("training.optimizer", "adamw-fused" if fused else "adamw", optimizer.origin, written=optimizer.written)
    _checkpointing(settings, checkpointing, notes)
    put_bool(notes, "training.compile", settings.find("compile.enable", "training.compile"))
    _float8(settings, notes)
    put_bool(notes, "training.optimizer_in_backward", settings.find("optimizer.early_step_in_backward"))
    _parallel(program, settings)
    warn_of_unread(settings, notes)
    return notes.reading()


def _settings(program: Program) -> Settings:
    """The old TOML is named by ``--job.config_file``; ``--config`` names a function and ``--module`` its package."""
    return tool_settings(program, "job.config_file")


def _model(program: Program, settings: Settings) -> None:
    notes = program.notes
    assets = settings.find("model.hf_assets_path", "hf_assets_path", "model.tokenizer_path")
    here = folder_id(program.place, str(assets.value)) if assets is not None else None
    if assets is not None and here is not None:
        notes.put("model.id", here, assets.origin)
        return
    name, flavor = settings.find("model.name", "module"), settings.find("model.flavor")
    function = settings.find("config")
    if flavor is None and function is not None and (found := _FLAVOR.fullmatch(str(function.value))):
        flavor = Setting(value=found[2].replace("_", "."), origin=function.origin)
    known = torchtitan_id(str(name.value), str(flavor.value)) if name is not None and flavor is not None else None
    if flavor is not None and name is not None and known is not None:
        notes.put("model.id", known, f"{name.origin}, {flavor.origin}")
    elif flavor is not None and name is not None:
        notes.warn(f"{flavor.origin}: {name.value} {flavor.value} is not known here; give model.id.")


def _batch(settings: Settings, notes: Notes) -> None:
    """Under a pipeline the local batch is cut into micro-batches of ``pipeline_parallel_microbatch_size``."""
    length = settings.find("training.seq_len", "training.max_context_length")
    put_int(notes, "training.sequence_length", length)
    batch = settings.find("training.local_batch_size", "training.batch_size")
    tokens = settings.find("training.num_tokens_per_microbatch_per_dp_rank")
    if tokens is not None and (count := as_int(tokens)) and (long := as_int(length)):
        notes.put("training.micro_batch", max(1, count // long), f"{tokens.origin}, over the length")
        if (step := settings.find("training.num_tokens_per_train_step")) is not None and (all_tokens := as_int(step)):
            notes.put_global_batch(all_tokens // long, f"{step.origin}, over the length")
        return
    if (total := settings.find("training.global_batch_size")) is not None:
        notes.put_global_batch(as_int(total), total.origin)
    stages = as_int(settings.find("parallelism.pipeline_parallel_degree")) or 1
    if stages > 1 and batch is not None and (local := as_int(batch)):
        micro = settings.find("parallelism.pipeline_parallel_microbatch_size")
        size = as_int(micro) or 1
        origin = micro.origin if micro is not None else "torchtitan's default micro-batch of a pipeline"
        notes.put("training.micro_batch", size, origin, written=micro is not None)
        notes.put(
            "training.gradient_accumulation", max(1, local // size), f"{batch.origin}, in micro-batches of {size}"
        )
        return
    put_int(notes, "training.micro_batch", batch)


def _precision(settings: Settings, notes: Notes) -> None:
    """Weights are kept in ``training.dtype`` and gathered in ``mixed_precision_param``."""
    stored = settings.find("training.dtype")
    compute = settings.find("training.mixed_precision_param")
    kept = _TYPES.get(as_word(stored) or "float32", "fp32")
    low = _TYPES.get(as_word(compute) or "bfloat16", "bf16")
    value = kept if kept != "fp32" else ("fp32" if low == "fp32" else f"{low}-mixed")
    said = stored or compute
    origin = said.origin if said is not None else "torchtitan's default: fp32 weights gathered in bf16"
    notes.put("training.precision", value, origin, written=said is not None)
    reduce = settings.find("training.mixed_precision_reduce")
    put_word(notes, "parallel.reduce_dtype", reduce, _TYPES)


def _checkpointing_word(program: Program) -> tuple[Setting | None, Program]:
    """``activation-checkpoint:full``, today's way to say it, and the program without that word."""
    words = program.launch.arguments
    found = next((match for word in words if (match := _CHECKPOINTING.fullmatch(word))), None)
    if found is None:
        return None, program
    rest = tuple(word for word in words if word != found[0])
    mode = Setting(value=found[1].replace("-", "_"), origin=f"{found[0]} on the command line")
    return mode, replace(program, launch=replace(program.launch, arguments=rest))


def _checkpointing(settings: Settings, word: Setting | None, notes: Notes) -> None:
    mode = (
        word
        or settings.find("activation_checkpoint.mode")
        or Setting(value="selective", origin="torchtitan's default activation_checkpoint.mode", written=False)
    )
    option = settings.find("activation_checkpoint.selective_ac_option")
    if as_word(mode) == "memory_budget":
        sentence = f"{mode.origin}: a memory budget is counted as selective checkpointing."
        notes.unsure("training.activation_checkpointing", sentence)
        notes.put("training.activation_checkpointing", "selective", mode.origin, written=False)
        return
    put_word(
        notes,
        "training.activation_checkpointing",
        mode,
        {"none": "none", "selective": "selective", "full": "full"},
    )
    if as_word(mode) == "selective" and option is not None and as_word(option) != "op":
        sentence = f"{option.origin}: every {option.value}th layer is checkpointed; counted as if chosen by operation."
        notes.unsure("training.activation_checkpointing", sentence)


def _float8(settings: Settings, notes: Notes) -> None:
    """float8 is a converter of the model; its options alone do nothing."""
    converters = settings.find("model.converters")
    if converters is not None and any(word in str(converters.value) for word in ("float8", "mx")):
        notes.warn(f"{converters.origin}: linear layers in 8 bits are counted as in bf16.")
        notes.doubt("more", "weights")  # copies in 8 bits
        notes.doubt("less", "activations")
    settings.find("quantize.linear.float8.filter_fqns", "float8.filter_fqns")


def _parallel(program: Program, settings: Settings) -> None:
    notes = program.notes
    find = settings.find
    world = read_world(program.outer, Settings(), program.environ) if program.file is None else None
    shard = find("parallelism.data_parallel_shard_degree")
    copies = find("parallelism.data_parallel_replicate_degree")
    tensor = find("parallelism.tensor_parallel_degree")
    stages = find("parallelism.pipeline_parallel_degree")
    one = shard is not None and as_int(shard) == 1
    if not one and (world is None or (as_int(world.ranks) or 1) > 1):
        origin = shard.origin if shard is not None else "torchtitan shards over all ranks unless told otherwise"
        notes.put("parallel.strategy", "fsdp2", origin, written=shard is not None)
    elif (as_int(copies) or 1) > 1 and copies is not None:
        notes.put("parallel.strategy", "ddp", copies.origin)
    sizes = {
        "data_replicate": copies,
        "tensor": tensor,
        "pipeline": stages,
        "context": find("parallelism.context_parallel_degree"),
        "expert": find("parallelism.expert_parallel_degree"),
    }
    put_ranks(
        program, world or World(ranks=None), sizes, Setting(value=1, origin=shard.origin) if one and shard else shard
    )
    if (as_int(tensor) or 1) > 1 and tensor is not None:
        origin = f"{tensor.origin}: torchtitan's tensor parallelism splits norms and residuals too"
        notes.put("parallel.sequence_parallel", True, origin, written=False)
    whole = find("parallelism.disable_loss_parallel")
    if whole is not None and as_bool(whole) and (as_int(tensor) or 1) > 1:
        notes.warn(f"{whole.origin}: the loss is counted as split over the tensor-parallel ranks.")
        notes.doubt("more", "logits")
    _reshard(settings, stages, notes)
    offload = find("training.enable_cpu_offload")
    if offload is not None and as_bool(offload):
        notes.put("parallel.cpu_offload", "all", offload.origin)


def _reshard(settings: Settings, stages: Setting | None, notes: Notes) -> None:
    """By default weights stay gathered under a pipeline only."""
    policy = settings.find("parallelism.fsdp_reshard_after_forward")
    if policy is not None and as_word(policy) in ("always", "never"):
        notes.put("parallel.reshard_after_forward", as_word(policy) == "always", policy.origin)
    elif (as_int(stages) or 1) > 1 and stages is not None:
        notes.put("parallel.reshard_after_forward", False, f"{stages.origin}: torchtitan's default", written=False)
