"""LitGPT: the flags of ``litgpt finetune_lora CHECKPOINT_DIR --train.micro_batch_size 4`` and its YAML.

Names and meanings: ``litgpt/finetune``, ``litgpt/pretrain.py``, ``litgpt/args.py`` of LitGPT 0.5.
"""

from collections.abc import Mapping
from pathlib import PurePath

from ....common.library_versions import older
from ....common.records import replace
from ...arguments.table import library, record_arguments
from ...program.program import Program
from ...program.world_size import checked_ranks, visible_gpus
from ...source.evidence import MODEL_STATES, FindingCollector, JobReading
from ...source.flags import abbreviations
from ...source.settings import LayeredSettings, Setting, as_bool, as_int, as_word, is_open, parse_digits, refusal
from ...trainer.unread_settings import warn_of_unread
from ..shared.own_loop import record_optimizer
from ..shared.settings_files import CONFIG_SUFFIXES, tool_layers
from ..shared.tool import has_any, known_tool
from .model import read_litgpt_model

LORA_RECIPES = ("lora", "finetune", "finetune_lora")


def read_devices(program: Program, settings: LayeredSettings, *, recipe: str) -> None:
    """Record the ranks, from ``devices`` and ``num_nodes``: several mean FSDP, and for fine-tuning checkpointed blocks.

    Visible GPUs count for ``auto`` only. Read from ``finetune/*.py``, ``pretrain.py`` and ``utils.py``
    (``parse_devices``) of LitGPT 0.5.4 to 0.5.13.
    """
    findings, pretrains = program.findings, recipe == "pretrain"
    nodes = settings.find("num_nodes") or Setting.default(1, "LitGPT's default num_nodes")
    devices = settings.find("devices") or Setting.default("auto" if pretrains else 1, "LitGPT's default devices")
    if as_word(devices) in ("auto", "-1"):
        devices = _all_devices(program, as_int(nodes) or 1) or devices
    per_node, machines = as_int(devices), as_int(nodes)
    for setting, what in ((devices, "devices"), (nodes, "machines")):
        if as_int(setting) is None and not is_open(setting):
            findings.refuse_ranks(refusal(setting, f"number of {what}"))
    if per_node is None or machines is None:
        findings.require("parallel.data_shard")
        return
    origin = f"{devices.origin} times {nodes.origin}" if machines > 1 else devices.origin
    ranks = Setting(value=per_node * machines, origin=origin, written=devices.written)
    if checked_ranks(ranks, findings).ranks is None:
        findings.require("parallel.data_shard")
        return
    if ranks.value == 1:
        findings.infer("parallel.data_shard", 1, origin)
        return
    composable = recipe in LORA_RECIPES and not older(program.versions.get("litgpt"), 0, 5, 11)
    strategy = "fsdp2" if composable else "fsdp1"
    findings.infer("parallel.strategy", strategy, f"{origin}: LitGPT shards over several devices")
    _read_reduction(program, composable=composable)
    if pretrains:
        findings.infer("parallel.sharding", "hybrid", "litgpt pretrain shards within a machine")
        findings.record_from(ranks, "parallel.data_shard", per_node)
        findings.record_from(ranks, "parallel.data_replicate", machines)
    else:
        findings.record_from(ranks, "parallel.data_shard", ranks.value)
        origin = f"{origin}: LitGPT then checkpoints every block"
        findings.infer("training.activation_checkpointing", "full", origin)


def _read_reduction(program: Program, *, composable: bool) -> None:
    """Record the dtype of reduced gradients: FSDP1's is that of computation, FSDP2's that of the weights.

    Source: Lightning's ``plugins/precision/fsdp.py``; its ``ModelParallelStrategy`` gives FSDP2 no policy.
    """
    findings = program.findings
    precision = findings.get("training.precision")
    half, _, mixed = str(precision.value if precision is not None else "").partition("-")
    if composable and mixed:
        findings.warn("LitGPT gathers fp32 weights for LoRA on several devices; 16-bit weights are counted.")
        findings.add_uncertainty("more", "weights")
    if half in ("bf16", "fp16") and not (composable and mixed):
        findings.infer("parallel.reduce_dtype", half, "Lightning reduces FSDP's gradients in 16 bits")


