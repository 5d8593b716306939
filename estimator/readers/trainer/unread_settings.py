"""Settings whose names suggest that memory depends on them, and that no reader understands."""

import re
from collections.abc import Mapping

from ...job.settings import UncertaintyDirection
from ..source.evidence import (
    MODEL_STATES,
    UNKNOWN_TABLE,
    Component,
    FindingCollector,
    LayeredSettings,
    Setting,
    as_bool,
)

_EFFECT_BY_NAME: Mapping[str, tuple[UncertaintyDirection, tuple[Component, ...]]] = {
    r"offload|on_cpu|(?<![a-z])use_kt(?![a-z_])": ("less", (*MODEL_STATES, "activations")),
    r"use_mca|use_megatron_bridge": ("either", (*MODEL_STATES, "activations", "logits")),
    r"use_asft_loss": ("more", ("weights", "logits")),
    r"label_smoothing_factor|use_eaft|kd_trainer": ("more", ("logits",)),
    r"generate_samples|do_causal_lm_eval|onebitllms|dense_mixer|layer_replication": ("more", ("activations",)),
    r"grokfast": ("more", ("gradients",)),
    r"target_parameters|mora(?![a-z])": ("either", ("gradients", "optimizer", "activations")),
    r"use_unsloth$": ("less", ("activations", "logits")),
    r"use_kernels|use_v1_kernels|fused_attn_kernel|flash_attn_fuse": ("less", ("activations",)),
    r"experts_impl|scattermoe|sonicmoe|expert_backend|moe_grouped|linearized_experts|deepcompile|shift_attn": (
        "either",
        ("activations",),
    ),
    r"(?<![a-z])qat(?![a-z])": ("more", ("weights", "activations")),
    r"lora_(mlp|qkv|o)_kernel": ("less", ("activations",)),
    r"quant|gptq|awq|load_in_|float8|fp8|mxfp|nvfp": ("less", ("weights", "activations")),
    r"modules_to_save|additional_target|trainable_token|(?<![a-z])ema(?![a-z])|hpz": ("more", MODEL_STATES),
    r"frozen|freeze|galore|apollo|badam|lisa|adam_mini": ("less", ("gradients", "optimizer")),
    r"lora|dora|adapter|exclude_modules|layers_to_transform": ("either", ("gradients", "optimizer", "activations")),
    r"(?<![a-z])bits?(?![a-z])": ("less", ("weights", "activations")),
    r"(?<![a-z])tun(e|ing|able)(?![a-z])|recipe": ("either", (*MODEL_STATES, "activations")),
    r"(vision|image|audio|speech)_(tower|encoder|model)\d?$|pretrained?_\w*(model|tower|encoder)": (
        "more",
        (*MODEL_STATES, "activations"),
    ),
    r"fsdp|parallel|zero|shard": ("less", (*MODEL_STATES, "activations")),
    r"checkpointing|(?<!p)recompute|remat": ("either", ("activations",)),
    r"liger|cross_entropy|tiled|chunked": ("less", ("activations", "logits")),
    r"upcast_layernorm|fp32_norm": ("more", ("activations",)),
    r"precision|autocast": ("either", (*MODEL_STATES, "activations")),
}
"""Patterns in a setting's name, and the effect that such settings may have on components; the first match counts.

They shard, offload to the host or shrink (less), keep a copy or train more (more), or may do either.
"""
_OF_A_STEP: tuple[UncertaintyDirection, tuple[Component, ...]] = ("either", ("activations", "logits"))
_EFFECT_BY_FLAG: Mapping[str, tuple[UncertaintyDirection, tuple[Component, ...]]] = {
    r"dtype|(?<![a-z])(bf16|fp16|fp32|half)(?![a-z0-9])": ("either", (*MODEL_STATES, "activations")),
    r"(grad|activation|use)\w*_(checkpoint|ckpt)": ("either", ("activations",)),
    r"(?<![a-z])(?:micro_?batch|batch_?size|bsz|(seq|max|cutoff|block)_?\w*(len|length|size))(?![a-z])": _OF_A_STEP,
}
"""What flags on a command line change, if no part of a script that was read makes use of them."""
_OTHER_SIZES = re.compile(
    r"eval|valid|test|infer|predict|gen|new_tok|global|total|map|preproc|write|buffer|image|shard|vocab|grad_norm|shuffle|min_"
)
"""In the names of sizes that are none of a training step's."""
_WITHOUT_EFFECT = {
    *("lora_alpha", "lora_dropout", "lora_bias", "use_rslora", "peft_use_rslora", "lora_task_type", "lora_dtype"),
    *("lora_fan_in_fan_out", "lora_model_dir", "lora_on_cpu", "merge_lora", "lora_lr_ratio", "lorap_lr_ratio"),
    *("loraplus_lr_ratio", "loraplus_lr_embedding", "peft_init_lora_weights", "init_lora_weights", "adapters"),
    *("lora_modules_to_save_kwargs", "peft_autocast_adapter_dtype", "save_adapter_weights_only"),
    *("qlora_sharded_model_loading", "bnb_4bit_quant_type", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage"),
    *("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs", "vit_gradient_checkpointing"),
    *("parallel_mode", "tokenizers_parallelism", "zero3_init_flag", "zero3_save_16bit_model"),
    *("fsdp_transformer_layer_cls_to_wrap", "fsdp_state_dict_type", "fsdp_min_num_params", "shard_size", "num_shards"),
    *("enable_async_tensor_parallel", "context_parallel_rotate_method", "context_parallel_load_balancer"),
    *("tensor_parallel_plan", "precompute_float8_dynamic_scale_for_fsdp", "zero_allow_untested_optimizer"),
    *("cpu_offload_pin_memory", "fsdp_final_state_dict_type", "recompute_method"),
}
"""Last parts of names whose settings change no bytes that count, or only while the model is loaded."""
_ABOUT_FILES = re.compile(r"(no_)?(ckpt|checkpoint|dist_ckpt|save|load|dataset|tokenizer|data)[._]")
"""Beginnings of names that concern files on disk."""
_OFF: tuple[object, ...] = ([], {}, 0, "0")

_KEY_BY_ARGUMENT = {
    "per_device_train_batch_size": "training.micro_batch",
    "gradient_accumulation_steps": "training.gradient_accumulation",
    "optim": "training.optimizer",
    **dict.fromkeys(("bf16", "fp16", "dtype", "torch_dtype"), "training.precision"),
    **dict.fromkeys(("activation_checkpointing", "gradient_checkpointing"), "training.activation_checkpointing"),
    **dict.fromkeys(("max_length", "max_seq_length"), "training.sequence_length"),
    **dict.fromkeys(("fsdp", "deepspeed"), "parallel.strategy"),
    **dict.fromkeys(("load_in_4bit", "load_in_8bit"), "lora.quantization"),
    "attn_implementation": "model.attention",
    "use_liger_kernel": "training.loss",
    "r": "lora.rank",
    "target_modules": "lora.targets",
}
"""The job key that depends on an argument whose value only the running script knows."""


def warn_of_unresolved(
    arguments: Mapping[str, str], reported: Mapping[str, object], findings: FindingCollector
) -> None:
    """Warn of a script's arguments that are known only when it runs, and mark what they decide as uncertain.

    Args:
        arguments: a sentence for each by name; by ``UNKNOWN_TABLE`` for arguments passed as an unknown table.
        reported: settings that the running program reports, which are all of its arguments.
        findings: collects the warnings.
    """
    for name, sentence in arguments.items():
        if name not in (*_KEY_BY_ARGUMENT, UNKNOWN_TABLE):
            findings.warn(sentence)
        elif name != UNKNOWN_TABLE:
            findings.mark_uncertain(_KEY_BY_ARGUMENT[name], sentence)
        elif not reported:
            findings.warn(sentence)
            findings.add_uncertainty("either", *MODEL_STATES, "activations")


def warn_of_unread(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Warn of written settings that may change the memory and were not understood, and mark what they concern."""
    for name, setting in settings.unread():
        meant = [each for each in _KEY_BY_ARGUMENT if "_" in name and each.startswith(name)]
        if meant and setting.origin.startswith("--"):  # argparse takes abbreviations
            what = "is not counted" if meant[0] == name else f"may stand for --{meant[0]}"
            findings.mark_uncertain(_KEY_BY_ARGUMENT[meant[0]], f"{setting.origin} {what}.")
            continue
        effect = _possible_effect(name, setting)
        if effect is not None:
            direction, components = effect
            key = "training.sequence_length" if effect == _OF_A_STEP and "len" in name else None
            findings.warn(f"{setting.origin} may change the memory and is not counted.", unless=key)
            findings.add_uncertainty(direction, *components, unless=key)


def _possible_effect(name: str, setting: Setting) -> tuple[UncertaintyDirection, tuple[Component, ...]] | None:
    is_off = as_bool(setting) is False or setting.value in _OFF
    concerns_files = _ABOUT_FILES.match(name) is not None and "load_in_" not in name
    if is_off or concerns_files or name.rpartition(".")[2] in _WITHOUT_EFFECT:
        return None
    is_flag = setting.origin.startswith("--") and not _OTHER_SIZES.search(name)
    effects = {**_EFFECT_BY_NAME, **(_EFFECT_BY_FLAG if is_flag else {})}
    return next((effect for pattern, effect in effects.items() if re.search(pattern, name)), None)
