"""LitGPT: the flags of ``litgpt finetune_lora CHECKPOINT_DIR --train.micro_batch_size 4`` and its YAML.

Names and meanings: ``litgpt/finetune``, ``litgpt/args.py`` of LitGPT 0.5.
"""

import re
from collections.abc import Mapping
from pathlib import PurePath

from ..program import Program, ToolCommand, read_world_size, visible_gpus
from ..source import FindingCollector, JobReading, LayeredSettings, Setting, as_bool, as_int, as_word, default_setting
from ..trainer import warn_of_unread
from .shared import (
    CONFIG_SUFFIXES,
    Tool,
    ToolKey,
    ToolKeys,
    apply_rules,
    folder_id,
    has_any,
    int_rule,
    optimizer_options,
    record_int,
    record_optimizer,
    tool_settings,
    word_rule,
)

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
_TARGETS = {
    "lora_query": (["q_proj"], True),
    "lora_key": (["k_proj"], False),
    "lora_value": (["v_proj"], True),
    "lora_projection": (["o_proj"], False),
    "lora_mlp": (["gate_proj", "up_proj", "down_proj"], False),
    "lora_head": (["lm_head"], False),
}
"""LitGPT's switches, the layers of a Llama that they adapt, and their defaults."""
_RULES = (
    int_rule("training.sequence_length", "train.max_seq_length", "data.max_seq_length"),
    word_rule("training.precision", _PRECISION, "precision", default="bf16-mixed"),
)
_SUBCOMMANDS = frozenset(
    {"finetune", "finetune_lora", "finetune_full", "finetune_adapter", "finetune_adapter_v2", "pretrain"}
)


def read(program: Program) -> JobReading:
    """Return the job of a LitGPT command."""
    findings, settings = program.findings, tool_settings(program, "config")
    recipe = _recipe(program, settings)
    pretrains = recipe == "pretrain"
    findings.record("training.framework", "litgpt", "the program is LitGPT")
    _read_model(program, settings)
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
    if pretrains:
        findings.record("training.compile", True, "litgpt pretrain compiles its model", written=False)
    if recipe in ("lora", "finetune", "finetune_lora"):
        _read_adapters(settings, findings)
    elif recipe.startswith(("adapter", "finetune_adapter")):
        findings.warn("LitGPT's adapter methods are not counted; the weights are counted as fully trained.")
        findings.add_uncertainty("less", "gradients", "optimizer")
    _read_ranks(program, settings, pretrains=pretrains)
    warn_of_unread(settings, findings)
    return findings.build()


def _default(value: object, name: str) -> Setting:
    return default_setting(value, f"LitGPT's default {name}")


def _recipe(program: Program, settings: LayeredSettings) -> str:
    """Return the recipe (``finetune_lora``, ...) from the command or the script, otherwise from the file's keys."""
    words = [word for word in program.launch.arguments if not word.startswith("-")]
    script = PurePath(program.launch.script or "").stem
    if script == "litgpt" or program.launch.module in ("litgpt", "litgpt.__main__"):
        return words[0] if words else "finetune"
    if program.config_file is not None:
        return "lora" if settings.find("lora_r") is not None else "full"
    return script or (program.launch.module or "").rpartition(".")[2]


def _read_model(program: Program, settings: LayeredSettings) -> None:
    """Record the model's id: a checkpoint folder ends in organisation and model, as on the Hugging Face hub."""
    setting = settings.find("checkpoint_dir", "model_name", "initial_checkpoint_dir", "repo_id")
    if setting is None:
        words = [word for word in program.launch.arguments if not word.startswith("-") and "=" not in word]
        has_command = bool(words) and (words[0].startswith("finetune") or words[0] == "pretrain")
        named = words[1:2] if has_command else words[:1]
        if named and not named[0].endswith(CONFIG_SUFFIXES):
            setting = Setting(value=named[0], origin=f"{named[0]} on the command line")
    if setting is None:
        return
    text = str(setting.value).rstrip("/")
    name = "/".join(PurePath(text).parts[-2:]) if "/" in text else text
    program.findings.record_from(setting, "model.id", folder_id(program.filesystem, text) or name)


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


def _read_adapters(settings: LayeredSettings, findings: FindingCollector) -> None:
    record_int(findings, "lora.rank", settings.find("lora_r") or _default(8, "lora_r"))
    targets: list[str] = []
    origins: list[str] = []
    for name, (layers, on_by_default) in _TARGETS.items():
        setting = settings.find(name)
        if as_bool(setting) if setting is not None else on_by_default:
            targets += layers
        if setting is not None:
            origins.append(setting.origin)
    origin = "; ".join(origins) or "LitGPT's default: queries and values"
    findings.record("lora.targets", targets, origin, written=bool(origins))
    quantize = settings.find("quantize")
    quantization = _QUANTIZATION.get(str(quantize.value)) if quantize is not None else None
    if quantize is not None and quantization is not None:
        findings.record_from(quantize, "lora.quantization", quantization)
    elif quantize is not None:
        sentence = f"{quantize.origin}: {quantize.value!r} is not known here and is not counted."
        findings.mark_uncertain("lora.quantization", sentence, direction="less")


def _read_ranks(program: Program, settings: LayeredSettings, *, pretrains: bool) -> None:
    """Record the ranks: several devices mean FSDP, and for fine-tuning checkpointed blocks (``FSDPStrategy``)."""
    findings = program.findings
    world = read_world_size(program.launcher, LayeredSettings(), program.environ)
    devices = settings.find("devices") or (_default("auto", "devices") if pretrains else None)
    ranks = world.ranks if (as_int(world.ranks) or 1) > 1 else devices
    if devices is not None and as_word(devices) in ("auto", "-1"):
        ranks = ranks if as_int(ranks) else visible_gpus(program.environ)
        findings.require("parallel.data_shard")
    number = as_int(ranks)
    if ranks is None or number in (None, 1):
        if ranks is not None and number == 1:
            findings.record("parallel.data_shard", 1, ranks.origin, written=False)
        return
    nodes = as_int(settings.find("num_nodes")) or 1
    findings.record("parallel.strategy", "fsdp1", f"{ranks.origin}: LitGPT shards over several devices", written=False)
    findings.record_from(ranks, "parallel.data_shard", (number or 1) * nodes)
    if not pretrains:
        origin = f"{ranks.origin}: LitGPT then checkpoints every block"
        findings.record("training.activation_checkpointing", "full", origin, written=False)


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
