"""torchtitan: its TOML (before 2026-02), and ``python -m torchtitan.train --module llama3 --config llama3_8b``.

Names and meanings: ``torchtitan/config/job_config.py``. Since 2026-02 a configuration is a Python function, whose
values cannot be seen without running it: the user has to give what no flag states.
"""

import re
from collections.abc import Mapping

from ...common.records import replace
from ...job.rules.strategies import DTYPE_NAMES
from ..arguments.table import doubt_arguments, library, record_arguments
from ..program.program import Program
from ..source.evidence import MODEL_STATES, FindingCollector, JobReading
from ..source.settings import LayeredSettings, Setting, SettingsLayer, as_int, as_word, is_open
from ..trainer.unread_settings import warn_of_unread
from .shared.own_loop import folder_id, record_optimizer, record_ranks, world_of_tool
from .shared.settings_files import tool_layers
from .shared.tool import has_any, has_paths, known_tool

_CHECKPOINTING_WORD = re.compile(r"activation[-_]checkpoint:([\w-]+)")
_FLAVOR = re.compile(r"(\w+?)_(\d+(?:\.\d+|_\d+)?b(?:[-_]a\d+b)?)", re.IGNORECASE)
"""A configuration function named for a model and its flavor: ``llama3_8b``."""


def read(program: Program) -> JobReading:
    """Return the job of a torchtitan configuration."""
    checkpointing, program = _split_checkpointing_word(program)
    findings = program.findings
    # --config names a function, --module its package
    settings = LayeredSettings(checkpointing, *tool_layers(program, "job.config_file"))
    findings.record("training.framework", "torchtitan", "the program is torchtitan")
    _read_model(program, settings)
    _read_batch(settings, findings)
    _read_precision(settings, findings)
    _read_optimizer(program, settings)
    record_arguments(library("torchtitan"), "step", settings, findings)
    doubt_arguments(library("torchtitan"), "all", settings, findings)
    _read_parallel(program, settings)
    _doubt_function(settings, findings)
    warn_of_unread(settings, findings)
    return findings.build()


def _split_checkpointing_word(program: Program) -> tuple[SettingsLayer, Program]:
    """Return the mode in ``activation-checkpoint:full``, the syntax since 2026-02, and the program without it."""
    words = program.launch.arguments
    found = next((match for word in words if (match := _CHECKPOINTING_WORD.fullmatch(word))), None)
    if found is None:
        return {}, program
    others = tuple(word for word in words if word != found[0])
    mode = Setting(value=found[1].replace("-", "_"), origin=f"{found[0]} on the command line")
    return {"activation_checkpoint.mode": mode}, replace(program, launch=replace(program.launch, arguments=others))


def _read_model(program: Program, settings: LayeredSettings) -> None:
    findings = program.findings
    assets = settings.find("model.hf_assets_path", "hf_assets_path", "model.tokenizer_path")
    if (folder := folder_id(program.filesystem, assets)) is not None:
        findings.record_from(assets, "model.id", folder)
        return
    name, flavor = settings.find("model.name", "module"), settings.find("model.flavor")
    function = settings.find("config")
    if flavor is None and function is not None and (found := _FLAVOR.fullmatch(str(function.value))):
        flavor = function.with_value(found[2].replace("_", "."))
    if name is None or flavor is None:
        return
    known = library("torchtitan").words["model"].get(f"{name.value} {flavor.value}".lower())
    if known is not None:
        findings.record("model.id", known, f"{name.origin}, {flavor.origin}")
    else:
        findings.warn(
            f"{flavor.origin}: {name.value} {flavor.value} is not supported; give model.id.", unless="model.id"
        )


