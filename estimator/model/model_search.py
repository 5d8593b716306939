"""Finds names of models by what people type of them: ``llama3 8b``."""

import difflib
import re
from collections.abc import Iterable

_PARTS = re.compile(r"[a-z]+\d*(?:\.\d+)?|\d+(?:\.\d+)?[a-z]*")
_NOT_IN_KEYS = re.compile(r"[^a-z0-9]")
_OTHER_KINDS = (
    (
        "diffusion",
        re.compile(
            r"\b(flux|stable-?diffusion|sdxl|sd-?(1\.5|2\.1|3(\.5)?)|pixart|kandinsky|controlnet|wan2|hunyuan-?(video|dit)|"
            r"cogvideo|ltx|qwen-image|z-image|unet)"
        ),
    ),
    (
        "speech",
        re.compile(
            r"\b(whisper|wav2vec|hubert|wavlm|parakeet|canary|speecht5|bark|xtts|kokoro|musicgen|seamless|encodec)"
        ),
    ),
    (
        "vision",
        re.compile(
            r"\b(resnet|resnext|vit\b|vit-|deit|swin|convnext|efficientnet|mobilenet|densenet|vgg|yolo|detr|segformer|sam2?\b|"
            r"dino|clip|siglip|mask2?-?r?-?cnn|mask2former|unet|beit|maskformer|depth-anything|timm)"
        ),
    ),
    (
        "vision-language",
        re.compile(r"\b(llava|blip|idefics|paligemma|internvl|minicpm-v|florence|pixtral|molmo|smolvlm)"),
    ),
)
"""Models that are no text models, by the beginnings of parts of their names."""


def other_kind(name: str) -> str | None:
    """Return the kind of model that a name stands for if it is no text model: diffusion, speech, vision; else None."""
    word = name.rpartition("/")[2].casefold().replace("_", "-")
    return next((kind for kind, pattern in _OTHER_KINDS if pattern.search(word)), None)


def instead_of_other_kind(name: str) -> str | None:
    """Return the sentence for a model that is no text model, with what to do instead; None: it may be one."""
    kind = other_kind(name)
    if kind is None:
        return None
    return (
        f"{name} is a {kind} model, and only text models are known by name; give a function that builds it, such as "
        "vramtop fit train.py:build_model --method traced, or the program as a launch line after --"
    )


def similar_names(text: str, names: Iterable[str], *, most: int) -> tuple[str, ...]:
    """Return the names that a text may mean, the likeliest first.

    Every part of the text must be in the name, in any order; if that holds for none, names that look alike are taken.

    Args:
        text: what was typed.
        names: all names.
        most: maximum number of names that are returned.
    """
    keys = {name: _key(name) for name in names}
    wanted, parts = _key(text), [_key(part) for part in _PARTS.findall(text.casefold())]
    if not parts:
        return ()
    found = [name for name, key in keys.items() if wanted in key or all(part in key for part in parts)]
    if not found:
        near = difflib.get_close_matches(wanted, list(keys.values()), n=most, cutoff=0.6)
        return tuple([name for key in near for name in keys if keys[name] == key][:most])
    return tuple(sorted(found, key=lambda name: _distance(keys[name], wanted))[:most])


def _distance(key: str, wanted: str) -> tuple[bool, bool, int, str]:
    return key != wanted, not key.startswith(wanted), len(key), key


def _key(name: str) -> str:
    """Return letters and digits only."""
    return _NOT_IN_KEYS.sub("", name.casefold())
