"""LLaMA-Factory: its YAML and the overrides of ``llamafactory-cli train x.yaml cutoff_len=4096``, versions 0 and 1."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from ...common.limits import decode_json
from ...common.untrusted_files import check_nesting
from ..arguments.table import doubt_arguments, library, translate
from ..program.program import Program, ToolCommand, accelerate_layers, processes_per_node, read_world_size
from ..source.evidence import (
    FindingCollector,
    JobReading,
    LayeredSettings,
    Setting,
    SettingsLayer,
    as_bool,
    as_int,
    as_word,
    default_setting,
    words_of,
)
from ..source.versions import transformers_defaults
from ..trainer.trainer_program import read_trainer
from .shared import (
    ConfigTable,
    Tool,
    bits_of_weights,
    config_of_model,
    frozen_parts,
    has_any,
    tool_layers,
    uses_deepspeed,
)

# The parameters that LLaMA-Factory leaves to train where it freezes others, as patterns of names.
#
# Read from ``model/adapter.py`` and ``model/model_utils/visual.py`` of LLaMA-Factory in August 2026, and from version
# 1's ``plugins/model_plugins/peft.py``. It compares parts of names; a pattern with ``*`` on both sides does the same.


_LAYER_FIELDS = ("num_hidden_layers", "num_layers", "n_layer")
_PARTS = ("freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model")


def record_freezing(program: Program, settings: LayeredSettings, model: Setting | None) -> None:
    """Record the parameters that train under ``freeze``: some layers, by default the last two, and further modules."""
    findings = program.findings
    given = settings.find("freeze_trainable_layers")
    config = config_of_model(program, model)
    layers = _number_of_layers(config)
    if layers is None:
        where = given.origin if given is not None else "the method freeze"
        findings.warn(f"{where}: the trained layers are not known without the model's config; all layers are counted.")
        findings.add_uncertainty("less", "gradients", "optimizer")
        return
    number = _signed(given)
    wanted = 2 if number is None else number
    if settings.is_true("use_llama_pro") and wanted > 0 and layers % wanted == 0:
        stride = layers // wanted
        trained = range(stride - 1, layers, stride)
    else:
        trained = range(max(0, layers - wanted), layers) if wanted > 0 else range(min(-wanted, layers))
    modules = words_of(settings.find("freeze_trainable_modules")) or ["all"]
    parts = [f".{layer}.{'' if module == 'all' else module}" for module in modules for layer in trained]
    parts += words_of(settings.find("freeze_extra_modules"))
    patterns = [f"*{part}*" for part in parts] or ["!*"]
    origins = [found.origin for name in settings.names("freeze_") if (found := settings.find(name)) is not None]
    origin = "; ".join(origins) or "LLaMA-Factory trains the last two layers by default"
    findings.record("training.trainable", [*patterns, *_frozen_parts(settings, config)], origin, written=bool(origins))
    findings.warn(
        "LLaMA-Factory keeps frozen weights in 16 bits and trained weights in fp32; both are counted in one dtype."
    )
    findings.add_uncertainty("less", "weights")


def record_frozen_parts(program: Program, settings: LayeredSettings, model: Setting | None) -> None:
    """Record the parts of a model with a vision tower that do not train: by default the tower and its projector."""
    frozen = _frozen_parts(settings, config_of_model(program, model))
    if frozen:
        origins = [found.origin for name in _PARTS if (found := settings.find(name)) is not None]
        origin = "; ".join(origins) or "LLaMA-Factory freezes vision tower and projector by default"
        program.findings.record("training.trainable", frozen, origin, written=bool(origins))


def _frozen_parts(settings: LayeredSettings, config: Mapping[str, Any] | None) -> list[str]:
    return [f"!{glob}" for glob in frozen_parts(settings, config, switches=_PARTS)]


def _number_of_layers(config: Mapping[str, Any] | None) -> int | None:
    text = (config or {}).get("text_config")
    fields = text if isinstance(text, Mapping) else config or {}
    return next((fields[name] for name in _LAYER_FIELDS if type(fields.get(name)) is int), None)


def _signed(setting: Setting | None) -> int | None:
    """Return a whole number that may be negative."""
    text = str(setting.value) if setting is not None else ""
    positive = as_int(setting.with_value(text.removeprefix("-"))) if setting is not None else None
    return positive if positive is None or not text.startswith("-") else -positive


# Reads LLaMA-Factory's version 1 (``USE_V1=1``), which has a training loop of its own and plugins for the rest.
#
# Names, meanings and defaults: ``src/llamafactory/v1`` of LLaMA-Factory in August 2026 (``config``, ``core``,
# ``plugins``, ``trainers``).


_PLUGINS = ("peft_config", "dist_config", "quant_config", "optim_config", "kernel_config", "init_config")
_OWN_NAMES = ("micro_batch_size", "model_class", "batching_strategy", "cp_mode", "mp_shard_size", "dp_size")
_FSDP = ("fsdp2", "fsdpturbo")
_PASSED_ON = ("output_dir", "save_total_limit", "trust_remote_code")


def is_version1(table: ConfigTable) -> bool:
    """Return True for a configuration of version 1."""
    if "model_name_or_path" in table or not isinstance(table.get("model", ""), str):
        return False
    plugins = [table[name] for name in _PLUGINS if name in table]
    named = any(plugin is None or (isinstance(plugin, Mapping) and "name" in plugin) for plugin in plugins)
    return (named and "model" in table) or (has_any(table, *_OWN_NAMES) and "cutoff_len" in table)


def has_version1_names(settings: LayeredSettings) -> bool:
    """Return True if the settings of a launch line and its file are those of version 1."""
    plugins = [settings.names(name) for name in _PLUGINS]
    own = settings.find(*_OWN_NAMES) is not None
    return settings.find("model_name_or_path") is None and settings.find("model") is not None and (any(plugins) or own)


def read_version1(program: Program, layers: tuple[SettingsLayer, ...]) -> JobReading:
    """Return the job of a configuration of version 1."""
    findings, table = program.findings, library("llamafactory_v1")
    settings = LayeredSettings(*(_with_plugins(layer) for layer in layers))
    names = settings.names("")
    layer = {name: setting for name in names if (setting := settings.find(name)) is not None}
    find, trained_by_plugin = layer.get, any(name.startswith("peft_config.") for name in layer)
    peft, backend = as_word(find("peft_config.name")), as_word(find("dist_config.name"))
    sharded = _is_distributed(program) and backend in _FSDP
    if (total := find("global_batch_size")) is not None:
        findings.record_global_batch(as_int(total), total)
    understood = {name: setting for name, setting in layer.items() if "." in name or name in _PASSED_ON}
    own, accelerate = translate(understood | {name: layer[name] for name in table.argument if name in layer}, table)
    if "optim_config.name" in layer:
        own["optim"] = layer["optim_config.name"]
    if backend == "deepspeed" and "dist_config.config_file" in layer:
        own["deepspeed"] = layer["dist_config.config_file"]
    if peft == "freeze":
        inner = {name.removeprefix("peft_config."): setting for name, setting in layer.items()}
        record_freezing(program, LayeredSettings(inner), own.get("model_name_or_path"))
    if sharded:
        origin = "LLaMA-Factory reduces FSDP2's gradients in fp32"
        findings.record("parallel.reduce_dtype", "fp32", origin, written=False)
    shard, context = find("mp_shard_size"), as_int(find("cp_size")) or 1
    if shard is not None and (size := as_int(shard)):  # the context's ranks share the weights too
        accelerate["parallelism_config_dp_shard_size"] = shard.with_value(max(1, size // context))
    for group in ("all", "turbo"):
        doubt_arguments(table, group, settings, findings)
    _warn_of_version1(program, layer, peft=peft, sharded=sharded)
    defaults = table.defaults("all", *(["lora"] if peft == "lora" else []))
    if not trained_by_plugin:
        defaults["use_peft"] = default_setting(False, "LLaMA-Factory trains all weights without peft_config")
    in_half = sharded or backend == "deepspeed"
    defaults |= _weights_version1(find("bf16"), peft=trained_by_plugin, computes_in_half=in_half)
    return read_trainer(
        program,
        [own, _quantization_version1(layer), defaults],
        [accelerate, processes_per_node(program.environ)],
        method=None,
    )


def _with_plugins(layer: SettingsLayer) -> dict[str, Setting]:
    """Return a layer with the options of plugins by dotted names, those in JSON on the command line too."""
    found = dict(layer)
    for name in _PLUGINS:
        text = layer.get(name)
        if text is None or not str(text.value).startswith("{"):
            continue
        try:
            table = decode_json(str(text.value), dict[str, Any])
            check_nesting(table)
        except ValueError:
            continue
        found |= {f"{name}.{option}": text.with_value(value) for option, value in table.items()}
    return found


def _is_distributed(program: Program) -> bool:
    """Return True unless the program is known to run without torchrun: FSDP2 and its bf16 have no effect then."""
    if program.config_file is not None or "RANK" in program.environ or "FORCE_TORCHRUN" in program.environ:
        return True
    world = read_world_size(
        program.launcher,
        LayeredSettings(processes_per_node(program.environ), {"use_fsdp": default_setting(True, "")}),
        program.environ,
    )
    return as_int(world.ranks) != 1


def _weights_version1(bf16: Setting | None, *, peft: bool, computes_in_half: bool) -> dict[str, Setting]:
    """Return the dtypes: weights in fp32 where all are trained, else as stored; bf16 only where a backend applies it.

    Without FSDP2 or DeepSpeed nothing casts: ``bf16`` goes to the backend and to nowhere else.
    """
    stored = default_setting("auto", "LLaMA-Factory loads weights as stored")
    whole = default_setting("float32", "LLaMA-Factory trains all weights in fp32")
    found = {"dtype": stored if peft else whole}
    bf16 = bf16 or default_setting(True, "LLaMA-Factory's default bf16")
    return {**found, "bf16": bf16} if computes_in_half else found


def _quantization_version1(layer: SettingsLayer) -> dict[str, Setting]:
    """Return bitsandbytes' quantization: in 4 bits, with quantized scales, unless set otherwise."""
    name, bits = layer.get("quant_config.name"), layer.get("quant_config.quantization_bit")
    if name is None or (name.value == "auto" and bits is None):
        return {}
    bits = bits or default_setting(4, "LLaMA-Factory's default quantization_bit")
    return bits_of_weights(bits, layer.get("quant_config.double_quantization"), "LLaMA-Factory")


