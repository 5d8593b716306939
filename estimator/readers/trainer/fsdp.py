"""FSDP's settings under accelerate and the Trainer."""

import re
from typing import Any

from ...common.errors import InputError
from ..source.data_files import layer_from_table, table_of_setting
from ..source.evidence import FindingCollector
from ..source.settings import LayeredSettings, Setting, as_bool, as_int, as_word
from ..source.versions import framework_with_version, is_at_least
from .trainer_inputs import TrainerInputs

# FSDP's settings by the names of accelerate's flags, from the Trainer's arguments or from accelerate's own.
#
# Source: ``_process_fsdp_args`` in transformers' ``training_args.py``, 4.28 to 5.23, and accelerate's
# ``FullyShardedDataParallelPlugin``, 0.21 to 1.15.


FSDP1_NAMES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""FSDP's sharding strategies; accelerate also takes their positions, from 1."""
_WRAPS_BLOCKS = (5, 10)
"""transformers' version since which the Trainer asks for FSDP 2 and wraps blocks unless it is told otherwise."""
_POLICY = "fsdp_auto_wrap_policy"


def fsdp_settings(inputs: TrainerInputs, findings: FindingCollector) -> LayeredSettings | None:
    """Return FSDP's settings where it is used: from the trainer's arguments, otherwise from accelerate's.

    They have the names of accelerate's flags.
    """
    fsdp = inputs.settings.find("fsdp")
    if fsdp is None or as_bool(fsdp) is False or fsdp.value == []:
        return inputs.accelerate if inputs.accelerate.is_true("use_fsdp") else None
    table: dict[str, Any] = {}
    source = "fsdp_config"
    config = inputs.settings.find("fsdp_config")
    if config is not None:
        try:
            table, file = table_of_setting(config.value, inputs.filesystem)
            source = file or config.origin
        except InputError as error:
            findings.mark_uncertain("parallel.strategy", f"Could not read fsdp_config: {error.message}")
    prefixed = {name if name.startswith("fsdp_") else f"fsdp_{name}": value for name, value in table.items()}
    layer = layer_from_table(prefixed, source=source)
    if "fsdp_cpu_offload" in layer:
        layer["fsdp_offload_params"] = layer["fsdp_cpu_offload"]
    if as_bool(fsdp) is None:
        layer.update(_fsdp_words(fsdp, layer))
    default = inputs.settings.find("fsdp_version_default")
    layer.setdefault("fsdp_version", default or Setting.default(2, f"{fsdp.origin}; version 2 by default"))
    if layer["fsdp_version"] is default and "transformers" not in inputs.versions:
        sentence = (
            f"FSDP {default.value} ({default.origin}); before 5.10 the default was FSDP 1, as one unit without "
            "auto_wrap."
        )
        findings.doubt(sentence, "more", "communication", unless="parallel.strategy")
    _set_units(layer, fsdp, inputs)
    _set_resharding(layer, inputs)
    return LayeredSettings(layer)


def _fsdp_words(fsdp: Setting, given: dict[str, Setting]) -> dict[str, Setting]:
    """Return the settings in ``--fsdp "full_shard auto_wrap offload"``, which transformers had before 5."""
    words = fsdp.value if isinstance(fsdp.value, list) else str(fsdp.value).replace(",", " ").split()
    layer = {}
    for word in (str(word).lower() for word in words):
        if word == "offload":
            layer["fsdp_offload_params"] = Setting(value=True, origin=fsdp.origin)
        elif word.upper() in FSDP1_NAMES:
            layer["fsdp_sharding_strategy"] = Setting(value=word, origin=fsdp.origin)
            if "fsdp_reshard_after_forward" not in given:
                layer["fsdp_reshard_after_forward"] = Setting(value=word == "full_shard", origin=fsdp.origin)
        elif word == "auto_wrap":
            by_size = (as_int(given.get("fsdp_min_num_params")) or 0) > 0
            policy = "SIZE_BASED_WRAP" if by_size else "TRANSFORMER_BASED_WRAP"
            layer[_POLICY] = Setting(value=policy, origin=fsdp.origin)
    return layer


def _set_units(layer: dict[str, Setting], fsdp: Setting, inputs: TrainerInputs) -> None:
    """Add the wrap policy where nothing names one.

    Before 5.10 the Trainer left accelerate's policy alone without ``auto_wrap`` (and took none from ``fsdp_config``):
    that of the launcher, else none, so that the whole model is one unit.
    """
    library = framework_with_version("transformers", inputs.versions)
    if is_at_least("transformers", _WRAPS_BLOCKS, inputs.versions):
        layer.setdefault(_POLICY, Setting.default("transformer_based_wrap", f"default of {library}"))
        return
    written = str(layer[_POLICY].origin) if _POLICY in layer else None
    if written == fsdp.origin:
        return
    origin = f"{fsdp.origin}, without auto_wrap, in {library}"
    layer[_POLICY] = inputs.accelerate.find(_POLICY) or Setting(value="no_wrap", origin=origin)


