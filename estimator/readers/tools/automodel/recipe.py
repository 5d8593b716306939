"""NeMo AutoModel: its YAML recipes and the overrides on its command line.

Names and meanings: ``nemo_automodel/recipes``, ``_transformers`` and ``components`` of Automodel 0.5.
"""

import re
from functools import partial

from ....common.errors import CannotTellError
from ...arguments.table import doubt_arguments, library, record_arguments, record_word
from ...program.program import Program
from ...source.evidence import FindingCollector, JobReading
from ...source.settings import LayeredSettings, Setting, as_bool, as_int, as_word
from ...source.versions import version_tuple
from ...trainer.lora import read_targets
from ...trainer.unread_settings import warn_of_unread
from ..shared.own_loop import folder_id, record_optimizer
from ..shared.settings_files import tool_settings
from ..shared.tool import has_any, has_key, known_tool
from .parallel import read_parallel, read_precision

_TABLE = partial(library, "automodel")
_LATEST = (0, 5)
"""The version whose source these rules follow (tag v0.5.0 of NVIDIA-NeMo/Automodel)."""


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
        findings.record_from(name, "model.id", folder_id(program.filesystem, name) or str(name.value))
    builder = settings.find("model._target_")
    tasks = [task for word, task in _TABLE().words["task"].items() if word in str(getattr(builder, "value", ""))]
    findings.record_from(builder, "model.task", tasks[0] if tasks else None)
    packed = settings.find("packed_sequence.packed_sequence_size")
    if packed is not None and str(packed.value) != "0" and as_int(settings.find("distributed.cp_size")) in (None, 1):
        findings.record_from(packed, "model.attention", "flash_attention_2")  # kernel_patches.py asserts it
    attention = settings.find("model.attn_implementation", "model.backend.attn")
    if attention is not None:
        record_word(findings, "model.attention", attention, {name: name for name in _ATTENTION})
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
    packed = packed if packed is not None and str(packed.value) != "0" else None
    findings.record_count("training.sequence_length", packed or settings.find(*_LENGTH_NAMES))
    findings.record_from(packed, "training.varying_lengths", False)
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
    elif modules is not None:  # ``*`` stands for any text (0.5, _peft/module_matcher.py)
        patterns = [str(each) for each in (modules.value if isinstance(modules.value, list) else [modules.value])]
        names: list[str] | str = [pattern.rpartition(".")[2] for pattern in patterns]
        if {"*", "*_proj"} & {*patterns}:
            names = "all-linear"
        elif any("*" in name for name in names):
            names = [re.sub(r"(?<!\.)\*", ".*", pattern) for pattern in patterns]
        read_targets(modules.with_value(names), None, findings)
    dropout = settings.find("peft.dropout") or Setting.default(0.0, "Automodel's default peft.dropout")
    findings.record_dropout(dropout)  # of the input or of the output, as dropout_position says
    four, eight = settings.find_true("quantization.load_in_4bit"), settings.find_true("quantization.load_in_8bit")
    double = settings.is_true("quantization.bnb_4bit_use_double_quant")
    findings.record_from(four, "lora.quantization", "nf4-double" if double else "nf4")
    findings.record_from(eight, "lora.quantization", "int8")


_IN_PLACE = ("teparallelcrossentropy",)
"""Losses whose kernel writes the gradient over the logits and computes in fp32 itself (TransformerEngine's)."""


def read_loss(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record ``training.loss`` and ``training.fused_kernels``.

    ``loss_fn``: components/loss. ``use_liger_kernel``, on by default, patches transformers' models (norms, SwiGLU,
    RoPE; ``_patch_liger_kernel``), not where tensor or context parallelism splits them (``_apply_preload_overrides``).
    """
    named = settings.find("loss_fn._target_", "loss_fn")
    loss = as_word(named) or ""
    record_arguments(_TABLE(), "loss", settings, findings)
    without = _without_liger(settings)
    if loss in _IN_PLACE and named is not None:
        kernels = ["cross-entropy"] if without is not None else ["norm", "mlp", "rope", "cross-entropy"]
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


def read_saving(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record the table ``saving`` unless checkpoints are off (``CheckpointingConfig``, ``Checkpointer.save_model``).

    Each rank writes its shard with torch's distributed checkpoints; ``save_consolidated`` merges the files on the host.
    Adapters are gathered whole, parameter by parameter, and copied to the CPU; optimizer states are always saved.
    """
    enabled = settings.find("checkpoint.enabled")
    if enabled is not None and as_bool(enabled) is False:
        return
    adapters = settings.find("peft._target_", "peft.dim", "peft.peft_scheme")
    chosen = enabled or adapters or Setting.default(True, "Automodel's default checkpoint.enabled")
    findings.record_from(chosen, "saving.weights", "adapters" if adapters is not None else "sharded")
    findings.record_from(chosen, "saving.optimizer", True)
    settings.find(*settings.names("checkpoint."))


TOOL = known_tool(
    "automodel", read, is_own=lambda table: has_key(table, "_target_") and has_any(table, "step_scheduler", "recipe")
)
