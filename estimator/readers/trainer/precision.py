"""A job's precision, from the dtype of its weights and from mixed precision, wherever each is set."""

from collections.abc import Mapping
from typing import Any

from ...common.library_versions import older
from ...job.rules.strategies import DTYPE_NAMES, HALF
from ...job.settled import trainer_precision
from ..source.evidence import FindingCollector
from ..source.settings import Setting, as_bool, as_word
from ..source.versions import framework_with_version
from .trained_model import stored_dtype
from .trainer_inputs import TrainerInputs

_DTYPES = ("dtype", "torch_dtype", "model_dtype")


def read_precision(
    inputs: TrainerInputs, *, lora: bool, config: Mapping[str, Any] | None, findings: FindingCollector
) -> None:
    """Record ``training.precision``, and ``parallel.reduce_dtype`` for FSDP.

    Args:
        inputs: everything known about the program.
        lora: whether only adapters are trained.
        config: the model's config, where it can be read.
        findings: collects what is read.
    """
    mixed = mixed_precision(inputs, findings)
    kind = _counted_kind(mixed, findings)
    fsdp, deepspeed = inputs.fsdp is not None, inputs.deepspeed is not None
    upcasts = fsdp and not older(inputs.versions.get("accelerate"), 0, 30)  # its pull request 2674
    inputs.settings.find(*_DTYPES)  # of which nothing is left where weights are kept in fp32
    if mixed is not None and kind in HALF and (deepspeed or (upcasts and not lora)):
        library = "DeepSpeed" if deepspeed else "FSDP under accelerate"
        origin = f"{mixed.origin}; {library} also keeps trained weights in fp32"
        findings.record("training.precision", f"{kind}-mixed", origin, written=mixed.written)
    elif (weights := _weights(inputs, config, findings)) is not None or kind is not None:
        if findings.get("lora.quantization") is not None and weights is not None and weights.value in HALF:
            weights = weights.with_value(kind if kind in HALF else weights.value)  # as wide, and no copies are kept
        precision = trainer_precision(None if weights is None else weights.value, kind, keeps_fp32=False)
        written = any(part is not None and part.written for part in (mixed, weights))
        findings.record("training.precision", precision, _origin(mixed, weights), written=written)
        if lora and mixed is not None and kind in HALF and precision in HALF and not fsdp:
            findings.record("lora.autocast", True, f"{mixed.origin}: autocast", written=mixed.written)
        if mixed is not None and {kind, precision} == set(HALF) and findings.get("lora.quantization") is None:
            sentence = f"{mixed.origin} computes in {kind}, and the weights are {precision}: autocast may keep a copy."
            findings.doubt(sentence, "more", "weights", unless="training.precision")
    elif findings.get("training.precision") is None:
        sentence = "The dtype of the weights is not set; they are counted as the checkpoint stores them."
        findings.mark_uncertain("training.precision", sentence, direction="more")
    if mixed is not None and kind in HALF and fsdp:
        origin = f"accelerate reduces FSDP's gradients in the type of {mixed.origin}"
        findings.infer("parallel.reduce_dtype", kind, origin)


def mixed_precision(inputs: TrainerInputs, findings: FindingCollector) -> Setting | None:
    """Return ``bf16``, ``fp16``, ``fp8`` or ``no``; None if it is set nowhere.

    DeepSpeed's file decides where it speaks of the type, then TrainingArguments, then accelerate: the trainer ignores
    accelerate's choice when it has one of its own.
    """
    asked = _asked(inputs, findings)
    file = inputs.deepspeed if inputs.deepspeed is not inputs.accelerate else None  # rather than accelerate's flags
    from_file = file.find("mixed_precision") if file is not None else None
    if file is None or from_file is None:
        return asked
    own_loop = inputs.accelerate.is_true("script_own_loop") and inputs.accelerate.find("mixed_precision") is None
    if own_loop:
        return from_file
    return _with_what_accelerate_adds(from_file, asked, file.find("precision_sections"), findings)


