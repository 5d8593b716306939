"""ms-swift: the flags of ``swift sft --model X ...``, its YAML, and the ``args.json`` it writes.

Names and meanings: ``swift/arguments`` of ms-swift 4. It trains with transformers' Trainer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..arguments.table import Library, doubt_arguments, library, translate
from ..program.accelerate import accelerate_layers
from ..program.program import Program
from ..program.world_size import processes_per_node, read_world_size
from ..source.evidence import MODEL_STATES, FindingCollector, JobReading
from ..source.settings import (
    LayeredSettings,
    Setting,
    SettingsLayer,
    as_bool,
    as_int,
    as_word,
    default_layer,
    words_of,
)
from ..source.versions import older_versions, transformers_defaults
from ..trainer.trainer_program import read_trainer
from ..trl.trainer import sum_of_lengths
from .shared.own_loop import bits_of_weights, config_of_model
from .shared.settings_files import tool_layers, uses_deepspeed
from .shared.tool import has_any, known_tool
from .shared.trained_names import doubt_encoders, frozen_parts, whole_model

_ALL_LINEAR = "all-linear"


def _targets(findings: FindingCollector, settings: LayeredSettings, *, has_encoders: bool) -> dict[str, Setting]:
    regex, targets = settings.find("target_regex"), settings.find("target_modules")
    if regex is not None and regex.value:
        return {"lora_target_modules": regex}
    names = words_of(targets)
    if targets is not None and _ALL_LINEAR not in names:
        return {}
    if further := [name for name in names if name != _ALL_LINEAR]:
        named = targets or Setting.default(names, "ms-swift's default")
        findings.warn(f"{named.origin}: adapters of {', '.join(further)} are not counted besides {_ALL_LINEAR}.")
        findings.add_uncertainty("more", *MODEL_STATES, unless="lora.targets")
    if has_encoders:
        doubt_encoders(findings, settings, "ms-swift", switches=_PARTS)
    return {"lora_target_modules": targets.with_value(_ALL_LINEAR)} if targets is not None else {}


_FREEZING = (
    *("freeze_parameters_ratio", "freeze_parameters", "freeze_parameters_regex"),
    *("trainable_parameters", "trainable_parameters_regex"),
)
_PARTS = ("freeze_vit", "freeze_aligner", "freeze_llm")


def _read_frozen(findings: FindingCollector, settings: LayeredSettings, *, has_encoders: bool) -> None:
    """Record that a vision tower and its projector do not train, which is the default; doubt what else is frozen."""
    if (given := settings.find(*_FREEZING)) is not None:
        sentence = f"{given.origin}: which parameters it freezes is not read; all are counted."
        findings.doubt(sentence, "less", "gradients", "optimizer", unless="training.trainable")
    elif has_encoders and (off := frozen_parts(settings, switches=_PARTS)):
        switches = [found.origin for name in _PARTS if (found := settings.find(name)) is not None]
        origin = "; ".join(switches) or "ms-swift freezes vision tower and projector by default"
        findings.record("training.trainable", [f"!{glob}" for glob in off], origin, written=bool(switches))


_DEFAULT_BATCH = 16
"""Examples per optimizer step over all ranks."""
_OF_PROMPTS = ("gkd", "grpo", "ppo")
"""Methods for which ``max_length`` is that of the prompt, and ``max_completion_length`` comes on top."""
_WRITTEN = ("args.json", "*/args.json")


def read(program: Program) -> JobReading:
    """Return the job of an ms-swift command line or configuration."""
    program.findings.older_versions = older_versions(program.versions, uses_trl=False)
    findings, layers = program.findings, tool_layers(program, "config", written=_WRITTEN)
    settings = LayeredSettings(*layers)
    if (old := settings.find("sft_type", "model_id_or_path")) is not None:
        sentence = f"{old.origin} is of ms-swift 2, whose defaults are not read; a rehearsal follows them."
        findings.doubt(sentence, "either", *MODEL_STATES, "activations", "logits")
    tuner, table = settings.find("tuner_type", "train_type", "sft_type"), library("swift")
    lora = tuner is None or as_word(tuner) in ("lora", "longlora", "adalora")
    for group in ("all", *(["lora"] if lora else [])):
        doubt_arguments(table, group, settings, findings)
    config = config_of_model(program, settings.find("model", "model_id_or_path"))
    has_encoders = "vision_config" in (config or {})
    own = _targets(findings, settings, has_encoders=has_encoders) if lora else {}
    if (length := settings.find("packing_length")) is not None and settings.is_true("packing"):
        own["max_length"] = length
    if _method(settings) in _OF_PROMPTS:
        completion = settings.find("max_completion_length") or Setting.default(512, "ms-swift's default completion")
        own |= {"max_length": both} if (both := sum_of_lengths(settings.find("max_length"), completion)) else {}
    _doubt_logits(settings, findings)
    if not lora:
        _read_frozen(findings, settings, has_encoders=has_encoders)
    default_tuner = Setting.default("lora", "ms-swift's default tuner_type lora")
    if settings.find("gradient_accumulation_steps") is None:
        origin = f"ms-swift's default of {_DEFAULT_BATCH} a step"
        findings.record_global_batch(Setting.default(_DEFAULT_BATCH, origin), rounds_up=True)
    quantization = _quantization(settings, findings)
    launched = [_processes(program), *accelerate_layers(program, {})]
    defaults = {
        **transformers_defaults(program.versions),
        **table.defaults("all", *(["lora"] if lora else [])),
        "use_peft": (tuner or default_tuner).with_value(lora),
        **(whole_model("ms-swift") if has_encoders else {}),
        **_precision(settings, config, lora=lora),
        **_device_map(program, launched),
    }
    shipped = [_shipped(settings, name) for name in ("deepspeed", "fsdp")]
    translated = [_translate(layer, table) for layer in layers]
    return read_trainer(
        program,
        [own, *(each for each, _ in translated), quantization, defaults],
        [*shipped, *(each for _, each in translated), *launched],
        method=_method(settings),
        own_loss=False,
    )


def _translate(layer: SettingsLayer, table: Library) -> tuple[dict[str, Setting], dict[str, Setting]]:
    trainer, accelerate = translate(layer, table)
    for name in ("deepspeed", "fsdp"):
        if name in trainer and _name_of_shipped(name, trainer[name]) in table.default:
            del trainer[name]
    return trainer, accelerate


def _quantization(settings: LayeredSettings, findings: FindingCollector) -> dict[str, Setting]:
    """Return the quantization of loaded weights, for which ``quant_method`` names the library (``quant_args.py``)."""
    method, bits = settings.find("quant_method"), settings.find("quant_bits")
    if method is None and bits is not None:
        findings.warn(f"{bits.origin} has no effect without quant_method.")
    double = settings.find("bnb_4bit_use_double_quant")
    return {} if method is None else bits_of_weights(findings, bits or method, method, double, "ms-swift")


def _processes(program: Program) -> dict[str, Setting]:
    """Return the number of processes where ms-swift decides it: one, unless NPROC_PER_NODE is set."""
    if program.config_file is not None or not {"accelerate", "torchrun"}.isdisjoint(program.launcher.launchers):
        return {}
    alone = {"num_processes": Setting.default(1, "ms-swift starts one process")}
    return processes_per_node(program.environ) or alone


def _device_map(program: Program, launched: Sequence[SettingsLayer]) -> dict[str, Setting]:
    """Return how one process spreads the layers over the GPUs that it sees (``get_default_device_map``)."""
    environ = program.environ
    if program.config_file is not None or "RANK" in environ or environ.get("SWIFT_SINGLE_DEVICE_MODE") == "1":
        return {}
    world = read_world_size(program.launcher, LayeredSettings(*launched), environ)
    alone = as_int(world.ranks) == 1 and world.one_per_gpu is None
    return {"device_map": Setting.default("auto", "ms-swift's device_map in one process")} if alone else {}


def _doubt_logits(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Warn that logits of prompts are left out by default (``get_use_logits_to_keep`` of 4.6 and its callers)."""
    kept = settings.find("use_logits_to_keep")
    if _method(settings) not in (None, "dpo", "kto", "gkd") or (kept is not None and as_bool(kept) is False):
        return
    findings.warn("ms-swift computes logits from the batch's first label on; logits of all tokens are counted.")
    findings.add_uncertainty("less", "logits", unless="training.loss_length")


