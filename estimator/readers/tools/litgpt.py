"""LitGPT: the flags of ``litgpt finetune_lora CHECKPOINT_DIR --train.micro_batch_size 4`` and its YAML.

Names and meanings: ``litgpt/finetune``, ``litgpt/args.py`` of LitGPT 0.5.
"""

from pathlib import PurePath

from ..program.program import Program
from ..program.ranks import read_world_size, visible_gpus
from ..source.evidence import FindingCollector, JobReading
from ..source.settings import LayeredSettings, Setting, as_bool, as_int, as_word
from ..trainer.unread_settings import warn_of_unread
from .shared.job_keys import put_int, put_word
from .shared.known_models import folder_id
from .shared.merged_settings import CONFIG_ENDINGS, tool_settings

_PRECISION = {
    "bf16-true": "bf16",
    "16-true": "fp16",
    "bf16-mixed": "bf16-mixed",
    "16-mixed": "fp16-mixed",
    "32-true": "fp32",
    "32": "fp32",
}
_QUANTIZED = {
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
"""LitGPT's switches, the layers of a Llama they adapt, and their defaults."""
_OPTIMIZERS = {
    **dict.fromkeys(("adamw", "adam"), "adamw"),
    "sgd": "sgd",
    "pagedadamw": "paged-adamw",
    "pagedadamw8bit": "paged-adamw-8bit",
    "adamw8bit": "adamw-8bit",
}


def read(program: Program) -> JobReading:
    """The job of a LitGPT command."""
    findings, settings = program.findings, tool_settings(program, "config")
    recipe = _recipe(program, settings)
    findings.put("training.framework", "litgpt", "the program is LitGPT's")
    _model(program, settings)
    batch = settings.find("train.micro_batch_size")
    size = 4 if recipe == "pretrain" else 1
    put_int(findings, "training.micro_batch", batch or _default(size, "train.micro_batch_size"))
    put_int(findings, "training.sequence_length", settings.find("train.max_seq_length", "data.max_seq_length"))
    put_word(
        findings, "training.precision", settings.find("precision") or _default("bf16-mixed", "precision"), _PRECISION
    )
    total = settings.find("train.global_batch_size") or _default(
        512 if recipe == "pretrain" else 16, "train.global_batch_size"
    )
    findings.put_global_batch(as_int(total), total.origin, written=total.written)
    _optimizer(settings, findings, pretrains=recipe == "pretrain")
    if recipe == "pretrain":
        findings.put("training.compile", True, "litgpt pretrain compiles its model", written=False)
    if recipe in ("lora", "finetune", "finetune_lora"):
        _adapters(settings, findings)
    elif recipe.startswith(("adapter", "finetune_adapter")):
        findings.warn("LitGPT's adapter methods are not counted; the weights are counted as fully trained.")
        findings.add_uncertainty("less", "gradients", "optimizer")
    _ranks(program, settings, pretrains=recipe == "pretrain")
    warn_of_unread(settings, findings)
    return findings.build()


def _default(value: object, name: str) -> Setting:
    return Setting(value=value, origin=f"LitGPT's default {name}", written=False)


def _recipe(program: Program, settings: LayeredSettings) -> str:
    """``finetune_lora``, ``finetune_full``, ``pretrain``, ... by the command or the script; else by the file's keys."""
    words = [word for word in program.launch.arguments if not word.startswith("-")]
    script = PurePath(program.launch.script or "").stem
    if script == "litgpt" or program.launch.module in ("litgpt", "litgpt.__main__"):
        return words[0] if words else "finetune"
    if program.config_file is not None:
        return "lora" if settings.find("lora_r") is not None else "full"
    return script or (program.launch.module or "").rpartition(".")[2]


def _model(program: Program, settings: LayeredSettings) -> None:
    """A checkpoint folder ends in organisation and model, as the hub names them."""
    findings = program.findings
    setting = settings.find("checkpoint_dir", "model_name", "initial_checkpoint_dir", "repo_id")
    if setting is None:
        words = [w for w in program.launch.arguments if not w.startswith("-") and "=" not in w]
        after = words[1:2] if words and (words[0].startswith("finetune") or words[0] == "pretrain") else words[:1]
        if after and not after[0].endswith(CONFIG_ENDINGS):
            setting = Setting(value=after[0], origin=f"{after[0]} on the command line")
    if setting is None:
        return
    text = str(setting.value).rstrip("/")
    name = "/".join(PurePath(text).parts[-2:]) if "/" in text else text
    findings.put("model.id", folder_id(program.filesystem, text) or name, setting.origin)


def _optimizer(settings: LayeredSettings, findings: FindingCollector, *, pretrains: bool) -> None:
    """Quantized weights always come with bitsandbytes' paged AdamW; pretraining fuses torch's (``litgpt/utils.py``)."""
    quantized = settings.find("quantize")
    if quantized is not None and not pretrains:
        findings.put(
            "training.optimizer", "paged-adamw", f"{quantized.origin}: LitGPT's optimizer for it", written=False
        )
    setting = settings.find("optimizer.class_path", "optimizer") or _default("AdamW", "optimizer")
    known = _OPTIMIZERS.get(as_word(setting) or "")
    if known is None:
        sentence = f"{setting.origin}: optimizer {setting.value!r} is not known here and is counted as adamw."
        findings.mark_uncertain("training.optimizer", sentence)
    fused = pretrains or settings.is_true("optimizer.init_args.fused", "optimizer.fused")
    chosen = "adamw-fused" if fused and known in (None, "adamw") else known or "adamw"
    findings.put("training.optimizer", chosen, setting.origin, written=setting.written)


def _adapters(settings: LayeredSettings, findings: FindingCollector) -> None:
    put_int(findings, "lora.rank", settings.find("lora_r") or _default(8, "lora_r"))
    targets: list[str] = []
    origins: list[str] = []
    for name, (layers, on) in _TARGETS.items():
        setting = settings.find(name)
        if as_bool(setting) if setting is not None else on:
            targets += layers
        if setting is not None:
            origins.append(setting.origin)
    origin = "; ".join(origins) or "LitGPT's default: queries and values"
    findings.put("lora.targets", targets, origin, written=bool(origins))
    _quantization(settings.find("quantize"), findings)


def _quantization(setting: Setting | None, findings: FindingCollector) -> None:
    if setting is None:
        return
    kind = _QUANTIZED.get(str(setting.value))
    if kind is None:
        sentence = f"{setting.origin}: {setting.value!r} is not known here and is not counted."
        findings.mark_uncertain("lora.quantization", sentence, direction="less")
    else:
        findings.put("lora.quantization", kind, setting.origin)


def _ranks(program: Program, settings: LayeredSettings, *, pretrains: bool) -> None:
    """Several devices are FSDP; fine-tuning then checkpoints each block (``litgpt/finetune``: ``FSDPStrategy``)."""
    findings = program.findings
    world = read_world_size(program.launcher, LayeredSettings(), program.environ)
    devices = settings.find("devices") or (_default("auto", "devices") if pretrains else None)
    ranks = world.ranks if (as_int(world.ranks) or 1) > 1 else devices
    if devices is not None and as_word(devices) in ("auto", "-1"):
        ranks = ranks if as_int(ranks) else visible_gpus(program.environ)
        findings.require("parallel.data_shard")
    if ranks is None or (as_int(ranks) or 1) == 1:
        if as_int(ranks) == 1:
            findings.put("parallel.data_shard", 1, ranks.origin if ranks is not None else "one device", written=False)
        return
    nodes = as_int(settings.find("num_nodes")) or 1
    findings.put("parallel.strategy", "fsdp1", f"{ranks.origin}: LitGPT shards over several devices", written=False)
    findings.put("parallel.data_shard", (as_int(ranks) or 1) * nodes, ranks.origin, written=ranks.written)
    if not pretrains:
        origin = f"{ranks.origin}: LitGPT checkpoints every block then"
        findings.put("training.activation_checkpointing", "full", origin, written=False)