def _warn_of_version1(program: Program, layer: SettingsLayer, *, peft: str | None, sharded: bool) -> None:
    """Warn of the copy that the loop's own loss makes, and record DPO's copy of the model, unless it has adapters."""
    findings, loss = program.findings, layer.get("pref_loss")
    if (as_int(layer.get("micro_batch_size")) or 1) > 1:
        findings.warn(
            "LLaMA-Factory's loss also copies the fp32 logits without the last position; this copy is not counted."
        )
        findings.add_uncertainty("more", "logits")
    is_sigmoid = loss is None or as_word(loss) == "sigmoid"
    if program.launch.arguments[:1] == ("dpo",) and is_sigmoid and peft != "lora":
        copy = {"role": "reference", "sharded": sharded}
        findings.record("other_models", [copy], "llamafactory-cli dpo copies the model", written=False)


def is_version1_program(program: Program) -> bool:
    """Return True if the environment or the program's own name asks for version 1."""
    name = program.launch.module or program.launch.script or ""
    flag = program.environ.get("USE_V1")
    by_flag = flag is not None and bool(as_bool(Setting(value=flag, origin="USE_V1")))
    return by_flag or "llamafactory.v1." in name or "llamafactory/v1/" in name


# Reads a LLaMA-Factory configuration; version 0 trains with transformers' Trainer.
#
# Names and meanings: ``src/llamafactory/hparams`` of LLaMA-Factory 0.9.


