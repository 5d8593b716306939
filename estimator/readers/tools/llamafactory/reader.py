"""Reads a LLaMA-Factory configuration; version 0 trains with transformers' Trainer.

Names and meanings: ``src/llamafactory/hparams`` of LLaMA-Factory 0.9.
"""

import re
from collections.abc import Mapping

from ...program import Program, ToolCommand, accelerate_layers, processes_per_node
from ...source import (
    FindingCollector,
    JobReading,
    LayeredSettings,
    Setting,
    SettingsLayer,
    as_bool,
    as_int,
    as_word,
    default_layer,
    default_setting,
    transformers_defaults,
)
from ...trainer import read_trainer
from ..shared import (
    OPTIMIZER_NAMES,
    Tool,
    ToolKey,
    ToolKeys,
    Translation,
    batch_keys,
    has_any,
    tool_layers,
    uses_deepspeed,
)
from .freezing import record_freezing, record_frozen_parts
from .version1 import has_version1_names, is_version1, is_version1_program, read_version1

_TRAINER_NAMES = {
    "enable_liger_kernel": "use_liger_kernel",
    "cutoff_len": "max_length",
    "lora_rank": "lora_r",
    "additional_target": "modules_to_save",
}
_SWITCHES: Mapping[str, tuple[str, object]] = {
    "neat_packing": ("packing", True),
    "use_unsloth_gc": ("activation_offloading", True),
    "pure_bf16": ("bf16", False),
    "use_muon": ("optim", "muon"),
}
_ATTENTION = {"disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2", "fa3": "flash_attention_3"}
_READ_ELSEWHERE_OR_WITHOUT_EFFECT = (
    *("finetuning_type", "quantization_bit", "double_quantization", "bnb_4bit_quant_type"),
    *("lora_alpha", "quantization_method", "loraplus_lr_ratio", "low_cpu_mem_usage"),
    *("freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules", "use_llama_pro"),
    *("freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model"),
)
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
    translated = [_translate(layer, findings) for layer in layers]
    _warn_of_uncounted(settings, findings)
    if as_word(finetuning) == "freeze":
        record_freezing(program, settings, settings.find("model_name_or_path"))
    elif as_word(finetuning) == "full":
        record_frozen_parts(program, settings, settings.find("model_name_or_path"))
    defaults = {
        **transformers_defaults(program.versions),
        **_own_defaults(lora=lora),
        "use_peft": _use_peft(finetuning, lora=lora),
        "dtype": _weights(settings, lora=lora),
    }
    stage = as_word(settings.find("stage"))
    defaults["packing"] = default_setting(stage == "pt", "LLaMA-Factory's default packing")
    if stage == "rm":  # labels are in its batches, so that the language model computes its loss too (rm/trainer.py)
        defaults["task"] = default_setting("causal-lm", "LLaMA-Factory's reward model is a language model")
    return read_trainer(
        program,
        [*translated, _quantization(settings, findings), _kernels(settings, stage), defaults],
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
    """Warn of methods other than LoRA, freezing and full fine-tuning, and of PPO's further models."""
    finetuning = settings.find("finetuning_type")
    if finetuning is not None and as_word(finetuning) not in ("lora", "full", "freeze"):
        findings.warn(f"{finetuning.origin}: {finetuning.value} is counted as training all weights.")
        findings.add_uncertainty("less", "gradients", "optimizer")
    if as_word(settings.find("stage")) == "rm":
        findings.warn("The reward model's head is counted as a language model's: its loss is computed and not used.")
        findings.add_uncertainty("less", "logits")
    if as_word(settings.find("stage")) == "ppo":
        findings.warn("PPO's reference, reward and value models are not counted, nor is the text it generates.")
        findings.add_uncertainty("more", "weights", "activations")


def _translate(layer: SettingsLayer, findings: FindingCollector) -> dict[str, Setting]:
    translation = Translation(layer)
    translation.rename(_TRAINER_NAMES)
    translation.switch(_SWITCHES)
    translation.pop(*_READ_ELSEWHERE_OR_WITHOUT_EFFECT)
    if (off := translation.pop("disable_gradient_checkpointing")) is not None:
        translation.put("activation_checkpointing", not as_bool(off), off)
    attention = translation.pop("flash_attn")
    if attention is not None and as_word(attention) in _ATTENTION:
        translation.put("attn_implementation", _ATTENTION[as_word(attention) or ""], attention)
    _warn_of_badam(translation, findings)
    return translation.trainer


def _warn_of_badam(translation: Translation, findings: FindingCollector) -> None:
    """Warn of BAdam, which trains one block at a time: gradients and states exist for that block alone."""
    switch = translation.pop("use_badam")
    translation.pop(*(each for each in list(translation.trainer) if each.startswith("badam_")))
    if switch is not None and as_bool(switch):
        sentence = f"{switch.origin}: BAdam's gradients and states are counted for all blocks, not for one at a time."
        findings.mark_uncertain("training.optimizer", sentence, direction="less")
        findings.add_uncertainty("less", "gradients")


def _own_defaults(*, lora: bool) -> dict[str, Setting]:
    values: dict[str, object] = {"max_length": 2048, "activation_checkpointing": True, "galore_rank": 16}
    values["apollo_rank"] = 16
    if lora:
        values |= {"lora_r": 8, "lora_target_modules": "all-linear"}
        values |= {"kbit_preparation": False, "lora_adapter_dtype": "float32"}  # model/adapter.py
    return default_layer(values, "LLaMA-Factory's default")


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
        sentence = f"{bits.origin}: {bits.value} bits are not known here; 4 are counted."
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
    is_config=lambda table: (
        ("model_name_or_path" in table and has_any(table, "finetuning_type", "cutoff_len", "stage", "template"))
        or is_version1(table)
    ),
    read=read,
    keys=ToolKeys(
        settings={
            **batch_keys(batch="per_device_train_batch_size", length="cutoff_len"),
            "training.activation_checkpointing": ToolKey(
                name="disable_gradient_checkpointing", values={"full": False, "none": True}
            ),
            "training.activation_offload": ToolKey(name="use_unsloth_gc"),
            "training.optimizer": ToolKey(name="optim", values=OPTIMIZER_NAMES),
            "training.loss": ToolKey(name="enable_liger_kernel", values={"fused-linear": True}),
            "training.precision": ToolKey(name="pure_bf16", values={"bf16": True}),
            "model.attention": ToolKey(name="flash_attn", values={"sdpa": "sdpa", "flash_attention_2": "fa2"}),
            "lora.rank": ToolKey(name="lora_rank", also={"finetuning_type": "lora"}),
            "lora.targets": ToolKey(name="lora_target", values={"all-linear": "all"}),
            "lora.quantization": ToolKey(name="quantization_bit", values={"nf4-double": 4}),
        }
    ),
)