def _read_batch(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record length, batch and accumulation. A pipeline splits the local batch into its own micro-batches."""
    length = settings.find("training.seq_len", "training.max_context_length")
    findings.record_count("training.sequence_length", length)
    batch = settings.find("training.local_batch_size", "training.batch_size")
    tokens = settings.find("training.num_tokens_per_microbatch_per_dp_rank")
    if tokens is not None and not is_open(tokens) and as_int(tokens) is None:
        findings.refuse("training.micro_batch", tokens, "number of tokens")
    if tokens is not None and as_int(tokens) and (sequence_length := as_int(length)):
        _read_batch_in_tokens(tokens, sequence_length, settings, findings)
        return
    if (total := settings.find("training.global_batch_size")) is not None and not is_open(total):
        findings.record_global_batch(total)
    stages, local = as_int(settings.find("parallelism.pipeline_parallel_degree")) or 1, as_int(batch)
    if stages == 1 or batch is None or local is None:
        findings.record_count("training.micro_batch", batch)
        return
    micro = settings.find("parallelism.pipeline_parallel_microbatch_size")
    micro = micro or Setting.default(1, "torchtitan's default micro-batch of a pipeline")
    findings.record_count("training.micro_batch", micro)
    size = as_int(micro) or 1
    origin = f"{batch.origin}, in micro-batches of {size}"
    findings.record("training.gradient_accumulation", max(1, local // size), origin)


def _read_batch_in_tokens(
    tokens: Setting, sequence_length: int, settings: LayeredSettings, findings: FindingCollector
) -> None:
    micro_batch = max(1, (as_int(tokens) or 0) // sequence_length)
    findings.record("training.micro_batch", micro_batch, f"{tokens.origin}, over the length")
    total = settings.find("training.num_tokens_per_train_step")
    if total is not None and (all_tokens := as_int(total)):
        sequences = all_tokens // sequence_length
        findings.record_global_batch(replace(total, value=sequences, origin=f"{total.origin}, over the length"))


def _read_precision(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record the precision: weights are kept in ``training.dtype`` and gathered in ``mixed_precision_param``."""
    stored = settings.find("training.dtype")
    compute = settings.find("training.mixed_precision_param")
    kept = DTYPE_NAMES.get(as_word(stored) or "float32", "fp32")
    gathered = DTYPE_NAMES.get(as_word(compute) or "bfloat16", "bf16")
    mixed = gathered if gathered == "fp32" else f"{gathered}-mixed"
    default = Setting.default(None, "torchtitan's default: fp32 weights gathered in bf16")
    findings.record_from(stored or compute or default, "training.precision", mixed if kept == "fp32" else kept)


def _read_optimizer(program: Program, settings: LayeredSettings) -> None:
    setting = settings.find("optimizer.name") or Setting.default("AdamW", "torchtitan's default")
    implementation = settings.find("optimizer.implementation")
    word = "fused" if implementation is None else as_word(implementation)
    record_optimizer(program, settings, setting, fused=word == "fused", foreach=word == "foreach")


def _doubt_function(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Warn where ``--config`` names a Python function: what no flag states has the function's values, not defaults."""
    function, file = settings.find("config"), settings.find("job.config_file")
    if function is None or file is not None or str(function.value).endswith(".toml"):
        return
    sentence = (
        f"{function.origin}: {function.value} is a Python function, which vramtop does not read; defaults are assumed."
    )
    findings.doubt(sentence, "less", "logits", unless="training.loss")  # some chunk their loss
    if settings.find("activation_checkpoint.mode") is None:
        findings.add_uncertainty("either", "activations", unless="training.activation_checkpointing")
    if settings.find("parallelism.tensor_parallel_degree") is None:
        findings.add_uncertainty("less", *MODEL_STATES, unless="parallel.tensor")
    if settings.find("model.converters") is None:
        findings.add_uncertainty("less", "weights")  # 8-bit or 4-bit layers


def _read_parallel(program: Program, settings: LayeredSettings) -> None:
    findings, find, world = program.findings, settings.find, world_of_tool(program)
    shard, copies = find("parallelism.data_parallel_shard_degree"), find("parallelism.data_parallel_replicate_degree")
    tensor, stages = find("parallelism.tensor_parallel_degree"), find("parallelism.pipeline_parallel_degree")
    if as_int(shard) != 1 and (program.config_file is not None or (as_int(world.ranks) or 1) > 1):
        default = Setting.default(-1, "torchtitan shards over all ranks unless set otherwise")
        findings.record_from(shard or default, "parallel.strategy", "fsdp2")
    elif (as_int(copies) or 1) > 1 and copies is not None:
        findings.record_from(copies, "parallel.strategy", "ddp")
    record_ranks(program, world, settings, library("torchtitan"), shard)
    if tensor is not None and (as_int(tensor) or 1) > 1:
        origin = f"{tensor.origin}: torchtitan's tensor parallelism also splits norms and residuals"
        findings.infer("parallel.sequence_parallel", True, origin)
    _read_resharding(settings, stages, findings)


def _read_resharding(settings: LayeredSettings, stages: Setting | None, findings: FindingCollector) -> None:
    """Record resharding; by default weights stay gathered under a pipeline only."""
    policy = settings.find("parallelism.fsdp_reshard_after_forward")
    if policy is not None and as_word(policy) in ("always", "never"):
        findings.record_from(policy, "parallel.reshard_after_forward", as_word(policy) == "always")
    elif (as_int(stages) or 1) > 1 and stages is not None:
        origin = f"{stages.origin}: torchtitan's default"
        findings.infer("parallel.reshard_after_forward", False, origin)


TOOL = known_tool(
    "torchtitan",
    read,
    is_own=lambda table: (
        has_any(table, "job", "parallelism", "activation_checkpoint")
        and isinstance(table.get("training", {}), Mapping)
        and not has_paths(table, [["training.framework"]])
    ),
)
