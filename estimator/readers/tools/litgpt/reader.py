"""Reads a LitGPT command or its YAML into a job.

Names and meanings: ``litgpt/finetune``, ``litgpt/pretrain.py``, ``litgpt/args.py`` of LitGPT 0.5.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath

from ...program import Program, ToolCommand
from ...source import FindingCollector, JobReading, LayeredSettings, Setting, as_int, default_setting
from ...trainer import warn_of_unread
from ..shared import (
    CONFIG_SUFFIXES,
    Tool,
    ToolKey,
    ToolKeys,
    apply_rules,
    expand_abbreviations,
    has_any,
    int_rule,
    optimizer_options,
    record_dropout,
    record_int,
    record_optimizer,
    tool_layers,
    word_rule,
)
from .adapters import read_adapter_method
from .devices import LORA_RECIPES, read_devices
from .lora_targets import TARGETS, record_targets
from .model import read_litgpt_model

_PRECISION = {
    "bf16-true": "bf16",
    "16-true": "fp16",
    "bf16-mixed": "bf16-mixed",
    "16-mixed": "fp16-mixed",
    "32-true": "fp32",
    "32": "fp32",
}
_QUANTIZATION = {
    "bnb.nf4": "nf4",
    "bnb.nf4-dq": "nf4-double",
    "bnb.fp4": "nf4",
    "bnb.fp4-dq": "nf4-double",
    "bnb.int8-training": "int8",
    "bnb.int8": "int8",
}
_RULES = (
    int_rule("training.sequence_length", "train.max_seq_length", "data.max_seq_length"),
    word_rule("training.precision", _PRECISION, "precision", default="bf16-mixed"),
)
_SUBCOMMANDS = frozenset(
    {"finetune", "finetune_lora", "finetune_full", "finetune_adapter", "finetune_adapter_v2", "pretrain"}
)
_OPTIONS = (
    *("train.save_interval", "train.log_interval", "train.global_batch_size", "train.micro_batch_size"),
    *("train.lr_warmup_steps", "train.lr_warmup_fraction", "train.epochs", "train.max_tokens", "train.max_steps"),
    *("train.max_time", "train.max_seq_length", "train.tie_embeddings", "train.max_norm", "train.min_lr"),
    *("precision", "quantize", "devices", "num_nodes", "optimizer", *TARGETS, "lora_r", "lora_alpha", "lora_dropout"),
)
"""Options whose names may be shortened on the command line, with those that make a short name ambiguous."""


def read(program: Program) -> JobReading:
    """Return the job of a LitGPT command."""
    words, flags = _split_words(program.launch.arguments)
    program = replace(program, launch=replace(program.launch, arguments=(*words, *flags)))
    findings, layers = program.findings, tool_layers(program, "config")
    settings = LayeredSettings(expand_abbreviations(layers[0], _OPTIONS), *layers[1:])
    recipe = _recipe(program, settings, words)
    pretrains = recipe == "pretrain"
    findings.record("training.framework", "litgpt", "the program is LitGPT")
    read_litgpt_model(program, settings, positional=_named_model(words))
    apply_rules(
        (int_rule("training.micro_batch", "train.micro_batch_size", default=4 if pretrains else 1), *_RULES),
        settings,
        findings,
        tool="LitGPT",
    )
    name = "train.global_batch_size"
    total = settings.find(name) or _default(512 if pretrains else 16, name)
    findings.record_global_batch(as_int(total), total)
    _read_optimizer(settings, findings, pretrains=pretrains)
    lengths = "pretrain cuts its data to one length" if pretrains else "a batch is padded to its longest sample"
    findings.record("training.varying_lengths", not pretrains, f"LitGPT: {lengths}", written=False)
    if pretrains:
        findings.record("training.compile", True, "litgpt pretrain compiles its model", written=False)
    if recipe in LORA_RECIPES:
        _read_lora(program, settings)
    elif recipe.startswith(("adapter", "finetune_adapter")):
        read_adapter_method(program, settings, second=recipe.endswith("v2"))
    read_devices(program, settings, recipe=recipe)
    warn_of_unread(settings, findings)
    return findings.build()


def _default(value: object, name: str) -> Setting:
    return default_setting(value, f"LitGPT's default {name}")


def _split_words(arguments: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the words that stand for themselves, and the flags, each of which takes exactly one value."""
    words: list[str] = []
    flags: list[str] = []
    value_follows = False
    for word in arguments:
        is_flag = word.startswith("--") and not value_follows
        (flags if is_flag or value_follows else words).append(word)
        value_follows = is_flag and "=" not in word
    return words, flags


