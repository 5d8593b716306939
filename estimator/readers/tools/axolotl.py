"""axolotl: its YAML and the overrides of ``axolotl train cfg.yml --micro-batch-size 4``.

Names and meanings: ``src/axolotl/utils/schemas`` and ``utils/config`` of axolotl 0.12 and later. It trains with
transformers' Trainer and accelerate.
"""

from dataclasses import replace

from ..program.accelerate_env import accelerate_layers
from ..program.program import Program
from ..source.evidence import JobReading
from ..source.settings import LayeredSettings, Setting, SettingsLayer, as_bool, as_int, as_word
from ..source.versions import transformers_defaults
from ..trainer.trainer_program import read_trainer
from .shared.merged_settings import tool_layers
from .shared.translation import Translation, uses_deepspeed

_RENAMED = {
    "base_model": "model_name_or_path",
    "sequence_len": "max_length",
    "sample_packing": "packing",
    "peft_r": "lora_r",
    "wandb_name": "run_name",
}
_ACCELERATE = {
    "tensor_parallel_size": "parallelism_config_tp_size",
    "context_parallel_size": "parallelism_config_cp_size",
    "sequence_parallel_degree": "parallelism_config_cp_size",
    "expert_parallel_size": "parallelism_config_ep_size",
    "dp_shard_size": "parallelism_config_dp_shard_size",
    "dp_replicate_size": "parallelism_config_dp_replicate_size",
    "fsdp_version": "fsdp_version",
}
_ATTENTION = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
    "xformers_attention": "sdpa",
    "flex_attention": "sdpa",
}
_NOT_FOR_MEMORY = (
    *("bf16", "bfloat16", "fp16", "float16", "float32", "bnb_config_kwargs.bnb_4bit_use_double_quant", "batch_size"),
    *("lora_model_dir", "lora_modules_to_save_kwargs", "save_first_step", "lora_on_cpu"),
)


def read(program: Program) -> JobReading:
    """The job of an axolotl configuration."""
    written = tool_layers(program, "config", written=("debug.log",))
    raw = LayeredSettings(*written)
    found = [_translate(layer) for layer in written]
    defaults = {
        **transformers_defaults(program.versions),
        "micro_batch_size": Setting(value=1, origin="axolotl's default", written=False),
        "max_length": Setting(value=512, origin="axolotl's default sequence_len", written=False),
        **_quantization(raw),
    }
    return read_trainer(
        program,
        [_half(raw) | _accumulation(raw), *(each.layer for each in found), defaults],
        [*(each.other for each in found), uses_deepspeed(raw), *accelerate_layers(program, {})],
        method=_method(raw),
    )


def _translate(layer: SettingsLayer) -> Translation:
    found = Translation(layer)
    found.rename(_RENAMED)
    found.rename(_ACCELERATE, other=True)
    found.drop(*_NOT_FOR_MEMORY)
    adapter = found.take("adapter")
    if adapter is not None and as_word(adapter) in ("lora", "qlora"):
        found.put("use_peft", True, adapter)
    linear = found.take("lora_target_linear")
    if as_bool(linear) and linear is not None:
        found.put("lora_target_modules", "all-linear", linear)
    _attention(found)
    _checkpointing(found)
    _loss(found)
    _sharding(found)
    return found


def _sharding(found: Translation) -> None:
    """Either of ``fsdp`` and ``fsdp_config`` switches it on (``utils/trainer.py``: ``prepare_optim_env``)."""
    words = found.take("fsdp")
    nested = [name for name in found.layer if name.startswith("fsdp_config.")]
    on = words if words is not None and words.value else found.layer[nested[0]] if nested else None
    for name in nested:
        inner = name.partition(".")[2]
        found.rename({name: inner if inner.startswith("fsdp_") else f"fsdp_{inner}"}, other=True)
    if on is not None:
        found.put("use_fsdp", True, on, other=True)


