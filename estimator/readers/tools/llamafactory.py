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
)
from ..source.versions import transformers_defaults
from ..trainer.trainer_program import read_trainer
from .shared import (
    ConfigTable,
    Tool,
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
    modules = _names(settings.find("freeze_trainable_modules")) or ["all"]
    parts = [f".{layer}.{'' if module == 'all' else module}" for module in modules for layer in trained]
    parts += _names(settings.find("freeze_extra_modules"))
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


def _names(setting: Setting | None) -> list[str]:
    """Return names written as a list, or with commas between them."""
    if setting is None or as_word(setting) in ("none", "null", ""):
        return []
    value = setting.value if isinstance(setting.value, list) else str(setting.value).split(",")
    return [str(name).strip() for name in value if str(name).strip()]


# Reads LLaMA-Factory's version 1 (``USE_V1=1``), which has a training loop of its own and plugins for the rest.
#
# Names, meanings and defaults: ``src/llamafactory/v1`` of LLaMA-Factory in August 2026 (``config``, ``core``,
# ``plugins``, ``trainers``).


_PLUGINS = ("peft_config", "dist_config", "quant_config", "optim_config", "kernel_config", "init_config")
_OWN_NAMES = ("micro_batch_size", "model_class", "batching_strategy", "cp_mode", "mp_shard_size", "dp_size")
_FSDP = ("fsdp2", "fsdpturbo")
_VERSION1_TRAINER_NAMES = {
    "model": "model_name_or_path",
    "micro_batch_size": "per_device_train_batch_size",
    "cutoff_len": "max_length",
    "enable_activation_checkpointing": "activation_checkpointing",
    "flash_attn": "attn_implementation",
}
_PASSED_ON = ("output_dir", "save_total_limit", "trust_remote_code")
_TASKS = {"cls": "token-classification", "other": "feature-extraction"}
_READ_OPTIONS = {
    "peft_config": {"name", "r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules"},
    "dist_config": {"name", "reshard_after_forward", "offload_params", "pin_memory", "dcp_path", "config_file"},
    "quant_config": {"name", "quantization_bit", "double_quantization", "quantization_type", "compute_dtype"},
}
"""Options that are read here, or change no memory; the others keep their names, for the warning."""

Plugin = Mapping[str, Setting]
"""A plugin's options by name; empty where it is not used."""


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
    findings, settings = program.findings, LayeredSettings(*layers)
    peft, dist, quant, optim = (_plugin(settings, name) for name in _PLUGINS[:4])
    sharded = _is_distributed(program) and _word(dist, "name") in _FSDP
    findings.record_global_batch(as_int(settings.find("global_batch_size")), _global_batch(settings))
    own = {
        **{new: found for old, new in _VERSION1_TRAINER_NAMES.items() if (found := settings.find(old)) is not None},
        **{name: found for name in _PASSED_ON if (found := settings.find(name)) is not None},
        **_adapters(peft),
        **_weights_version1(settings, peft=bool(peft), computes_in_half=sharded or _word(dist, "name") == "deepspeed"),
        **_quantization_version1(quant),
        **_others({"peft_config": peft, "dist_config": dist, "quant_config": quant}),
    }
    kind = _TASKS.get(as_word(settings.find("model_class")) or "")
    if kind is not None and (named := settings.find("model_class")) is not None:
        own["task"] = named.with_value(kind)
    if optim:
        own["optim"] = optim["name"]
    if _word(dist, "name") == "deepspeed" and "config_file" in dist:
        own["deepspeed"] = dist["config_file"]
    if _word(peft, "name") == "freeze":
        record_freezing(program, LayeredSettings(dict(peft)), own.get("model_name_or_path"))
    if sharded:
        findings.record(
            "parallel.reduce_dtype", "fp32", "LLaMA-Factory reduces FSDP2's gradients in fp32", written=False
        )
    _warn(program, settings, dist)
    _read_reference(program, settings, peft=peft, sharded=sharded)
    defaults = library("llamafactory").defaults("version1")
    return read_trainer(
        program, [own, defaults], [_sharding(settings, dist), processes_per_node(program.environ)], method=None
    )


def _plugin(settings: LayeredSettings, name: str) -> Plugin:
    """Return a plugin's options, from a table or from JSON on the command line."""
    inner = {part.removeprefix(f"{name}."): settings.find(part) for part in settings.names(f"{name}.")}
    found = {option: setting for option, setting in inner.items() if setting is not None}
    text = settings.find(name)
    if text is None or not str(text.value).startswith("{"):
        return found
    try:
        table = decode_json(str(text.value), dict[str, Any])
        check_nesting(table)
    except ValueError:
        return found
    return {**{option: text.with_value(value) for option, value in table.items()}, **found}


def _word(plugin: Plugin, option: str) -> str | None:
    return as_word(plugin.get(option))


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


def _global_batch(settings: LayeredSettings) -> Setting:
    return settings.find("global_batch_size") or default_setting(None, "")


def _adapters(peft: Plugin) -> dict[str, Setting]:
    """Return LoRA's settings by transformers' names."""
    if not peft:
        return {"use_peft": default_setting(False, "LLaMA-Factory trains all weights without peft_config")}
    lora = _word(peft, "name") == "lora"
    found = {"use_peft": peft["name"].with_value(lora)} if "name" in peft else {}
    if not lora:
        return found
    default = default_setting(8, "LLaMA-Factory's default r")
    targets = peft.get("target_modules") or default_setting("all", "LLaMA-Factory's default target_modules")
    return {**found, "lora_r": peft.get("r") or default, "lora_target_modules": targets}


def _weights_version1(settings: LayeredSettings, *, peft: bool, computes_in_half: bool) -> dict[str, Setting]:
    """Return the dtypes: weights in fp32 where all are trained, else as stored; bf16 only where a backend applies it.

    Without FSDP2 or DeepSpeed nothing casts: ``bf16`` goes to the backend and to nowhere else.
    """
    stored = default_setting("auto", "LLaMA-Factory loads weights as stored")
    whole = default_setting("float32", "LLaMA-Factory trains all weights in fp32")
    found = {"dtype": stored if peft else whole}
    bf16 = settings.find("bf16") or default_setting(True, "LLaMA-Factory's default bf16")
    return {**found, "bf16": bf16} if computes_in_half else found


def _quantization_version1(quant: Plugin) -> dict[str, Setting]:
    """Return bitsandbytes' quantization: in 4 bits, with quantized scales, unless set otherwise."""
    if "name" not in quant or (quant["name"].value == "auto" and "quantization_bit" not in quant):
        return {}
    bits = quant.get("quantization_bit") or default_setting(4, "LLaMA-Factory's default quantization_bit")
    if as_int(bits) == 8:
        return {"load_in_8bit": bits.with_value(True)}
    double = quant.get("double_quantization") or default_setting(True, "LLaMA-Factory's default double_quantization")
    return {"load_in_4bit": bits.with_value(True), "bnb_4bit_use_double_quant": double}


def _others(plugins: Mapping[str, Plugin]) -> dict[str, Setting]:
    """Return what is not understood under its own name, so that it is warned of where it may change memory."""
    return {
        f"{name}.{option}": setting
        for name, plugin in plugins.items()
        for option, setting in plugin.items()
        if option not in _READ_OPTIONS[name] and not option.startswith(("freeze_", "cast_trainable", "ep_", "export_"))
    }


def _sharding(settings: LayeredSettings, dist: Plugin) -> dict[str, Setting]:
    """Return the sharding by the names of accelerate's flags; the context's ranks share the weights too."""
    found: dict[str, Setting] = {}
    if _word(dist, "name") in _FSDP:
        found["use_fsdp"] = dist["name"].with_value(True)
        found["fsdp_version"] = dist["name"].with_value(2)
        found["fsdp_auto_wrap_policy"] = dist["name"].with_value("TRANSFORMER_BASED_WRAP")
        found["script_own_loop"] = dist["name"].with_value(True)  # its own trainer: plugins/trainer_plugins/distributed
        options = {"reshard_after_forward": "fsdp_reshard_after_forward", "offload_params": "fsdp_offload_params"}
        found |= {new: dist[old] for old, new in options.items() if old in dist}
    copies, shard, context = (settings.find(name) for name in ("mp_replicate_size", "mp_shard_size", "cp_size"))
    if copies is not None:
        found["parallelism_config_dp_replicate_size"] = copies
    if shard is not None and (size := as_int(shard)):
        found["parallelism_config_dp_shard_size"] = shard.with_value(max(1, size // (as_int(context) or 1)))
    if context is not None:
        found["parallelism_config_cp_size"] = context
    if (experts := dist.get("ep_size")) is not None:
        found["parallelism_config_ep_size"] = experts
    return found


def _warn(program: Program, settings: LayeredSettings, dist: Plugin) -> None:
    """Warn of what no rule counts: the copy that the loop's own loss makes, kernels, and unknown backends."""
    findings = program.findings
    if (as_int(settings.find("micro_batch_size")) or 1) > 1:
        findings.warn(
            "LLaMA-Factory's loss also copies the fp32 logits without the last position; this copy is not counted."
        )
        findings.add_uncertainty("more", "logits")
    name = _word(dist, "name")
    if name is not None and name not in (*_FSDP, "deepspeed"):
        sentence = f"{dist['name'].origin}: the backend {name!r} is not supported and is not counted."
        findings.mark_uncertain("parallel.strategy", sentence)
    if name == "fsdpturbo":
        findings.warn(f"{dist['name'].origin}: fsdpturbo is counted as FSDP2.")
        findings.add_uncertainty("either", "weights")
    kernels = _plugin(settings, "kernel_config").get("name")
    if kernels is not None and any(word.strip() != "auto" for word in str(kernels.value).split(",")):
        findings.warn(f"{kernels.origin}: these kernels save fewer activations than are counted.")
        findings.add_uncertainty("less", "activations")


def _read_reference(program: Program, settings: LayeredSettings, *, peft: Plugin, sharded: bool) -> None:
    """Record DPO's reference model: a copy of the model, unless adapters can be switched off."""
    command = next(iter(program.launch.arguments), "")
    loss = settings.find("pref_loss")
    if command != "dpo" or (loss is not None and as_word(loss) != "sigmoid") or _word(peft, "name") == "lora":
        return
    copy = {"role": "reference", "sharded": sharded}
    program.findings.record("other_models", [copy], "llamafactory-cli dpo copies the model", written=False)


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
    number = as_int(bits)
    if number == 8:
        return {"load_in_8bit": bits.with_value(True)}
    if number != 4:
        sentence = f"{bits.origin}: {bits.value} bits are not supported; 4 bits are assumed."
        findings.mark_uncertain("lora.quantization", sentence)
    double = settings.find("double_quantization")
    default = default_setting(True, "LLaMA-Factory's default double_quantization")
    return {
        "load_in_4bit": bits.with_value(True),
        "bnb_4bit_use_double_quant": double if double is not None and as_bool(double) is not None else default,
    }


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
