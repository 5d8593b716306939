"""A recipe's model, batch, optimizer and adapters; the other modules of this room read the rest of it.

Names and meanings: ``nemo_automodel/recipes``, ``_transformers`` and ``components`` of Automodel 0.1 to 0.5.
"""

import re

from ....job.rules import DTYPE_NAMES
from ...program import Program, ToolCommand
from ...source import FindingCollector, JobReading, LayeredSettings, Setting, as_int, as_word, default_setting
from ...trainer import warn_of_unread
from ..shared import (
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
    record_dropout,
    record_int,
    record_optimizer,
    record_word,
    tool_settings,
)
from .doubts import mark_doubts
from .loss import read_loss
from .parallel import read_parallel
from .precision import read_precision
from .saving import read_saving

_TASKS = {
    "ForSequenceClassification": "sequence-classification",
    "ForImageTextToText": "image-text-to-text",
    "ForTextToWaveform": "text-to-waveform",
}
"""Tasks by a part of the builder's name."""
_ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")
_RULES = (
    int_rule("training.micro_batch", "step_scheduler.local_batch_size", "step_scheduler.micro_batch_size"),
    bool_rule("training.compile", "compile.enabled", "distributed.enable_compile", "compile"),
)
_LENGTH_NAMES = ("dataset.seq_length", "dataset.seq_len", "dataset.max_seq_length", "dataset.max_length")


def read(program: Program) -> JobReading:
    """Return the job of an Automodel recipe."""
    findings, settings = program.findings, tool_settings(program, "c", "config")
    findings.record("training.framework", "automodel", "the program that is started", written=False)
    _read_model(program, settings)
    _read_batch(settings, findings)
    read_loss(settings, findings)
    _read_adapters(settings, findings)
    read_precision(program, settings)
    _read_optimizer(settings, findings)
    read_parallel(program, settings)
    read_saving(settings, findings)
    mark_doubts(program, settings)
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
    packed = settings.find("packed_sequence.packed_sequence_size")
    if packed is not None and str(packed.value) != "0" and as_int(settings.find("distributed.cp_size")) in (None, 1):
        findings.record_from(packed, "model.attention", "flash_attention_2")  # kernel_patches.py asserts it
    attention = settings.find("model.attn_implementation", "model.backend.attn")
    if attention is not None and as_word(attention) in _ATTENTION:
        findings.record_from(attention, "model.attention", as_word(attention))
    elif attention is not None:
        sentence = f"{attention.origin}: attention {attention.value!r} is not known here and is counted as sdpa."
        findings.mark_uncertain("model.attention", sentence)
    origin = "not set anywhere; FlashAttention 2, the default where it is installed, needs as much memory"
    findings.record("model.attention", "sdpa", origin, written=False)


def _read_batch(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record micro-batch and length: a pipeline runs parts of the local batch, packed sequences are all of one length.

    Without packing the collater pads a batch to its longest sequence (components/datasets/utils.py).
    """
    staged = settings.find("distributed.pp_size")
    if staged is not None and (as_int(staged) or 1) > 1:
        size = settings.find("distributed.pipeline.pp_microbatch_size")
        default = default_setting(1, "Automodel's default pp_microbatch_size")
        record_int(findings, "training.micro_batch", size or default)
    apply_rules(_RULES, settings, findings, tool="Automodel")
    packed = settings.find("packed_sequence.packed_sequence_size")
    is_packed = packed is not None and str(packed.value) != "0"
    record_int(findings, "training.sequence_length", packed if is_packed else settings.find(*_LENGTH_NAMES))
    if is_packed and packed is not None:
        findings.record_from(packed, "training.varying_lengths", False)
    else:
        origin = "Automodel pads a batch to its longest sequence unless it packs them"
        findings.record("training.varying_lengths", True, origin, written=False)
    if (total := settings.find("step_scheduler.global_batch_size")) is not None:
        findings.record_global_batch(as_int(total), total)


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
    record_word(findings, "lora.adapter_dtype", settings.find("peft.lora_dtype"), DTYPE_NAMES)
    dropout = settings.find("peft.dropout") or default_setting(0.0, "Automodel's default peft.dropout")
    record_dropout(findings, dropout)  # of the input or of the output, as dropout_position says
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
