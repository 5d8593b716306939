"""The precision of a job: from the type of the weights and from mixed precision, wherever each is asked for."""

from ..source.evidence import FindingCollector
from ..source.settings import LayeredSettings, Setting, as_bool, as_word
from .transformers_args import Arguments

WEIGHT_TYPES = {
    **dict.fromkeys(("bfloat16", "bf16"), "bf16"),
    **dict.fromkeys(("float16", "fp16", "half"), "fp16"),
    **dict.fromkeys(("float32", "fp32", "float"), "fp32"),
}


def read_precision(
    arguments: Arguments, *, fsdp: bool, lora: bool, stored: Setting | None, findings: FindingCollector
) -> None:
    """Put ``training.precision``, and ``parallel.reduce_dtype`` for FSDP.

    Args:
        arguments: what is known of the program.
        fsdp: whether FSDP shards.
        lora: whether only adapters are trained.
        stored: the type that the model's config names, where the config can be read.
        findings: where it is put.
    """
    mixed = mixed_precision(arguments, findings)
    weights = _weights(arguments, stored, findings)
    kind = as_word(mixed) if mixed is not None else None
    written = any(part is not None and part.written for part in (mixed, weights))
    where = _where(mixed, weights)
    if kind == "fp8":
        findings.warn(f"fp8 ({mixed.origin if mixed else ''}) is counted as bf16 mixed precision.")
        findings.add_uncertainty("more", "weights", unless="training.precision")  # copies in 8 bits
        findings.add_uncertainty("less", "activations", unless="training.precision")
        kind = "bf16"
    if kind in ("bf16", "fp16") and (arguments.deepspeed is not None or (fsdp and not lora)):
        keeper = "DeepSpeed" if arguments.deepspeed is not None else "FSDP under accelerate"
        origin = f"{mixed.origin}; {keeper} keeps trained weights in fp32 besides" if mixed else keeper
        findings.put("training.precision", f"{kind}-mixed", origin, written=mixed is not None and mixed.written)
    elif weights is not None and weights.value in ("bf16", "fp16"):
        findings.put("training.precision", weights.value, where, written=written)
    elif weights is not None or kind is not None:
        precision = f"{kind}-mixed" if kind in ("bf16", "fp16") else "fp32"
        findings.put("training.precision", precision, where, written=written)
    if fsdp and kind in ("bf16", "fp16") and mixed is not None:
        origin = f"accelerate reduces FSDP's gradients in the type of {mixed.origin}"
        findings.put("parallel.reduce_dtype", kind, origin, written=False)


def mixed_precision(arguments: Arguments, findings: FindingCollector) -> Setting | None:
    """``bf16``, ``fp16``, ``fp8`` or ``no``; None where nothing is said.

    DeepSpeed's file decides, then TrainingArguments, then accelerate: the trainer ignores accelerate's choice when it
    has one of its own.
    """
    own_file = _own_file(arguments)
    from_file = own_file.find("mixed_precision") if own_file is not None else None
    if from_file is not None:
        return from_file
    for name in ("bf16", "fp16"):
        flag = arguments.settings.find(name)
        if flag is not None and as_bool(flag):
            return Setting(value=name, origin=flag.origin, written=flag.written)
    chosen = arguments.accelerate.find("mixed_precision")
    default = arguments.settings.find("bf16_unless_fp16")
    off = arguments.settings.find("bf16")
    if default is not None and (off is None or as_bool(off) is None):
        return Setting(value="bf16", origin=default.origin, written=False)
    if off is not None and as_bool(off) is False and (chosen is None or as_word(chosen) == "no"):
        return Setting(value="no", origin=off.origin)
    if chosen is not None and as_word(chosen) not in ("no", "fp16", "bf16", "fp8"):
        findings.mark_uncertain(
            "training.precision", f"{chosen.origin}: mixed precision {chosen.value!r} is not known."
        )
        return None
    return chosen


def _own_file(arguments: Arguments) -> LayeredSettings | None:
    """DeepSpeed's settings when they come from its own JSON rather than from accelerate's flags."""
    return arguments.deepspeed if arguments.deepspeed is not arguments.accelerate else None


def _weights(arguments: Arguments, stored: Setting | None, findings: FindingCollector) -> Setting | None:
    """The type in which the weights are loaded; its value is ``bf16``, ``fp16`` or ``fp32``."""
    setting = arguments.settings.find("dtype", "torch_dtype", "model_dtype")
    if setting is None:
        return None
    word = as_word(setting) or ""
    if word in WEIGHT_TYPES:
        return Setting(value=WEIGHT_TYPES[word], origin=setting.origin, written=setting.written)
    if word != "auto":
        findings.mark_uncertain(
            "training.precision", f"{setting.origin}: weights in {setting.value!r} are not known here."
        )
        return None
    if stored is not None and (as_word(stored) or "") in WEIGHT_TYPES:
        kind = WEIGHT_TYPES[as_word(stored) or ""]
        return Setting(value=kind, origin=f"dtype=auto ({setting.origin}), {stored.origin}", written=False)
    origin = f"dtype=auto ({setting.origin}), and the model's config is not here; bf16 inferred"
    return Setting(value="bf16", origin=origin, written=False)


def _where(mixed: Setting | None, weights: Setting | None) -> str:
    parts = [mixed.origin] if mixed is not None else []
    if weights is not None:
        parts.append(f"weights in {weights.value} ({weights.origin})")
    return "; ".join(parts)
