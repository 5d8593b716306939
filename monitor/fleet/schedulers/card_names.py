"""The cards behind the names that clusters give their GPUs: ``a100``, ``nvidia_a100_80gb_pcie``, ``1g.10gb``.

A name may stand for several cards of the catalogue, and then each counts: what fits on all of them fits.
"""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from vramtop.estimator.common import GIB
from vramtop.estimator.job import Gpu, catalogue

_WORD = re.compile(r"[a-z]+\d*[a-z]*|\d+[a-z]*")
_VENDOR = {"nvidia", "tesla", "geforce", "quadro", "gpu", "gpus", "generation", "graphics"}
_FORMS = {"sxm", "sxm2", "sxm3", "sxm4", "sxm5", "sxm6", "pcie", "hbm2", "hbm2e", "hbm3", "hbm3e", "server", "edition"}
"""Words for the form of a card; the catalogue may lack the one that a cluster has."""
_AMBIGUOUS = {"rtx", "4000", "5000", "6000", "8000"}
"""An RTX 6000 may be of Turing (24 GB), Ada (48) or Blackwell (96): of the first the catalogue has none."""
_SERIES = re.compile(r"(rtx|gtx)?(\d{4})(ti|super|ada)?")
_BARE_SIZE_WORD = re.compile(r"([1-9]\d{1,2})g?")
_MIG = re.compile(r"(?:^|[_:.-])(\d)g\.(\d+)gb", re.IGNORECASE)
_SIZE = re.compile(r"(?<!\d)(\d{1,3})g(?:i?b)?(?![0-9a-z])", re.IGNORECASE)
_BARE_SIZE = re.compile(r"(?:gpu|vram|gmem)[a-z_-]*[_:=-]?(\d{1,3})(?![0-9a-z])", re.IGNORECASE)
_GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSize:
    """A card that a name may stand for."""

    gpu: Gpu | None
    """Entry of the catalogue; None: only the size is known."""
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardMatch:
    """The cards that the name of a GPU may stand for."""

    cards: tuple[CardSize, ...] = ()
    """Smallest first; empty: its memory is unknown."""
    mig: str | None = None
    """Profile of a MIG device: ``3g.20gb``."""
    feature: str | None = None
    """Feature of the node that told the card or its size; None: its name did."""

    @property
    def label(self) -> str:
        """Name in sentences: ``A100 80GB``, ``A100 40GB or A100 80GB``, ``MIG 3g.20gb``."""
        if self.mig:
            return f"MIG {self.mig}"
        named = (card.gpu.label if card.gpu else f"{card.total_bytes / GIB:.0f} GiB" for card in self.cards)
        return " or ".join(dict.fromkeys(named)) or "unknown card"


def match_card(name: str | None, features: Iterable[str] = ()) -> CardMatch:
    """Return the cards that a cluster's name for a GPU may stand for.

    Args:
        name: type of the Gres; None: it has none.
        features: those of the node, which may name the card, or its size where the name leaves several.
    """
    return _match(name, tuple(features))


@functools.lru_cache(maxsize=4096)
def _match(name: str | None, features: tuple[str, ...]) -> CardMatch:
    if name and (mig := _MIG.search(name)):
        return _mig(name, mig)
    if name:
        return _narrowed(_named(name), name, features)
    for feature in features:  # no type: a feature that names a card, if all that do name the same
        found = _named(feature)
        others = [each for each in features if each != feature and (named := _named(each)) and named != found]
        if found and not others:
            match = _narrowed(found, feature, features)
            return CardMatch(cards=match.cards, feature=match.feature or feature)
    return CardMatch()


def _mig(name: str, mig: re.Match[str]) -> CardMatch:
    """Return a MIG device: its name rounds its size, so that it lies between that many GB and that many GiB."""
    parents = _named(name[: mig.start()])
    parent = parents[0] if parents else None
    size = int(mig[2])
    sizes = (CardSize(gpu=parent, total_bytes=size * _GB), CardSize(gpu=parent, total_bytes=size * GIB))
    return CardMatch(cards=sizes, mig=f"{mig[1]}g.{size}gb")


def _narrowed(gpus: tuple[Gpu, ...], name: str, features: tuple[str, ...]) -> CardMatch:
    """Return cards, those of the size only that a feature of the node gives."""
    told = None
    if len({_nominal(gpu) for gpu in gpus}) > 1:
        for feature in features:
            size = _size_in(feature, name)
            fitting = tuple(gpu for gpu in gpus if size is not None and _nominal(gpu) == size)
            if fitting:
                gpus, told = fitting, feature
                break
    cards = sorted({gpu.total_bytes: gpu for gpu in reversed(gpus)}.items())
    return CardMatch(cards=tuple(CardSize(gpu=gpu, total_bytes=size) for size, gpu in cards), feature=told)


def _size_in(feature: str, name: str) -> int | None:
    """Return the GB of a GPU that a feature gives: ``gpu_mem_80``, ``a100_80gb``, ``80gb``; networks have sizes too."""
    rest = feature.casefold()
    about_gpu = name.casefold() in rest or any(word in rest for word in ("gpu", "vram", "gmem"))
    rest = rest.replace(name.casefold(), " ")
    if found := _SIZE.search(rest):
        return int(found[1]) if about_gpu or re.fullmatch(r"\s*\d+gi?b", rest) else None
    if about_gpu and (found := _BARE_SIZE.search(feature)):
        return int(found[1])
    found = re.fullmatch(r"\s*[_-](\d{2,3})", rest) if about_gpu else None
    return int(found[1]) if found else None


def _nominal(gpu: Gpu) -> int:
    """Return the size in a GPU's name, in GB."""
    found = re.search(r"(\d+)gb", " ".join((gpu.name, *gpu.aliases, gpu.label.casefold())), re.IGNORECASE)
    return int(found[1]) if found else round(gpu.total_bytes / GIB)


@functools.lru_cache(maxsize=4096)
def _named(name: str) -> tuple[Gpu, ...]:
    """Return the GPUs that may be meant: the one of exactly this name, else all that have every word of it."""
    words = _words(name)
    for each in (words, words - _FORMS):
        if not any(character.isdigit() for word in each for character in word) or each <= _AMBIGUOUS:
            continue
        exact = tuple(gpu for gpu in catalogue() if any(each == own for own in _own_words(gpu, aliases=False)))
        found = exact or tuple(gpu for gpu in catalogue() if any(each <= own for own in _own_words(gpu, aliases=True)))
        if found:
            return found
    return ()


@functools.cache
def _own_words(gpu: Gpu, *, aliases: bool) -> list[set[str]]:
    return [_words(each) for each in (*gpu.nvml_names, gpu.label, gpu.name, *(gpu.aliases if aliases else ()))]


def _words(name: str) -> set[str]:
    """Return the words of a name: {rtx, 4090} of ``rtx4090`` and of ``NVIDIA GeForce RTX 4090``."""
    found: set[str] = set()
    for word in _WORD.findall(name.casefold()):
        parts = _SERIES.fullmatch(word)
        for part in filter(None, parts.groups() if parts else [word]):
            size = _BARE_SIZE_WORD.fullmatch(part)
            found.add(f"{size[1]}gb" if size else part)
    return found - _VENDOR
