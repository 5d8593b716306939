"""Parameters that a tool freezes or trains by their names, as the globs of ``training.trainable``."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...source.settings import LayeredSettings, as_bool

VISION_TOWER = ("vision_tower", "vision_model", "vision_encoder", "visual.patch_embed", "visual.blocks", "audio_tower")
"""Parts of names of encoders for pictures and sound, in transformers' models."""
PROJECTOR = ("multi_modal_projector", "mm_projector", "visual.merger", "aligner", "embed_vision", "embed_audio")
"""Parts of names of the layers between an encoder and the language model."""
LANGUAGE_MODEL = ("language_model", "lm_head")
"""Parts of names of the language model with its head."""


def frozen_parts(settings: LayeredSettings, config: Mapping[str, Any] | None, *, switches: Sequence[str]) -> list[str]:
    """Return globs of the parts of a model with a vision tower that do not train, by default tower and projector.

    Args:
        settings: the tool's.
        config: the model's; None: not known.
        switches: the settings that freeze the tower, the projector, and the language model.
    """
    if config is None or "vision_config" not in config:
        return []
    found: list[str] = []
    for name, parts in zip(switches, (VISION_TOWER, PROJECTOR, LANGUAGE_MODEL), strict=True):
        written = as_bool(settings.find(name))
        if parts is not LANGUAGE_MODEL if written is None else written:
            found += [f"*{part}*" for part in parts]
    return found