def _named_model(words: list[str]) -> str | None:
    """Return the checkpoint or model on the command line: the word after the command."""
    names = words[1:] if words and (words[0].startswith("finetune") or words[0] == "pretrain") else words
    return next((name for name in names[:1] if not name.endswith(CONFIG_SUFFIXES)), None)


def _recipe(program: Program, settings: LayeredSettings, words: list[str]) -> str:
    """Return the recipe (``finetune_lora``, ...) from the command or the script, otherwise from the file's keys."""
    script = PurePath(program.launch.script or "").stem
    if script == "litgpt" or program.launch.module in ("litgpt", "litgpt.__main__"):
        return words[0] if words else "finetune"
    if program.config_file is not None:
        return "lora" if settings.find("lora_r") is not None else "full"
    return script or (program.launch.module or "").rpartition(".")[2]


def _read_optimizer(settings: LayeredSettings, findings: FindingCollector, *, pretrains: bool) -> None:
    """Record the optimizer: quantized weights always get bitsandbytes' paged AdamW (``litgpt/utils.py``).

    Pretraining uses torch's fused AdamW.
    """
    quantized = settings.find("quantize")
    if quantized is not None and not pretrains:
        origin = f"{quantized.origin}: LitGPT's optimizer for it"
        findings.record("training.optimizer", "paged-adamw", origin, written=False)
    setting = settings.find("optimizer.class_path", "optimizer") or _default("AdamW", "optimizer")
    options = optimizer_options(settings, "optimizer.init_args.", "optimizer.")
    record_optimizer(findings, setting, options={**options, "fused": True} if pretrains else options)


def _read_lora(program: Program, settings: LayeredSettings) -> None:
    findings = program.findings
    record_int(findings, "lora.rank", settings.find("lora_r") or _default(8, "lora_r"))
    record_targets(program, settings)
    record_dropout(findings, settings.find("lora_dropout"))
    quantize = settings.find("quantize")
    quantization = _QUANTIZATION.get(str(quantize.value)) if quantize is not None else None
    if quantize is not None and quantization is not None:
        findings.record_from(quantize, "lora.quantization", quantization)
    elif quantize is not None:
        sentence = f"{quantize.origin}: {quantize.value!r} is not known here and is not counted."
        findings.mark_uncertain("lora.quantization", sentence, direction="less")


TOOL = Tool(
    name="LitGPT",
    programs=re.compile(r"(.*/)?litgpt|litgpt(\.\w+)*|(.*/)?litgpt/(finetune|pretrain)\w*(/\w+)?"),
    commands=(ToolCommand(name="litgpt", subcommands=_SUBCOMMANDS),),
    is_config=lambda table: (
        isinstance(table.get("train"), Mapping) and has_any(table, "checkpoint_dir", "model_name", "lora_r")
    ),
    read=read,
    keys=ToolKeys(
        settings={
            "training.micro_batch": ToolKey(name="train.micro_batch_size"),
            "training.sequence_length": ToolKey(name="train.max_seq_length"),
            "training.precision": ToolKey(name="precision", values={"bf16": "bf16-true", "bf16-mixed": "bf16-mixed"}),
            "lora.rank": ToolKey(name="lora_r"),
            "lora.quantization": ToolKey(name="quantize", values={"nf4-double": "bnb.nf4-dq", "nf4": "bnb.nf4"}),
        },
        derived={"training.gradient_accumulation": "train.global_batch_size"},
    ),
)
