"""Parameters that a tool freezes or trains by their names, as the globs of ``training.trainable``."""

from collections.abc import Sequence

from ...source.evidence import FindingCollector
from ...source.settings import LayeredSettings, Setting, as_bool

VISION_TOWER = ("vision_tower", "vision_model", "vision_encoder", "visual.patch_embed", "visual.blocks", "audio_tower")
"""Parts of names of encoders for pictures and sound, in transformers' models."""
PROJECTOR = ("multi_modal_projector", "mm_projector", "visual.merger", "aligner", "embed_vision", "embed_audio")
"""Parts of names of the layers between an encoder and the language model."""
LANGUAGE_MODEL = ("language_model", "lm_head")
"""Parts of names of the language model with its head."""


def frozen_parts(settings: LayeredSettings, *, switches: Sequence[str]) -> list[str]:
    """Return globs of the parts of a model with a vision tower that do not train, by default tower and projector.

    Args:
        settings: the tool's.
        switches: the settings that freeze the tower, the projector, and the language model.
    """
    found: list[str] = []
    for name, parts in zip(switches, (VISION_TOWER, PROJECTOR, LANGUAGE_MODEL), strict=True):
        written = as_bool(settings.find(name))
        if parts is not LANGUAGE_MODEL if written is None else written:
            found += [f"*{part}*" for part in parts]
    return found


def doubt_encoders(
    findings: FindingCollector, settings: LayeredSettings, tool: str, *, switches: Sequence[str]
) -> None:
    """Doubt adapters of all linear layers, which a tool gives the language model only while its switches freeze."""
    if any(as_bool(settings.find(switch)) is not False for switch in switches[:2]):
        sentence = f"{tool} adapts only the language part of a multimodal model; all layers are counted."
        findings.doubt(sentence, "less", "gradients", "optimizer", "activations", unless="lora.targets")


def whole_model(tool: str) -> dict[str, Setting]:
    """Return the task of a multimodal model that a tool loads with its encoders."""
    return {"task": Setting.default("image-text-to-text", f"{tool} loads a multimodal model with its encoders")}