def _all_devices(program: Program, nodes: int) -> Setting | None:
    """Return the GPUs of one machine: those that its ranks hold, else the visible ones; None if they are unknown."""
    if program.self_started_ranks is not None:
        origin = f"{program.self_started_ranks} processes that it started hold GPU memory"
        return Setting.default(program.self_started_ranks, origin)
    total = parse_digits(program.environ.get("WORLD_SIZE", ""))  # Lightning sets it for the ranks that it starts
    if total is not None and total % nodes == 0:
        return Setting.default(total // nodes, "WORLD_SIZE in the environment")
    return visible_gpus(program.environ)


def _record_targets(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record the layers that the switches adapt, by the names of all families; a model has some of them."""
    words, defaults = library("litgpt").words["targets"], library("litgpt").defaults("targets")
    given = {name: setting for name in words if (setting := settings.find(name)) is not None}
    on = [names.split() for name, names in words.items() if as_bool(given.get(name, defaults[name]))]
    origin = "; ".join(setting.origin for setting in given.values()) or "LitGPT's default: queries and values"
    findings.record("lora.targets", [name for names in on for name in names], origin, written=bool(given))


def read(program: Program) -> JobReading:
    """Return the job of a LitGPT command."""
    words, flags = _split_words(program.launch.arguments)
    program = replace(program, launch=replace(program.launch, arguments=(*words, *flags)))
    findings, layers = program.findings, tool_layers(program, "config")
    settings = LayeredSettings(*layers)
    for _, sentence in abbreviations(layers[0], library("litgpt").aliases["options"]):
        findings.doubt(sentence, "either", *MODEL_STATES, "activations")
    recipe = _recipe(program, settings, words)
    pretrains = recipe == "pretrain"
    findings.record("training.framework", "litgpt", "the program is LitGPT")
    read_litgpt_model(program, settings, positional=_named_model(words))
    record_arguments(library("litgpt"), "pretrain" if pretrains else "finetune", settings, findings)
    record_arguments(library("litgpt"), "step", settings, findings)
    name = "train.global_batch_size"
    total = settings.find(name) or _default(512 if pretrains else 16, name)
    findings.record_global_batch(total)
    _read_optimizer(program, settings, pretrains=pretrains)
    lengths = "pretrain cuts its data to a fixed length" if pretrains else "a batch is padded to its longest sample"
    findings.infer("training.varying_lengths", not pretrains, f"LitGPT: {lengths}")
    if pretrains:
        findings.infer("training.compile", True, "litgpt pretrain compiles its model")
    if recipe in LORA_RECIPES:
        record_arguments(library("litgpt"), "lora", settings, findings)
        _record_targets(settings, findings)
        findings.record_dropout(settings.find("lora_dropout"))
    elif recipe.startswith(("adapter", "finetune_adapter")):
        sentence = "LitGPT's adapter methods are not read; all parameters are counted as trained."
        findings.doubt(sentence, "less", "gradients", "optimizer", "activations", unless="training.trainable")
    read_devices(program, settings, recipe=recipe)
    warn_of_unread(settings, findings)
    return findings.build()


def _default(value: object, name: str) -> Setting:
    return Setting.default(value, f"LitGPT's default {name}")


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


def _read_optimizer(program: Program, settings: LayeredSettings, *, pretrains: bool) -> None:
    """Record the optimizer: quantized weights always get bitsandbytes' paged AdamW (``litgpt/utils.py``).

    Pretraining uses torch's fused AdamW.
    """
    quantized = settings.find("quantize")
    if quantized is not None and not pretrains:
        origin = f"{quantized.origin}: LitGPT's optimizer for it"
        program.findings.infer("training.optimizer", "paged-adamw", origin)
    setting = settings.find("optimizer.class_path", "optimizer") or _default("AdamW", "optimizer")
    fused = {"fused": True} if pretrains else {}
    record_optimizer(program, settings, setting, "optimizer.init_args.", "optimizer.", **fused)


TOOL = known_tool(
    "litgpt",
    read,
    is_own=lambda table: (
        isinstance(table.get("train"), Mapping) and has_any(table, "checkpoint_dir", "model_name", "lora_r")
    ),
)