def _set_resharding(layer: dict[str, Setting], inputs: TrainerInputs) -> None:
    """Correct what the Trainer before 5.10 made of FSDP 2: gathered weights stayed unless ``fsdp_config`` said so.

    The word of the sharding strategy was FSDP 1's only.
    """
    second = as_int(layer["fsdp_version"]) == 2
    if not second or is_at_least("transformers", _WRAPS_BLOCKS, inputs.versions):
        return
    name, word = "fsdp_reshard_after_forward", layer.get("fsdp_sharding_strategy")
    written = layer.get(name)
    if written is None or (word is not None and written.origin == word.origin):
        default = f"default of {framework_with_version('transformers', inputs.versions)}"
        layer[name] = Setting.default(False, default)


# Reads what FSDP wraps: blocks, modules of other classes, modules of some size, or the model alone.
#
# Sources: accelerate 1.15 (``FullyShardedDataParallelPlugin``, ``fsdp2_prepare_model``), transformers 5.23
# (``update_fsdp_plugin_peft``, ``_fsdp_qlora_plugin_updates`` before), peft 0.21 (``fsdp_auto_wrap_policy``).


_BLOCK_CLASS = re.compile(r"(?!.*(?:Moe|MoE|MLP|Attention))\w*(?:Block|Layer)")
"""Names of the classes of a model's blocks, not of parts of them such as MixtralSparseMoeBlock."""
_UNITS = {"no_wrap": "model", "blocks": "blocks"}
"""The units that a policy of FSDP makes, as the job has them."""
_KEY = "parallel.fsdp_units"


def read_units(fsdp: LayeredSettings, findings: FindingCollector, *, first_version: bool, by_trainer: bool) -> None:
    """Record what FSDP wraps: blocks, modules of other classes, modules of some size, or the model alone.

    Args:
        fsdp: FSDP's settings.
        findings: collects what is read.
        first_version: it is FSDP 1.
        by_trainer: transformers' Trainer prepares the model.
    """
    wrap, smallest = fsdp.find("fsdp_auto_wrap_policy"), fsdp.find("fsdp_min_num_params")
    word, count = as_word(wrap) or "", as_int(smallest) or 0
    if by_trainer and findings.get("lora.rank") is not None:
        word = _with_adapters(findings, first_version=first_version)
    elif wrap is None:  # FSDP_AUTO_WRAP_POLICY is NO_WRAP where nothing sets it
        findings.infer(_KEY, "model", "accelerate's default fsdp_auto_wrap_policy, which wraps nothing")
    elif first_version and word == "size_based_wrap":
        if count > 0 and smallest is not None:
            findings.record("parallel.fsdp_min_unit_parameters", count, smallest.origin)
        else:  # accelerate's default is 0, with which it wraps nothing
            findings.record_from(wrap, _KEY, "model")
    elif word in _UNITS:
        findings.record_from(wrap, _KEY, _UNITS[word])
    elif word in ("size_based_wrap", "other_wrap"):
        sentence = (
            f"{wrap.origin}: the figure assumes that the whole model is gathered at once; FSDP's units may be smaller."
        )
        findings.mark_uncertain(_KEY, sentence, direction="less")
        findings.record_from(wrap, _KEY, "model")
    elif word != "transformer_based_wrap":
        findings.mark_uncertain(
            _KEY, f"{wrap.origin}: the wrap policy is not known; vramtop assumes that blocks are wrapped."
        )
    classes = fsdp.find("fsdp_transformer_layer_cls_to_wrap") or fsdp.find("fsdp_transformer_cls_to_wrap")
    if classes is not None and word == "transformer_based_wrap":
        names = classes.value if isinstance(classes.value, list) else str(classes.value).replace(",", " ").split()
        if any(not _BLOCK_CLASS.fullmatch(name) for name in names):
            findings.record("parallel.fsdp_wrap_classes", names, classes.origin)


def _with_adapters(findings: FindingCollector, *, first_version: bool) -> str:
    """Record the units of a model with adapters, and return the policy: the Trainer gives accelerate peft's own.

    It wraps blocks and each adapter. FSDP 2 takes policies by class and by size only: it wraps no block then, so that
    they are the root's, which is one unit.
    """
    if not first_version:
        origin = "the Trainer uses peft's wrap policy, which FSDP 2 under accelerate does not follow"
        findings.warn(f"FSDP 2 with adapters: {origin}; the whole model is gathered at once.", unless=_KEY)
        findings.infer(_KEY, "model", origin)
    return "transformer_based_wrap"