def _precision(settings: LayeredSettings, config: Mapping[str, Any] | None, *, lora: bool) -> dict[str, Setting]:
    """Return the dtypes: weights in ``torch_dtype``, else as stored, else bf16; computation in bf16, or else fp16.

    Fully trained weights in fp16 are cast to fp32 (``swift/arguments``: ``_init_mixed_precision``), those in bf16 not.
    """
    from ...model.checkpoint import stored_dtype  # only where a model is read

    stored = stored_dtype(config or {})
    usual = Setting.default(stored or "bfloat16", "the model's config" if stored else "ms-swift's usual torch_dtype")
    dtype = settings.find("torch_dtype") or usual
    if as_word(dtype) in ("bfloat16", "bf16"):
        return default_layer({"bf16": True, "dtype": "bfloat16"}, dtype.origin)
    loaded = "float16" if lora and as_word(dtype) in ("float16", "fp16") else "float32"
    return default_layer({"fp16": True, "dtype": loaded}, dtype.origin)


def _shipped(settings: LayeredSettings, name: str) -> dict[str, Setting]:
    """Return a shipped configuration (``--deepspeed zero2``); the trainer reads other values, files and JSON."""
    named = settings.find(name)
    if named is None:
        return {}
    values = library("swift").default.get(_name_of_shipped(name, named), {})
    layer = {each: named.with_value(value) for each, value in values.items()}
    if name == "deepspeed" and values:
        half = "fp16" if as_word(settings.find("torch_dtype")) in ("float16", "fp16") else "bf16"
        layer["mixed_precision"] = Setting.default(half, f"{named.origin}: follows the trainer")
    return layer if name == "fsdp" else uses_deepspeed(settings) | layer


def _name_of_shipped(name: str, setting: Setting) -> str:
    return f"{name}_{str(setting.value).removeprefix('default-')}"  # so ms-swift 2 calls them


def _method(settings: LayeredSettings) -> str | None:
    kind = settings.find("rlhf_type")
    method = as_word(kind) if kind is not None and as_bool(kind) is None else None
    return {"rm": "reward", "simpo": "cpo"}.get(method or "", method)


TOOL = known_tool(
    "swift",
    read,
    is_own=lambda table: (
        "model" in table
        and not isinstance(table["model"], Mapping)
        and has_any(table, "tuner_type", "train_type", "attn_impl", "target_modules", "swift_version")
    ),
)
