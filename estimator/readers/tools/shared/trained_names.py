"""Parameters that a tool freezes or trains by their names, as the globs of ``training.trainable``."""

import re
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


_MAX_GLOBS = 128
_MAX_CHARACTERS = 500
_GROUP = re.compile(r"\((?:\?:)?([^()]*)\)(?![+*?{])")
_TOKEN = re.compile(r"(\\[.dw_\-]|\[[^\[\]\\]+\]|[.A-Za-z0-9_:\-])([+*]?)")
_GLOBS = {"\\d": "[0-9]", "\\w": "?", "\\.": ".", "\\_": "_", "\\-": "-"}


def globs_of_regex(text: str, *, from_start: bool, dots_are_literal: bool = False) -> list[str] | None:
    """Return globs of whole names that match where a regular expression does; None if no few globs do.

    What follows a repeated class may be any text. Groups may not be repeated.

    Args:
        text: the regular expression; it is never run, as one that never ends would never end.
        from_start: it is matched from the beginning of a name (``re.match``), not anywhere (``re.search``).
        dots_are_literal: a dot stands for itself, unless ``+`` follows.
    """
    texts = [text]
    while len(texts) <= _MAX_GLOBS and len(text) <= _MAX_CHARACTERS and (group := _GROUP.search(texts[0])):
        alternatives = group[1].split("|")
        texts = [each.replace(group[0], word, 1) for word in alternatives for each in texts]
    globs = [_glob(part, from_start, dots_are_literal) for each in texts for part in each.split("|")]
    found = [glob for glob in globs if glob is not None]
    is_plain = len(found) == len(globs) <= _MAX_GLOBS and len(text) <= _MAX_CHARACTERS
    return list(dict.fromkeys(found)) if is_plain else None


def _glob(text: str, from_start: bool, literal: bool) -> str | None:
    """Return the glob of an expression without groups."""
    inner, glob = text.removeprefix("^").removesuffix("$"), ""
    tokens = _TOKEN.findall(inner)
    if "".join(word + quantifier for word, quantifier in tokens) != inner or (literal and "\\." in text):
        return None
    for word, quantifier in tokens:
        dot = "." if literal and quantifier != "+" else "?"
        one = dot if word == "." else _GLOBS.get(word, word.replace("[^", "[!", 1))
        glob += "*" if quantifier == "*" else f"{one}*" if quantifier else one
    begins, ends = "" if from_start or text.startswith("^") else "*", "" if text.endswith("$") else "*"
    return re.sub(r"\*+", "*", f"{begins}{glob}{ends}")