def _with_what_accelerate_adds(
    from_file: Setting, asked: Setting | None, named: Setting | None, findings: FindingCollector
) -> Setting:
    """Return the precision that accelerate leaves in DeepSpeed's configuration.

    It adds the sections ``bf16`` and ``fp16`` that are absent, on where they are asked for and off otherwise
    (``DeepSpeedPlugin.set_mixed_precision`` in accelerate/utils/dataclasses.py), so that an older name counts nowhere.
    """
    sections = named.value if named is not None else ()
    wanted = as_word(asked) or "no"
    kind = "bf16" if wanted == "fp8" else wanted
    by_old_name = from_file.value == "bf16" and "bf16" not in sections
    if asked is not None and kind in HALF and kind not in sections and (by_old_name or from_file.value == "no"):
        return asked
    if by_old_name:
        return Setting.default("no", f"{from_file.origin}, an old setting that accelerate treats as bf16: false")
    if asked is not None and kind in HALF and kind != from_file.value:
        sentence = (
            f"{asked.origin} contradicts {from_file.origin}, which is used here; transformers rejects this combination."
        )
        findings.mark_uncertain("training.precision", sentence)
    return from_file


def _asked(inputs: TrainerInputs, findings: FindingCollector) -> Setting | None:
    """Return what TrainingArguments ask for, else accelerate."""
    for name in HALF:
        if (flag := inputs.settings.find_true(name)) is not None:
            return flag.with_value(name)
    chosen = inputs.accelerate.find("mixed_precision")
    default = inputs.settings.find("bf16_unless_fp16")
    bf16 = inputs.settings.find("bf16")
    if default is not None and as_bool(bf16) is None:
        return Setting.default("bf16", default.origin)
    if bf16 is not None and as_bool(bf16) is False and (chosen is None or as_word(chosen) == "no"):
        return Setting(value="no", origin=bf16.origin)
    if chosen is not None and as_word(chosen) not in ("no", "fp8", *HALF):
        sentence = f"{chosen.origin}: mixed precision {chosen.value!r} is not known."
        findings.mark_uncertain("training.precision", sentence)
        return None
    return chosen


def _counted_kind(mixed: Setting | None, findings: FindingCollector) -> str | None:
    """Return the mixed precision that is counted: bf16 for fp8, whose 8-bit copies are uncertain."""
    kind = as_word(mixed) if mixed is not None else None
    if mixed is None or kind != "fp8":
        return kind
    sentence = f"fp8 ({mixed.origin}) is counted as bf16 mixed precision."
    findings.doubt(sentence, "more", "weights", unless="training.precision")  # copies in 8 bits
    findings.add_uncertainty("less", "activations", unless="training.precision")
    return "bf16"


def _weights(inputs: TrainerInputs, config: Mapping[str, Any] | None, findings: FindingCollector) -> Setting | None:
    """Return the dtype in which the weights are loaded: ``bf16``, ``fp16`` or ``fp32``."""
    stored = stored_dtype(config)
    setting = inputs.settings.find(*_DTYPES)
    if setting is None:
        return None
    word = as_word(setting) or ""
    known = DTYPE_NAMES.get(as_word(stored) or "")
    quantized = findings.get("lora.quantization") is not None  # what is not has 16 bits in any version
    by_version = setting.origin == f"default of {framework_with_version('transformers', inputs.versions)}"
    remote = inputs.settings.find("script_remote_code")
    if by_version and remote is not None and word != "auto" and (config is None or "auto_map" in config):
        sentence = f"{remote.origin}: the model's own code may set its dtype; the weights are counted as stored."
        findings.mark_uncertain("training.precision", sentence, direction="more")
        word = "auto"
    if quantized and by_version and word == "float32":  # transformers 4: quantizer_bnb_4bit.py, update_torch_dtype
        return Setting.default("fp16", "bitsandbytes loads what it does not quantize in fp16")
    if word in DTYPE_NAMES:
        return setting.with_value(DTYPE_NAMES[word])
    if word != "auto":
        sentence = f"{setting.origin}: vramtop does not know weights in {setting.value!r}."
        findings.mark_uncertain("training.precision", sentence)
        return None
    if stored is not None and known is not None:
        return Setting.default(known, f"dtype=auto ({setting.origin}), {stored.origin}")
    return Setting.default(
        "bf16", f"dtype=auto ({setting.origin}), and the model's config was not found; bf16 is assumed"
    )


def _origin(mixed: Setting | None, weights: Setting | None) -> str:
    parts = [mixed.origin] if mixed is not None else []
    if weights is not None:
        parts.append(f"weights in {weights.value} ({weights.origin})")
    return "; ".join(parts)
