"""ms-swift: the flags of ``swift sft --model X ...``, its YAML, and the ``args.json`` it writes.

Names and meanings: ``swift/arguments`` of ms-swift 4. It trains with transformers' Trainer.
"""

from ..program.accelerate_env import accelerate_layers
from ..program.program import Program
from ..program.ranks import processes_per_node, visible_gpus
from ..source.evidence import MODEL_STATES, Finding, FindingCollector, JobReading
from ..source.settings import LayeredSettings, Setting, SettingsLayer, as_bool, as_int, as_word
from ..source.versions import transformers_defaults
from ..trainer.model_facts import known_config
from ..trainer.trainer_program import read_trainer
from ..trainer.transformers_args import PAIRS
from .shared.merged_settings import tool_layers
from .shared.translation import Translation, uses_deepspeed

_ATTENTION = {
    "flash_attn": "flash_attention_2",
    "flash_attention_2": "flash_attention_2",
    "flash_attention_3": "flash_attention_3",
    "sdpa": "sdpa",
    "eager": "eager",
}
_ZERO = {"zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3, "zero2_offload": 2, "zero3_offload": 3}
_FSDP2 = "fsdp2"


def read(program: Program) -> JobReading:
    """The job of an ms-swift command line or configuration."""
    layers = tool_layers(program, "config", written=("args.json", "*/args.json"))
    raw = LayeredSettings(*layers)
    kind = raw.find("tuner_type", "train_type")
    lora = kind is None or as_word(kind) in ("lora", "longlora", "adalora")
    if kind is not None and not lora and as_word(kind) != "full":
        program.findings.warn(f"{kind.origin}: {kind.value} is counted as training all weights.")
        program.findings.add_uncertainty("less", "gradients", "optimizer")
    translated = [_translate(layer) for layer in layers]
    peft = Setting(
        value=lora,
        origin=kind.origin if kind is not None else "ms-swift's default tuner_type lora",
        written=kind is not None,
    )
    defaults = {**transformers_defaults(program.versions), **_own_defaults(lora=lora), "use_peft": peft}
    if raw.find("gradient_accumulation_steps") is None:
        # examples, each of which is two sequences in preference pairs
        sequences = 32 if _method(raw) in PAIRS else 16
        program.findings.put_global_batch(sequences, "ms-swift's default of 16 a step", written=False, rounds_up=True)
    return read_trainer(
        program,
        [*translated, _quantization(raw, program.findings), defaults | _half(program, raw, lora=lora)],
        [_deepspeed(raw), _fsdp(raw), _dimensions(raw), _processes(program), *accelerate_layers(program, {})],
        method=_method(raw),
    )


def _translate(layer: SettingsLayer) -> dict[str, Setting]:
    found = Translation(layer)
    found.rename({"model": "model_name_or_path", "lora_rank": "lora_r", "target_modules": "lora_target_modules"})
    found.drop("tuner_type", "train_type", "lora_alpha", "lora_dropout", "vit_gradient_checkpointing", "lora_bias")
    found.drop("sequence_parallel_size", "deepspeed_autotp_size", "lora_dtype", "lora_dropout_p", "lorap_lr_ratio")
    found.drop("quant_method", "quant_bits", "bnb_4bit_use_double_quant", "bnb_4bit_quant_type")
    attention = found.take("attn_impl")
    if attention is not None:
        name = str(attention.value)
        found.put("attn_implementation", _ATTENTION.get(name, name), attention)
    if (named := found.layer.get("deepspeed")) is not None and str(named.value) in _ZERO:
        found.take("deepspeed")
    if (shipped := found.layer.get("fsdp")) is not None and shipped.value == _FSDP2:
        found.take("fsdp")
    return found.layer


def _quantization(raw: LayeredSettings, findings: FindingCollector) -> dict[str, Setting]:
    """Weights are quantized as they are loaded where ``quant_method`` says by whom (``quant_args.py``)."""
    method, bits = raw.find("quant_method"), raw.find("quant_bits")
    if method is None:
        if bits is not None:
            findings.warn(f"{bits.origin} has no effect without quant_method.")
        return {}
    if as_word(method) != "bnb" or as_int(bits) not in (4, 8):
        sentence = f"{method.origin}: weights quantized by {method.value} are counted as bitsandbytes stores them."
        findings.mark_uncertain("lora.quantization", sentence)
    if bits is not None and as_int(bits) == 8:
        return {"load_in_8bit": Setting(value=True, origin=bits.origin)}
    double = raw.find("bnb_4bit_use_double_quant")
    default = Setting(value=True, origin="ms-swift's default bnb_4bit_use_double_quant", written=False)
    origin = (bits or method).origin
    return {"load_in_4bit": Setting(value=True, origin=origin), "bnb_4bit_use_double_quant": double or default}


def _processes(program: Program) -> dict[str, Setting]:
    """One process, which spreads the model's layers over all GPUs it sees, unless NPROC_PER_NODE asks for more."""
    if program.config_file is not None or not {"accelerate", "torchrun"}.isdisjoint(program.launcher.launchers):
        return {}
    if told := processes_per_node(program.environ):
        return told
    visible = visible_gpus(program.environ)
    if "tool" in program.launcher.launchers and "RANK" not in program.environ and (as_int(visible) or 1) > 1:
        program.findings.warn(
            "ms-swift's one process spreads the layers over several GPUs; one is counted to hold all."
        )
        program.findings.add_uncertainty("less", *MODEL_STATES, "activations")
    return {"num_processes": Setting(value=1, origin="ms-swift starts one process", written=False)}


def _own_defaults(*, lora: bool) -> dict[str, Setting]:
    values: dict[str, object] = {"per_device_train_batch_size": 1, "activation_checkpointing": True}
    if lora:
        values |= {"lora_r": 8, "lora_target_modules": "all-linear"}
    return {name: Setting(value=value, origin="ms-swift's default", written=False) for name, value in values.items()}


def _half(program: Program, raw: LayeredSettings, *, lora: bool) -> dict[str, Setting]:
    """Weights in ``torch_dtype``, else as stored, else bf16; arithmetic in bf16 then, in fp16 for any other type.

    Fully trained weights in fp16 are cast to fp32 (``swift/arguments``: ``_init_mixed_precision``), those in bf16 not.
    """
    said = raw.find("torch_dtype")
    origin = said.origin if said is not None else "ms-swift's usual torch_dtype"
    word = as_word(said) if said is not None else "bfloat16"
    model = raw.find("model")
    if said is None and model is not None:
        name = Finding(key="model.id", value=str(model.value), origin=model.origin, written=True)
        config = known_config(name, program.environ)
        if config is not None and (stored := config.get("dtype") or config.get("torch_dtype")):
            word, origin = as_word(Setting(value=stored, origin="")), f"the model's config says {stored}"
    if word in ("bfloat16", "bf16"):
        return {"bf16": Setting(value=True, origin=origin, written=False), "dtype": _dtype("bfloat16", origin)}
    loaded = "float16" if lora and word in ("float16", "fp16") else "float32"
    return {"fp16": Setting(value=True, origin=origin, written=False), "dtype": _dtype(loaded, origin)}


def _dtype(kind: str, origin: str) -> Setting:
    return Setting(value=kind, origin=origin, written=False)


def _deepspeed(raw: LayeredSettings) -> dict[str, Setting]:
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


def _fsdp(raw: LayeredSettings) -> dict[str, Setting]:
    """``--fsdp fsdp2`` names the configuration that ms-swift ships (``swift/config/fsdp2.json``)."""
    named = raw.find("fsdp")
    if named is None or named.value != _FSDP2:
        return {}
    values = {
        "use_fsdp": True,
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": True,
        "fsdp_activation_checkpointing": True,
    }
    return {name: Setting(value=value, origin=named.origin) for name, value in values.items()}


def _dimensions(raw: LayeredSettings) -> dict[str, Setting]:
    sizes = {"sequence_parallel_size": "cp", "deepspeed_autotp_size": "tp"}
    found = {f"parallelism_config_{short}_size": raw.find(name) for name, short in sizes.items()}
    return {name: setting for name, setting in found.items() if setting is not None}


def _method(raw: LayeredSettings) -> str | None:
    kind = raw.find("rlhf_type")
    if kind is not None and as_bool(kind) is None:
        return as_word(kind)
    return None
