"""LLaMA-Factory: its YAML and the overrides of ``llamafactory-cli train x.yaml cutoff_len=4096``.

Names and meanings: ``src/llamafactory/hparams`` of LLaMA-Factory 0.9. It trains with transformers' Trainer.
"""

from ..program.accelerate_env import accelerate_layers
from ..program.program import Program
from ..program.ranks import processes_per_node
from ..source.evidence import MODEL_STATES, FindingCollector, JobReading
from ..source.settings import LayeredSettings, Setting, SettingsLayer, as_bool, as_int, as_word
from ..source.versions import transformers_defaults
from ..trainer.trainer_program import read_trainer
from .shared.merged_settings import tool_layers
from .shared.translation import Translation, uses_deepspeed

_ATTENTION = {"disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2", "fa3": "flash_attention_3"}
_V1 = ("peft_config", "dist_config", "quant_config", "optim_config", "kernel_config")
_TASKS = {"rm": "sequence-classification"}
_NOT_FOR_MEMORY = ("lora_alpha", "lora_dropout", "quantization_method", "loraplus_lr_ratio", "low_cpu_mem_usage")


def read(program: Program) -> JobReading:
    """The job of a LLaMA-Factory configuration."""
    layers = tool_layers(program, "config")
    raw = LayeredSettings(*layers)
    kind = raw.find("finetuning_type")
    lora = kind is None or as_word(kind) == "lora"
    translated = [_translate(layer, program.findings) for layer in layers]
    if program.environ.get("USE_V1") == "1" or any(name.startswith(_V1) for layer in layers for name in layer):
        program.findings.warn(
            "LLaMA-Factory's v1 names (peft_config, dist_config, quant_config) are read in part only."
        )
        program.findings.add_uncertainty("either", *MODEL_STATES, "activations")
    if kind is not None and as_word(kind) not in ("lora", "full"):
        program.findings.warn(f"{kind.origin}: {kind.value} is counted as training all weights.")
        program.findings.add_uncertainty("less", "gradients", "optimizer")
    stage = as_word(raw.find("stage"))
    if stage == "ppo":
        program.findings.warn("PPO's reference, reward and value models are not counted, nor is the text it generates.")
        program.findings.add_uncertainty("more", "weights", "activations")
    defaults = {
        **transformers_defaults(program.versions),
        **_own_defaults(lora=lora),
        "use_peft": _use_peft(kind, lora=lora),
        "dtype": _weights(raw, lora=lora),
    }
    quantized = _quantization(raw, program.findings)
    return read_trainer(
        program,
        [*translated, quantized, defaults],
        [uses_deepspeed(raw), processes_per_node(program.environ), *accelerate_layers(program, {})],
        method="reward" if stage == "rm" else stage if stage in ("dpo", "kto") else None,
    )


def _translate(layer: SettingsLayer, findings: FindingCollector) -> dict[str, Setting]:
    found = Translation(layer)
    found.rename({"enable_liger_kernel": "use_liger_kernel", "cutoff_len": "max_length"})
    found.drop("finetuning_type", "quantization_bit", "double_quantization", "bnb_4bit_quant_type", *_NOT_FOR_MEMORY)
    off = found.take("disable_gradient_checkpointing")
    if off is not None:
        found.put("activation_checkpointing", not as_bool(off), off)
    unsloth = found.take("use_unsloth_gc")
    if unsloth is not None and as_bool(unsloth):
        found.put("activation_offloading", True, unsloth)
    attention = found.take("flash_attn")
    if attention is not None and as_word(attention) in _ATTENTION:
        found.put("attn_implementation", _ATTENTION[as_word(attention) or ""], attention)
    rank = found.take("lora_rank")
    if rank is not None:
        found.put("lora_r", rank.value, rank)
    pure = found.take("pure_bf16")
    if pure is not None and as_bool(pure):
        found.put("bf16", False, pure)
    for name in ("use_galore", "use_apollo", "use_badam", "use_adam_mini"):
        setting = found.take(name)
        found.drop(*(each for each in list(found.layer) if each.startswith(f"{name.removeprefix('use_')}_")))
        if setting is not None and as_bool(setting):
            sentence = f"{setting.origin}: that optimizer's states are counted as AdamW's."
            findings.mark_uncertain("training.optimizer", sentence, direction="less")
            findings.add_uncertainty("less", "gradients")
    muon = found.take("use_muon")
    if muon is not None and as_bool(muon):
        found.put("optim", "muon", muon)
    return found.layer


def _own_defaults(*, lora: bool) -> dict[str, Setting]:
    values: dict[str, object] = {"max_length": 2048, "activation_checkpointing": True}
    if lora:
        values |= {"lora_r": 8, "lora_target_modules": "all-linear"}
    return {
        name: Setting(value=value, origin="LLaMA-Factory's default", written=False) for name, value in values.items()
    }


def _use_peft(kind: Setting | None, *, lora: bool) -> Setting:
    if kind is None:
        return Setting(value=True, origin="LLaMA-Factory's default finetuning_type lora", written=False)
    return Setting(value=lora, origin=kind.origin)


def _weights(raw: LayeredSettings, *, lora: bool) -> Setting:
    """Weights are loaded in the type of computation; trained ones are cast to fp32 unless ``pure_bf16`` is on.

    Source: ``model/model_utils/misc.py`` and ``hparams/parser.py``.
    """
    if raw.is_true("pure_bf16"):
        return Setting(value="bfloat16", origin="pure_bf16", written=False)
    for name, kind in (("bf16", "bfloat16"), ("fp16", "float16")):
        if raw.is_true(name):
            low = Setting(value=kind, origin=f"LLaMA-Factory loads frozen weights in {kind}", written=False)
            full = Setting(value="float32", origin="LLaMA-Factory casts trained weights to fp32", written=False)
            return low if lora else full
    return Setting(value="auto", origin="LLaMA-Factory loads weights as stored", written=False)


def _quantization(raw: LayeredSettings, findings: FindingCollector) -> dict[str, Setting]:
    """Bitsandbytes quantization of the frozen weights; double by default."""
    bits = raw.find("quantization_bit")
    if bits is None:
        return {}
    method = raw.find("quantization_method")
    if method is not None and as_word(method) not in ("bnb", "bitsandbytes"):
        sentence = f"{method.origin}: weights quantized by {method.value} are counted as bitsandbytes stores them."
        findings.mark_uncertain("lora.quantization", sentence)
    number = as_int(bits)
    if number == 8:
        return {"load_in_8bit": Setting(value=True, origin=bits.origin)}
    if number != 4:
        findings.mark_uncertain(
            "lora.quantization", f"{bits.origin}: {bits.value} bits are not known here; 4 are counted."
        )
    double = raw.find("double_quantization")
    twice = Setting(value=True, origin="LLaMA-Factory's default double_quantization", written=False)
    return {
        "load_in_4bit": Setting(value=True, origin=bits.origin),
        "bnb_4bit_use_double_quant": double if double is not None and as_bool(double) is not None else twice,
    }
