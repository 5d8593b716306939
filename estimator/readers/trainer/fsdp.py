"""FSDP's settings under accelerate and the Trainer."""

from ..source.data_files import layer_of_setting
from ..source.evidence import FindingCollector
from ..source.settings import LayeredSettings, Setting, as_bool, as_int
from ..source.versions import framework_with_version, is_at_least
from .trainer_inputs import TrainerInputs

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
    if fsdp is None or inputs.settings.is_unset("fsdp") or as_bool(fsdp) is False or fsdp.value == []:
        return inputs.accelerate if inputs.accelerate.is_true("use_fsdp") else None
    config = inputs.settings.find("fsdp_config")
    given = layer_of_setting(config, inputs.filesystem, findings, key="parallel.strategy")
    layer = {f"fsdp_{name.removeprefix('fsdp_')}": each for name, each in given.items()}
    if "fsdp_cpu_offload" in layer:
        layer["fsdp_offload_params"] = layer["fsdp_cpu_offload"]
    if as_bool(fsdp) is None:
        layer.update(_fsdp_words(fsdp, layer))
    default = inputs.settings.find("fsdp_version_default")
    layer.setdefault("fsdp_version", default or Setting.default(2, f"{fsdp.origin}; version 2 by default"))
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