_FUSED_LOSS = "fused_linear_cross_entropy"
_COMMANDS = frozenset({"train", "sft", "dpo", "rm"})
"""The last three are version 1's."""


def read(program: Program) -> JobReading:
    """Return the job of a LLaMA-Factory configuration."""
    findings, layers = program.findings, tool_layers(program, "config")
    settings = LayeredSettings(*layers)
    version0 = settings.find("model_name_or_path") is not None
    if has_version1_names(settings) or (is_version1_program(program) and not version0):
        return read_version1(program, layers)
    finetuning = settings.find("finetuning_type")
    lora = finetuning is None or as_word(finetuning) == "lora"
    table = library("llamafactory")
    doubt_arguments(table, "all", settings, findings)
    _warn_of_uncounted(settings, findings)
    if as_word(finetuning) == "freeze":
        record_freezing(program, settings, settings.find("model_name_or_path"))
    elif as_word(finetuning) == "full":
        record_frozen_parts(program, settings, settings.find("model_name_or_path"))
    defaults = {
        **transformers_defaults(program.versions),
        **table.defaults("all", *(["lora"] if lora else [])),
        "use_peft": _use_peft(finetuning, lora=lora),
        "dtype": _weights(settings, lora=lora),
    }
    stage = as_word(settings.find("stage"))
    defaults["packing"] = default_setting(stage == "pt", "LLaMA-Factory's default packing")
    if stage == "rm":  # labels are in its batches, so that the language model computes its loss too (rm/trainer.py)
        defaults["task"] = default_setting("causal-lm", "LLaMA-Factory's reward model is a language model")
    return read_trainer(
        program,
        [
            *(translate(layer, table)[0] for layer in layers),
            _quantization(settings, findings),
            _kernels(settings, stage),
            defaults,
        ],
        [uses_deepspeed(settings), processes_per_node(program.environ), *accelerate_layers(program, {})],
        method=_method(stage, settings),
        own_loss=False,
    )


