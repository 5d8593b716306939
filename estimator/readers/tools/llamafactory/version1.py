"""Reads LLaMA-Factory's version 1 (``USE_V1=1``), which has a training loop of its own and plugins for the rest.

Names, meanings and defaults: ``src/llamafactory/v1`` of LLaMA-Factory in August 2026 (``config``, ``core``,
``plugins``, ``trainers``).
"""

from collections.abc import Mapping
from typing import Any

from ....common import check_nesting, decode_json
from ...program import Program, processes_per_node, read_world_size
from ...source import (
    JobReading,
    LayeredSettings,
    Setting,
    SettingsLayer,
    as_bool,
    as_int,
    as_word,
    default_layer,
    default_setting,
)
from ...trainer import read_trainer
from ..shared import ConfigTable, has_any
from .freezing import record_freezing

_PLUGINS = ("peft_config", "dist_config", "quant_config", "optim_config", "kernel_config", "init_config")
_OWN_NAMES = ("micro_batch_size", "model_class", "batching_strategy", "cp_mode", "mp_shard_size", "dp_size")
_FSDP = ("fsdp2", "fsdpturbo")
_TRAINER_NAMES = {
    "model": "model_name_or_path",
    "micro_batch_size": "per_device_train_batch_size",
    "cutoff_len": "max_length",
    "enable_activation_checkpointing": "activation_checkpointing",
    "flash_attn": "attn_implementation",
}
_PASSED_ON = ("output_dir", "save_total_limit", "trust_remote_code")
_DEFAULTS: Mapping[str, object] = {
    "model_name_or_path": "Qwen/Qwen3-4B-Instruct-2507",
    "per_device_train_batch_size": 1,
    "max_length": 2048,
    "activation_checkpointing": True,
    "attn_implementation": "sdpa",
    "gradient_accumulation_steps": 1,
    "optim": "adamw_torch",
    "packing": False,
}
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
        **{new: found for old, new in _TRAINER_NAMES.items() if (found := settings.find(old)) is not None},
        **{name: found for name in _PASSED_ON if (found := settings.find(name)) is not None},
        **_adapters(peft),
        **_weights(settings, peft=bool(peft), computes_in_half=sharded or _word(dist, "name") == "deepspeed"),
        **_quantization(quant),
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
    defaults = default_layer(_DEFAULTS, "LLaMA-Factory's default (version 1)")
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


def _weights(settings: LayeredSettings, *, peft: bool, computes_in_half: bool) -> dict[str, Setting]:
    """Return the dtypes: weights in fp32 where all are trained, else as stored; bf16 only where a backend applies it.

    Without FSDP2 or DeepSpeed nothing casts: ``bf16`` goes to the backend and to nowhere else.
    """
    stored = default_setting("auto", "LLaMA-Factory loads weights as stored")
    whole = default_setting("float32", "LLaMA-Factory trains all weights in fp32")
    found = {"dtype": stored if peft else whole}
    bf16 = settings.find("bf16") or default_setting(True, "LLaMA-Factory's default bf16")
    return {**found, "bf16": bf16} if computes_in_half else found


def _quantization(quant: Plugin) -> dict[str, Setting]:
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
            "LLaMA-Factory's loss also copies the fp32 logits without the last position; that is not counted."
        )
        findings.add_uncertainty("more", "logits")
    name = _word(dist, "name")
    if name is not None and name not in (*_FSDP, "deepspeed"):
        sentence = f"{dist['name'].origin}: the backend {name!r} is not known here and is not counted."
        findings.mark_uncertain("parallel.strategy", sentence)
    if name == "fsdpturbo":
        findings.warn(f"{dist['name'].origin}: fsdpturbo is counted as FSDP2.")
        findings.add_uncertainty("either", "weights")
    kernels = _plugin(settings, "kernel_config").get("name")
    if kernels is not None and any(word.strip() != "auto" for word in str(kernels.value).split(",")):
        findings.warn(f"{kernels.origin}: activations that these kernels do not save are counted.")
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
