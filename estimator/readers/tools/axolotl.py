"""axolotl: its YAML and the overrides of ``axolotl train cfg.yml --micro-batch-size 4``.

Names and meanings: ``src/axolotl/utils/schemas`` and ``utils/config`` of axolotl 0.12 and later. It trains with
transformers' Trainer and accelerate.
"""

from ..accelerate_env import accelerate_layers
from ..evidence import JobReading
from ..program import Program
from ..settings import Layer, Setting, Settings, as_bool, as_word
from ..trainer_program import read_trainer
from ..versions import transformers_defaults
from .layers import tool_layers
from .translation import Translation, uses_deepspeed

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
_NOT_FOR_MEMORY = ("lora_model_dir", "lora_modules_to_save_kwargs", "save_first_step", "lora_on_cpu", "gptq")


def read(program: Program) -> JobReading:
    """The job of an axolotl configuration."""
    layers, accelerate = [], []
    for layer in tool_layers(program, "config", written=("debug.log",)):
        translation = _translate(layer)
        layers.append(translation.layer)
        accelerate.append(translation.other)
    defaults = {
        **transformers_defaults(program.versions),
        "micro_batch_size": Setting(value=1, origin="axolotl's default", written=False),
        "max_length": Setting(value=512, origin="axolotl's default sequence_len", written=False),
        "dtype": _weights(Settings(*layers)),
    }
    return read_trainer(
        program,
        [*layers, defaults],
        [*accelerate, uses_deepspeed(Settings(*layers)), *accelerate_layers(program, {})],
        method=_method(Settings(*layers)),
    )


def _translate(layer: Layer) -> Translation:
    found = Translation(layer)
    found.rename(_RENAMED)
    found.rename(_ACCELERATE, other=True)
    found.drop(*_NOT_FOR_MEMORY)
    adapter = found.take("adapter")
    if adapter is not None and as_word(adapter) in ("lora", "qlora"):
        found.put("use_peft", True, adapter)
    if adapter is not None and as_word(adapter) == "qlora":
        found.put("load_in_4bit", True, adapter)
    linear = found.take("lora_target_linear")
    if as_bool(linear) and linear is not None:
        found.put("lora_target_modules", "all-linear", linear)
    _attention(found)
    _checkpointing(found)
    _loss(found)
    bf16 = found.take("bf16", "bfloat16")
    if bf16 is not None:
        found.put("bf16", as_word(bf16) == "auto" or as_bool(bf16), bf16)
    fp16 = found.take("fp16", "float16")
    if fp16 is not None:
        found.put("fp16", as_bool(fp16), fp16)
    nested = {name.partition(".")[2]: name for name in list(found.layer) if name.startswith("fsdp_config.")}
    for inner, name in nested.items():
        found.rename({name: inner if inner.startswith("fsdp_") else f"fsdp_{inner}"}, other=True)
    words = found.take("fsdp")
    if words is not None and words.value:
        found.put("use_fsdp", True, words, other=True)
    return found


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


def _weights(settings: Settings) -> Setting:
    """Axolotl loads weights in the type it computes in (``utils/config``: ``torch_dtype``)."""
    for name, kind in (("bf16", "bfloat16"), ("fp16", "float16")):
        if settings.flag(name):
            return Setting(value=kind, origin=f"axolotl loads weights in {kind} when {name} is on", written=False)
    return Setting(value="float32", origin="axolotl loads weights in fp32 unless bf16 or fp16 is on", written=False)


def _method(settings: Settings) -> str | None:
    kind = settings.find("rl")
    if kind is not None and as_word(kind) in ("dpo", "ipo", "simpo"):
        return "dpo"
    return as_word(kind) if kind is not None else None