def _kernels(settings: LayeredSettings, stage: str | None) -> dict[str, Setting]:
    """Return Liger-Kernel's settings outside of supervised training and pre-training, where logits are needed.

    The loss writes its gradient over the logits then (``cross_entropy``), which only the model's own loss does
    (``model/model_utils/liger_kernel.py``): DPO and KTO have one of their own.
    """
    liger = settings.find("enable_liger_kernel")
    if liger is None or stage in (None, "pt", "sft"):
        return {}
    return {"liger_kernel_config": liger.with_value({_FUSED_LOSS: False, "cross_entropy": stage == "rm"})}


def _method(stage: str | None, settings: LayeredSettings) -> str | None:
    """Return TRL's method that a stage is; the preference losses of ORPO and SimPO need no reference model."""
    if stage == "dpo":
        return {"orpo": "orpo", "simpo": "cpo"}.get(as_word(settings.find("pref_loss")) or "", "dpo")
    return {"rm": "reward", "kto": "kto"}.get(stage or "")


def _warn_of_uncounted(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Warn of a reward model's unused head, and of PPO's further models."""
    if as_word(settings.find("stage")) == "rm":
        findings.warn("The reward model is counted with a language model's head: its loss is computed but not used.")
        findings.add_uncertainty("less", "logits")
    if as_word(settings.find("stage")) == "ppo":
        findings.warn("PPO's reference, reward and value models and its text generation are not counted.")
        findings.add_uncertainty("more", "weights", "activations")


def _use_peft(finetuning: Setting | None, *, lora: bool) -> Setting:
    if finetuning is None:
        return default_setting(True, "LLaMA-Factory's default finetuning_type lora")
    return finetuning.with_value(lora)


def _weights(settings: LayeredSettings, *, lora: bool) -> Setting:
    """Return the dtype of the weights: that of computation; trained ones are cast to fp32 without ``pure_bf16``.

    Source: ``model/model_utils/misc.py`` and ``hparams/parser.py``.
    """
    if settings.is_true("pure_bf16"):
        return default_setting("bfloat16", "pure_bf16")
    for name, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        if settings.is_true(name):
            frozen = default_setting(dtype, f"LLaMA-Factory loads frozen weights in {dtype}")
            trained = default_setting("float32", "LLaMA-Factory casts trained weights to fp32")
            return frozen if lora else trained
    return default_setting("auto", "LLaMA-Factory loads weights as stored")


def _quantization(settings: LayeredSettings, findings: FindingCollector) -> dict[str, Setting]:
    """Return bitsandbytes' quantization of the frozen weights, with quantized scales by default."""
    bits = settings.find("quantization_bit")
    if bits is None:
        return {}
    method = settings.find("quantization_method")
    if method is not None and as_word(method) not in ("bnb", "bitsandbytes"):
        sentence = f"{method.origin}: weights quantized by {method.value} are counted as bitsandbytes stores them."
        findings.mark_uncertain("lora.quantization", sentence)
    if as_int(bits) not in (4, 8):
        sentence = f"{bits.origin}: {bits.value} bits are not supported; 4 bits are assumed."
        findings.mark_uncertain("lora.quantization", sentence)
    double = settings.find("double_quantization")
    return bits_of_weights(bits, double if as_bool(double) is not None else None, "LLaMA-Factory")


TOOL = Tool(
    name="LLaMA-Factory",
    programs=re.compile(
        r"(.*/)?(llamafactory-cli|lmf|llamafactory/(v1/)?(launcher|cli))"
        r"|llamafactory\.((v1\.)?(launcher|cli)|v1\.trainers\.\w+)"
    ),
    commands=tuple(ToolCommand(name=name, subcommands=_COMMANDS) for name in ("llamafactory-cli", "lmf")),
    entries={
        r"(llamafactory|llmtuner)\.([\w.]+\.)?run_exp": "python -m llamafactory.launcher",
        r"llamafactory\.(cli\.main|launcher\.launch)": "llamafactory-cli",
    },
    scripts={r"(.*/)?src/train(_bash)?\.py": "python -m llamafactory.launcher"},
    is_config=lambda table: (
        ("model_name_or_path" in table and has_any(table, "finetuning_type", "cutoff_len", "stage", "template"))
        or is_version1(table)
    ),
    read=read,
    table=partial(library, "llamafactory"),
)