def _attention(found: Translation) -> None:
    for name, kind in _ATTENTION.items():
        setting = found.take(name)
        if setting is not None and as_bool(setting):
            found.put("attn_implementation", kind, setting)


def _checkpointing(found: Translation) -> None:
    setting = found.take("gradient_checkpointing")
    if setting is None:
        return
    offloads = as_word(setting) in ("offload", "offload_disk", "unsloth")
    found.put("activation_checkpointing", offloads or as_bool(setting), setting)
    if offloads:
        found.put("activation_offloading", True, setting)


def _loss(found: Translation) -> None:
    """Plugins that compute the loss without the logits."""
    plugins = found.take("plugins")
    names = plugins.value if plugins is not None and isinstance(plugins.value, list) else []
    fused = found.take("liger_fused_linear_cross_entropy")
    if fused is not None and as_bool(fused) and any("liger" in str(name).lower() for name in names):
        found.put("use_liger_kernel", True, fused)
    elif plugins is not None and any("cut_cross_entropy" in str(name).lower() for name in names):
        found.put("use_liger_kernel", True, plugins)
    found.drop("liger_rope", "liger_rms_norm", "liger_glu_activation", "liger_layer_norm", "liger_cross_entropy")


def _half(raw: LayeredSettings) -> dict[str, Setting]:
    """Weights are loaded in the type of computation: bf16 unless fp16 or neither is asked for (``utils/config``)."""
    bf16 = raw.find("bf16", "bfloat16") or Setting(value="auto", origin="axolotl's default bf16: auto", written=False)
    fp16 = raw.find("fp16", "float16")
    if as_bool(bf16) or (as_word(bf16) == "auto" and not as_bool(fp16)):
        return {"bf16": replace(bf16, value=True), "fp16": replace(bf16, value=False), "dtype": _loaded("bfloat16")}
    if fp16 is not None and as_bool(fp16):
        return {"bf16": replace(fp16, value=False), "fp16": replace(fp16, value=True), "dtype": _loaded("float16")}
    return {
        "bf16": replace(bf16, value=False),
        "dtype": _loaded("float16" if raw.is_true("load_in_8bit") else "float32"),
    }


def _loaded(kind: str) -> Setting:
    return Setting(value=kind, origin=f"axolotl loads weights in {kind} then", written=False)


def _accumulation(raw: LayeredSettings) -> dict[str, Setting]:
    """``batch_size`` counts the sequences of a rank's step, and is no micro-batch."""
    total, micro = raw.find("batch_size"), as_int(raw.find("micro_batch_size"))
    if total is None:
        return {}
    steps = (as_int(total) or 0) // micro if micro else 0
    nothing = Setting(value=None, origin=total.origin)
    return {
        "batch_size": nothing,
        "gradient_accumulation_steps": replace(total, value=steps) if steps else nothing,
    }


def _quantization(raw: LayeredSettings) -> dict[str, Setting]:
    """QLoRA is in 4 bits, quantized twice (``loaders/model.py``)."""
    adapter, kind = raw.find("adapter"), raw.find("peft.weight_dtype")
    if adapter is not None and kind is not None:  # whichever backend: torchao has scales of 8 or 16 bits
        bits = "load_in_8bit" if as_word(kind) == "int8" else "load_in_4bit"
        return {bits: replace(kind, value=True), "bnb_4bit_use_double_quant": replace(kind, value=True)}
    if adapter is None or as_word(adapter) != "qlora":
        return {}
    by_default = Setting(value=True, origin="axolotl's default for qlora", written=False)
    double = raw.find("bnb_config_kwargs.bnb_4bit_use_double_quant") or by_default
    return {"load_in_4bit": replace(adapter, value=True), "bnb_4bit_use_double_quant": double}


def _method(settings: LayeredSettings) -> str | None:
    if settings.is_true("reward_model"):
        return "reward"
    kind = settings.find("rl")
    if kind is not None and as_word(kind) in ("dpo", "ipo", "simpo"):
        return "dpo"
    return as_word(kind) if kind is not None else None
