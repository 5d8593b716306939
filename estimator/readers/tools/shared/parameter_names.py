"""Parameters that a tool freezes or trains by their names, as the globs of ``training.trainable``."""

import itertools
import re
from collections.abc import Mapping
from typing import Any

from ....common import VramtopError

VISION_TOWER = ("vision_tower", "vision_model", "vision_encoder", "visual.patch_embed", "visual.blocks", "audio_tower")
"""Parts of names of encoders for pictures and sound, in transformers' models."""
PROJECTOR = ("multi_modal_projector", "mm_projector", "visual.merger", "aligner", "embed_vision", "embed_audio")
"""Parts of names of the layers between an encoder and the language model."""
_MAX_GLOBS = 128
_MAX_CHARACTERS = 500
_TOKEN = re.compile(r"\\[.dwWDsS_\-]|\[\^?[^\[\]\\]+\]|\{\d(?:,\d)?\}|\(\?:|[(|)^$.+*?]|[A-Za-z0-9_:\-]")
_DIGITS = ("[0-9]", "[!0-9]")


class _UntranslatableError(Exception):
    """A regular expression says something that no few globs do."""


def globs_of_regex(text: str, *, from_start: bool, dots_are_literal: bool = False) -> list[str] | None:
    """Return globs of whole names that match where a regular expression does; None if no few globs do.

    Repeated classes of letters match any text, repeated digits one to three.

    Args:
        text: the regular expression; it is never run, as one that never ends would never end.
        from_start: it is matched from the beginning of a name (``re.match``), not anywhere (``re.search``).
        dots_are_literal: a dot stands for itself, unless ``+`` follows.
    """
    if len(text) > _MAX_CHARACTERS:
        return None
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text:
        return None
    try:
        found, rest = _alternatives(tokens, dots_are_literal)
    except _UntranslatableError:
        return None
    if rest:
        return None
    globs = []
    for glob in found:
        begins = "" if glob.startswith("^") or from_start else "*"
        ends = "" if glob.endswith("$") else "*"
        whole = f"{begins}{glob.removeprefix('^').removesuffix('$')}{ends}"
        if "^" in whole or "$" in whole:
            return None
        globs.append(re.sub(r"\*+", "*", whole))
    return list(dict.fromkeys(globs))


def globs_of_first_share(config: Mapping[str, Any] | None, share: float) -> list[str] | None:
    """Return globs of the parameters that come first in a model and make up a share of it, by whole layers."""
    if share >= 1:
        return ["*"]
    from ....model.count_parameters import count_parameters  # here: a model is looked up only where it must be
    from ....model.read_architecture import read_architecture

    try:
        arch = read_architecture(config) if config is not None else None
    except VramtopError:
        arch = None
    if arch is None:
        return None
    inventory = count_parameters(arch)
    left = int(inventory.parameters * share)
    embeddings = [group for group in inventory.groups if group.role == "embedding" and not group.layered]
    layered = [group for group in inventory.groups if group.layered]
    globs = []
    for group in embeddings:
        if group.elements <= left:
            left -= group.elements
            globs.append(group.name)
    per_layer = sum(group.elements for group in layered) // max(1, arch.layers)
    blocks = layered[0].name.partition("*")[0] if layered else ""
    whole = min(arch.layers, left // per_layer) if per_layer else 0
    return [*globs, *(f"{blocks}{layer}.*" for layer in range(whole))]


def _alternatives(tokens: list[str], literal: bool) -> tuple[list[str], list[str]]:
    """Return the globs of ``a|b`` up to a closing bracket, and the tokens after it."""
    found: list[str] = []
    while True:
        sequence, tokens = _sequence(tokens, literal)
        found += sequence
        if len(found) > _MAX_GLOBS:
            raise _UntranslatableError
        if not tokens or tokens[0] != "|":
            return found, tokens
        tokens = tokens[1:]


def _sequence(tokens: list[str], literal: bool) -> tuple[list[str], list[str]]:
    found = [""]
    while tokens and tokens[0] not in "|)":
        word, tokens = tokens[0], tokens[1:]
        if word in ("(", "(?:"):
            piece, tokens = _alternatives(tokens, literal)
            if not tokens:
                raise _UntranslatableError
            tokens = tokens[1:]
        else:
            literal_dot = literal and word == "." and tokens[:1] != ["+"]
            piece = ["."] if literal_dot else _glob(word, literal)
        if tokens and (tokens[0] in "+*?" or tokens[0].startswith("{")):
            piece, tokens = _repeated(piece, tokens[0]), tokens[1:]
            if tokens and tokens[0] in "+?":  # lazy or possessive: matches the same names
                tokens = tokens[1:]
        found = [before + after for before, after in itertools.product(found, piece)]
        if len(found) > _MAX_GLOBS:
            raise _UntranslatableError
    return found, tokens


def _glob(word: str, literal: bool) -> list[str]:
    """Return the globs of one part of an expression."""
    if word.startswith("["):
        return [f"[!{word[2:]}" if word.startswith("[^") else word]
    if word.startswith("\\"):
        if literal and word == "\\.":
            raise _UntranslatableError  # the dot is escaped twice, and then matches anything after a backslash
        known = {"\\d": "[0-9]", "\\D": "[!0-9]", "\\w": "?", "\\.": ".", "\\_": "_", "\\-": "-"}
        if word not in known:
            raise _UntranslatableError
        return [known[word]]
    if word in "+*?)" or word.startswith("{"):
        raise _UntranslatableError
    return ["?"] if word == "." else [word]


def _repeated(piece: list[str], quantifier: str) -> list[str]:
    if quantifier == "?":
        return ["", *piece]
    if quantifier.startswith("{"):
        least, _, most = quantifier[1:-1].partition(",")
        counts = range(int(least), int(most or least) + 1)
        return ["".join(parts) for count in counts for parts in itertools.product(piece, repeat=count)]
    none = [""] if quantifier == "*" else []
    if len(piece) == 1 and piece[0] in _DIGITS:
        return [*none, *(piece[0] * count for count in (1, 2, 3))]
    return ["*"] if quantifier == "*" else [f"{each}*" for each in piece]
