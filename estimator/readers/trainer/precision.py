"""Reads a job's precision from the dtype of its weights and from mixed precision, wherever each is set."""

from collections.abc import Mapping
from typing import Any

from ...job import trainer_precision
from ...job.rules import DTYPE_NAMES, HALF
from ..source import (
    FindingCollector,
    LayeredSettings,
    Setting,
    as_bool,
    as_word,
    default_setting,
    framework_with_version,
)
from .model_facts import stored_dtype
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
    own = inputs.accelerate.find_true("script_own_sharding") if fsdp else None
    if own is not None:
        _read_own_sharding(mixed, _weights(inputs, config, findings), inputs, own, findings)
        return
    inputs.settings.find(*_DTYPES)  # of which nothing is left where weights are kept in fp32
    if mixed is not None and kind in HALF and (deepspeed or (fsdp and not lora)):
        library = "DeepSpeed" if deepspeed else "FSDP under accelerate"
        origin = f"{mixed.origin}; {library} keeps trained weights in fp32 besides"
        findings.record("training.precision", f"{kind}-mixed", origin, written=mixed.written)
    elif (weights := _weights(inputs, config, findings)) is not None or kind is not None:
        precision = trainer_precision(None if weights is None else weights.value, kind, keeps_fp32=False)
        written = any(part is not None and part.written for part in (mixed, weights))
        findings.record("training.precision", precision, _origin(mixed, weights), written=written)
    elif findings.get("training.precision") is None:
        sentence = "Nothing states the type of the weights; they are counted as the checkpoint stores them."
        findings.mark_uncertain("training.precision", sentence, direction="more")
    if mixed is not None and kind in HALF and fsdp:
        origin = f"accelerate reduces FSDP's gradients in the type of {mixed.origin}"
        findings.record("parallel.reduce_dtype", kind, origin, written=False)


def _read_own_sharding(
    mixed: Setting | None, weights: Setting | None, inputs: TrainerInputs, own: Setting, findings: FindingCollector
) -> None:
    """Record what a script's own FSDP does: sharded weights keep their dtype, gradients are reduced in its policy's."""
    kept = str(weights.value) if weights is not None and weights.value in HALF else "fp32"
    kind = _counted_kind(mixed, findings)
    precision = trainer_precision(kept, kind, keeps_fp32=False)
    written = any(part is not None and part.written for part in (mixed, weights))
    findings.record("training.precision", precision, _origin(mixed, weights) or own.origin, written=written)
    if kept in HALF and kind in HALF and kind != kept:
        sentence = f"{own.origin}: {kept} weights are gathered in {kind}; they are counted as {kept}."
        findings.mark_uncertain("training.precision", sentence, direction="more")
    reduced = inputs.accelerate.find("script_reduce_dtype")
    name = DTYPE_NAMES.get(str(reduced.value)) if reduced is not None else None
    policy = inputs.accelerate.find("script_gathered_dtype")
    by_policy = DTYPE_NAMES.get(str(policy.value)) if policy is not None else kept
    findings.record("parallel.reduce_dtype", name or by_policy, (reduced or policy or own).origin, written=False)
    if policy is None and kept == "fp32" and kind in HALF:
        sentence = f"{own.origin}: autocast leaves what FSDP gathers in fp32; it is counted in {kind}."
        findings.warn(sentence, unless="training.precision")
        findings.add_uncertainty("more", "communication", unless="training.precision")


def mixed_precision(inputs: TrainerInputs, findings: FindingCollector) -> Setting | None:
    """Return ``bf16``, ``fp16``, ``fp8`` or ``no``; None if it is set nowhere.

    DeepSpeed's file decides where it speaks of the type, then TrainingArguments, then accelerate: the trainer ignores
    accelerate's choice when it has one of its own.
    """
    asked, file = _asked(inputs, findings), _deepspeed_file(inputs)
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
        return default_setting("no", f"{from_file.origin}, an old name that accelerate replaces by bf16: false")
    if asked is not None and kind in HALF and kind != from_file.value:
        sentence = f"{asked.origin} contradicts {from_file.origin}, which counts; transformers refuses that."
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
        return default_setting("bf16", default.origin)
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
    findings.warn(f"fp8 ({mixed.origin}) is counted as bf16 mixed precision.")
    findings.add_uncertainty("more", "weights", unless="training.precision")  # copies in 8 bits
    findings.add_uncertainty("less", "activations", unless="training.precision")
    return "bf16"


def _deepspeed_file(inputs: TrainerInputs) -> LayeredSettings | None:
    """Return DeepSpeed's settings when they come from its own JSON rather than from accelerate's flags."""
    return inputs.deepspeed if inputs.deepspeed is not inputs.accelerate else None


def _weights(inputs: TrainerInputs, config: Mapping[str, Any] | None, findings: FindingCollector) -> Setting | None:
    """Return the dtype in which the weights are loaded: ``bf16``, ``fp16`` or ``fp32``."""
    stored = stored_dtype(config)
    setting = inputs.settings.find(*_DTYPES)
    if setting is None:
        return None
    word = as_word(setting) or ""
    known = DTYPE_NAMES.get(as_word(stored) or "")
    by_version = setting.origin == f"default of {framework_with_version('transformers', inputs.versions)}"
    remote = inputs.settings.find("script_remote_code")
    if by_version and remote is not None and word != "auto" and (config is None or "auto_map" in config):
        sentence = f"{remote.origin}: the model's own code may set the type of its weights; they are counted as stored."
        findings.mark_uncertain("training.precision", sentence, direction="more")
        word = "auto"
    if word in DTYPE_NAMES:
        return setting.with_value(DTYPE_NAMES[word])
    if word != "auto":
        sentence = f"{setting.origin}: weights in {setting.value!r} are not known here."
        findings.mark_uncertain("training.precision", sentence)
        return None
    if by_version and "transformers" not in inputs.versions and (known or "bf16") in HALF:
        sentence = f"{setting.origin}: weights are loaded as stored; before transformers 5 they were loaded in fp32."
        findings.mark_uncertain("training.precision", sentence, direction="more")
    if stored is not None and known is not None:
        return default_setting(known, f"dtype=auto ({setting.origin}), {stored.origin}")
    return default_setting("bf16", f"dtype=auto ({setting.origin}), and the model's config is not here; bf16 inferred")


def _origin(mixed: Setting | None, weights: Setting | None) -> str:
    parts = [mixed.origin] if mixed is not None else []
    if weights is not None:
        parts.append(f"weights in {weights.value} ({weights.origin})")
    return "; ".join(parts)
