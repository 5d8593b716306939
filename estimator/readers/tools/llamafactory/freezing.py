"""The parameters that LLaMA-Factory leaves to train where it freezes others, as patterns of names.

Read from ``model/adapter.py`` and ``model/model_utils/visual.py`` of LLaMA-Factory in August 2026, and from version 1's
``plugins/model_plugins/peft.py``. It compares parts of names; a pattern with ``*`` on both sides does the same.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ...program import Program
from ...source import LayeredSettings, Setting, as_bool, as_int, as_word
from ..shared import PROJECTOR, VISION_TOWER, config_of_model

_LAYER_FIELDS = ("num_hidden_layers", "num_layers", "n_layer")
_LANGUAGE_MODEL = ("language_model", "lm_head")
_PARTS_OF_VISION_MODELS = {
    "freeze_vision_tower": (VISION_TOWER, True),
    "freeze_multi_modal_projector": (PROJECTOR, True),
    "freeze_language_model": (_LANGUAGE_MODEL, False),
}
"""Switches with the parts of names that they freeze, and their defaults."""


def record_freezing(program: Program, settings: LayeredSettings, model: Setting | None) -> None:
    """Record the parameters that train under ``freeze``: some layers, by default the last two, and further modules."""
    findings = program.findings
    given = settings.find("freeze_trainable_layers")
    config = config_of_model(program, model)
    layers = _number_of_layers(config)
    if layers is None:
        where = given.origin if given is not None else "the method freeze"
        findings.warn(f"{where}: which layers train is not known without the model's config; all are counted.")
        findings.add_uncertainty("less", "gradients", "optimizer")
        return
    number = _signed(given)
    wanted = 2 if number is None else number
    if settings.is_true("use_llama_pro") and wanted > 0 and layers % wanted == 0:
        stride = layers // wanted
        trained = range(stride - 1, layers, stride)
    else:
        trained = range(max(0, layers - wanted), layers) if wanted > 0 else range(min(-wanted, layers))
    modules = _names(settings.find("freeze_trainable_modules")) or ["all"]
    parts = [f".{layer}.{'' if module == 'all' else module}" for module in modules for layer in trained]
    parts += _names(settings.find("freeze_extra_modules"))
    patterns = [f"*{part}*" for part in parts] or ["!*"]
    origins = [found.origin for name in settings.names("freeze_") if (found := settings.find(name)) is not None]
    origin = "; ".join(origins) or "LLaMA-Factory trains the last two layers by default"
    findings.record("training.trainable", [*patterns, *_frozen_parts(settings, config)], origin, written=bool(origins))
    findings.warn("LLaMA-Factory keeps frozen weights in 16 bits beside trained ones in fp32; all are counted alike.")
    findings.add_uncertainty("less", "weights")


def record_frozen_parts(program: Program, settings: LayeredSettings, model: Setting | None) -> None:
    """Record the parts of a model with a vision tower that do not train: by default the tower and its projector."""
    frozen = _frozen_parts(settings, config_of_model(program, model))
    if frozen:
        origins = [found.origin for name in _PARTS_OF_VISION_MODELS if (found := settings.find(name)) is not None]
        origin = "; ".join(origins) or "LLaMA-Factory freezes vision tower and projector by default"
        program.findings.record("training.trainable", frozen, origin, written=bool(origins))


def _frozen_parts(settings: LayeredSettings, config: Mapping[str, Any] | None) -> list[str]:
    if config is None or "vision_config" not in config:
        return []
    return [f"!*{part}*" for part in _switched_off(settings)]


def _switched_off(settings: LayeredSettings) -> Iterator[str]:
    for name, (parts, default) in _PARTS_OF_VISION_MODELS.items():
        written = as_bool(settings.find(name))
        if default if written is None else written:
            yield from parts


def _number_of_layers(config: Mapping[str, Any] | None) -> int | None:
    text = (config or {}).get("text_config")
    fields = text if isinstance(text, Mapping) else config or {}
    return next((fields[name] for name in _LAYER_FIELDS if type(fields.get(name)) is int), None)


def _signed(setting: Setting | None) -> int | None:
    """Return a whole number that may be negative."""
    text = str(setting.value) if setting is not None else ""
    positive = as_int(setting.with_value(text.removeprefix("-"))) if setting is not None else None
    return positive if positive is None or not text.startswith("-") else -positive


def _names(setting: Setting | None) -> list[str]:
    """Return names written as a list, or with commas between them."""
    if setting is None or as_word(setting) in ("none", "null", ""):
        return []
    value = setting.value if isinstance(setting.value, list) else str(setting.value).split(",")
    return [str(name).strip() for name in value if str(name).strip()]
