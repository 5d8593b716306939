"""The parameters that ms-swift freezes, and those that it trains again, as patterns of names."""

from collections.abc import Mapping
from typing import Any

from ...program import Program
from ...source import LayeredSettings, Setting, as_bool
from ..shared import PROJECTOR, VISION_TOWER, config_of_model, globs_of_first_share, globs_of_regex

_FREEZING = (
    *("freeze_parameters_ratio", "freeze_parameters", "freeze_parameters_regex"),
    *("trainable_parameters", "trainable_parameters_regex", "freeze_llm", "freeze_vit", "freeze_aligner"),
)
_ENCODER_SWITCHES: Mapping[str, tuple[tuple[str, ...], bool]] = {
    "freeze_vit": (VISION_TOWER, True),
    "freeze_aligner": (PROJECTOR, True),
    "freeze_llm": (("language_model", "lm_head"), False),
}
"""Switches with the parts of names that they freeze, and their defaults."""


def read_frozen(program: Program, settings: LayeredSettings) -> None:
    """Record the parameters that train: a share, prefixes and a pattern freeze them, then others train again.

    Source: ``swift/utils/transformers_utils.py``; by default a vision tower and its projector are frozen.
    """
    findings, config = program.findings, config_of_model(program, settings.find("model"))
    given = [found for name in _FREEZING if (found := settings.find(name)) is not None]
    ratio = settings.find("freeze_parameters_ratio")
    share = _share(ratio) if ratio is not None else 0.0
    first = globs_of_first_share(config, share) if share else []
    named_off = _named_globs(settings, "freeze_parameters")
    on = _named_globs(settings, "trainable_parameters")
    understood = first is not None and named_off is not None and on is not None
    off = [*(first or ()), *_frozen_encoders(settings, config), *(named_off or ())]
    if not understood:
        findings.warn(f"{given[0].origin}: what it freezes is not understood here; all parameters are counted.")
        findings.add_uncertainty("less", "gradients", "optimizer", unless="training.trainable")
    elif off:
        origin = "; ".join(found.origin for found in given) or "ms-swift freezes vision tower and projector by default"
        patterns = [*(f"!{glob}" for glob in off), *(on or ())]
        findings.record("training.trainable", patterns, origin, written=bool(given))


def _frozen_encoders(settings: LayeredSettings, config: Mapping[str, Any] | None) -> list[str]:
    """Return globs of the parts of a model with a vision tower that do not train."""
    if config is None or "vision_config" not in config:
        return []
    found: list[str] = []
    for name, (parts, default) in _ENCODER_SWITCHES.items():
        written = as_bool(settings.find(name))
        found += [f"*{part}*" for part in parts] if (default if written is None else written) else []
    return found


def _named_globs(settings: LayeredSettings, name: str) -> list[str] | None:
    """Return globs of the parameters that a list of prefixes and a regular expression name; None: not understood."""
    regex = settings.find(f"{name}_regex")
    matching = globs_of_regex(str(regex.value), from_start=False) if regex is not None else []
    prefixes = [f"{prefix}*" for prefix in _names(settings.find(name))]
    return None if matching is None else [*prefixes, *matching]


def _share(ratio: Setting) -> float:
    try:
        return min(1.0, max(0.0, float(str(ratio.value))))
    except ValueError:
        return 0.0


def _names(setting: Setting | None) -> list[str]:
    if setting is None:
        return []
    value = setting.value if isinstance(setting.value, list) else str(setting.value).split()
    return [str(name) for name in value if str(name).strip("[]'\" ")]
