"""ms-swift: the flags of ``swift sft --model X ...``, its YAML, and the ``args.json`` it writes.

Names and meanings: ``swift/arguments`` of ms-swift 4. It trains with transformers' Trainer.
"""

from ..accelerate_env import accelerate_layers
from ..evidence import JobReading
from ..program import Program
from ..settings import Layer, Setting, Settings, as_bool, as_int, as_word
from ..trainer_program import read_trainer
from ..versions import transformers_defaults
from .layers import tool_layers
from .translation import Translation, uses_deepspeed

_ATTENTION = {
    "flash_attn": "flash_attention_2",
    "flash_attention_2": "flash_attention_2",
    "flash_attention_3": "flash_attention_3",
    "sdpa": "sdpa",
    "eager": "eager",
}
_ZERO = {"zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3, "zero2_offload": 2, "zero3_offload": 3}


def read(program: Program) -> JobReading:
    """The job of an ms-swift command line or configuration."""
    layers = tool_layers(program, "config", written=("args.json", "*/args.json"))
    raw = Settings(*layers)
    kind = raw.find("tuner_type", "train_type")
    lora = kind is None or as_word(kind) in ("lora", "longlora", "adalora")
    translated = [_translate(layer) for layer in layers]
    peft = Setting(
        value=lora,
        origin=kind.origin if kind is not None else "ms-swift's default tuner_type lora",
        written=kind is not None,
    )
    defaults = {**transformers_defaults(program.versions), **_own_defaults(lora=lora), "use_peft": peft}
    defaults |= _half(raw, lora=lora)
    return read_trainer(
        program,
        [*translated, defaults],
        [_deepspeed(raw), _sequence(raw), *accelerate_layers(program, {})],
        method=_method(raw),
    )


def _translate(layer: Layer) -> dict[str, Setting]:
    found = Translation(layer)
    found.rename({"model": "model_name_or_path", "lora_rank": "lora_r", "target_modules": "lora_target_modules"})
    found.drop("tuner_type", "train_type", "lora_alpha", "lora_dropout", "vit_gradient_checkpointing", "lora_bias")
    found.drop("sequence_parallel_size", "lora_dtype", "lora_dropout_p", "lorap_lr_ratio", "quant_method")
    attention = found.take("attn_impl")
    if attention is not None:
        name = str(attention.value)
        found.put("attn_implementation", _ATTENTION.get(name, name), attention)
    bits = found.take("quant_bits")
    if bits is not None and as_int(bits) in (4, 8):
        found.put(f"load_in_{as_int(bits)}bit", True, bits)
        if as_int(bits) == 4:
            double = found.take("bnb_4bit_use_double_quant")
            found.put("bnb_4bit_use_double_quant", double.value if double is not None else True, double or bits)
    if (named := found.layer.get("deepspeed")) is not None and str(named.value) in _ZERO:
        found.take("deepspeed")
    return found.layer


def _own_defaults(*, lora: bool) -> dict[str, Setting]:
    values: dict[str, object] = {"per_device_train_batch_size": 1, "activation_checkpointing": True}
    if lora:
        values |= {"lora_r": 8, "lora_target_modules": "all-linear"}
    return {name: Setting(value=value, origin="ms-swift's default", written=False) for name, value in values.items()}


def _half(raw: Settings, *, lora: bool) -> dict[str, Setting]:
    """Weights in ``torch_dtype``, else as stored; bf16 or fp16 arithmetic follows from it, bf16 where nothing is said.

    Fully trained weights in fp16 are cast to fp32 (``swift/arguments``), those in bf16 are not.
    """
    said = raw.find("torch_dtype")
    word = as_word(said) if said is not None else "bfloat16"
    origin = said.origin if said is not None else "ms-swift's usual torch_dtype"
    if word in ("bfloat16", "bf16"):
        return {"bf16": Setting(value=True, origin=origin, written=False), "dtype": _dtype("bfloat16", origin)}
    if word in ("float16", "fp16"):
        loaded = "float16" if lora else "float32"
        return {"fp16": Setting(value=True, origin=origin, written=False), "dtype": _dtype(loaded, origin)}
    return {"dtype": _dtype("float32", origin)}


def _dtype(kind: str, origin: str) -> Setting:
    return Setting(value=kind, origin=origin, written=False)


def _deepspeed(raw: Settings) -> dict[str, Setting]:
    """``--deepspeed zero2`` names a configuration that ms-swift ships; anything else is a file or JSON."""
    named = raw.find("deepspeed")
    if named is None:
        return {}
    layer = uses_deepspeed(raw)
    if str(named.value) in _ZERO:
        layer["zero_stage"] = Setting(value=_ZERO[str(named.value)], origin=named.origin)
        if str(named.value).endswith("_offload"):
            layer["offload_optimizer_device"] = Setting(value="cpu", origin=named.origin)
            if str(named.value) == "zero3_offload":
                layer["offload_param_device"] = Setting(value="cpu", origin=named.origin)
        half = "fp16" if as_word(raw.find("torch_dtype")) in ("float16", "fp16") else "bf16"
        layer["mixed_precision"] = Setting(value=half, origin=f"{named.origin}: follows the trainer", written=False)
    return layer


def _sequence(raw: Settings) -> dict[str, Setting]:
    size = raw.find("sequence_parallel_size")
    return {} if size is None else {"parallelism_config_cp_size": size}


def _method(raw: Settings) -> str | None:
    kind = raw.find("rlhf_type")
    if kind is not None and as_bool(kind) is None:
        return as_word(kind)
    return None
