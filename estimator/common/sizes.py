"""Memory sizes: text (``80GiB``, ``80GB``, ``81559MiB``) to bytes, and bytes to GiB."""

import re

from .errors import InputError

KIB = 2**10
MIB = 2**20
GIB = 2**30
TIB = 2**40
UNSEEN_BYTES = GIB // 20
"""Differences of less are displayed as 0.0 GiB: they are none. A status or verdict changes only by more."""

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "t": TIB,
}
_SIZE = re.compile(r"\s*(\d+(?:[._]\d+)*)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of a size by its usual name.

    ``GiB``, ``MiB`` and a bare ``G``, ``M`` are powers of 1024; ``GB`` and ``MB`` are powers of 1000, as in SI.

    Raises:
        InputError: the text is not a positive size.
    """
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None or match[1].count(".") > 1:
        raise InputError(f"size {text!r} is not understood; write it like 80GiB, 80GB or 81559MiB")
    size = round(float(match[1]) * unit)
    if size <= 0:
        raise InputError(f"size {text!r} must be more than zero")
    return size


def format_size(size_bytes: int | None) -> str:
    """Return a size with its unit, for sums over many GPUs: GiB, and TiB from one on; ``n/a`` if it is unknown."""
    if size_bytes is None:
        return "n/a"
    if abs(size_bytes) < TIB:
        return f"{format_gib(size_bytes)} GiB"
    return f"{size_bytes / TIB:.2f} TiB".replace("-", "−")


def format_apart(first: int, second: int) -> tuple[str, str]:
    """Return two sizes in GiB without the unit, with as many digits as it takes to tell them apart, up to three."""
    for digits in (1, 2, 3):
        texts = format_gib(first, digits=digits), format_gib(second, digits=digits)
        if first == second or texts[0] != texts[1]:
            break
    return texts


def format_gib(size_bytes: int | None, *, digits: int = 1, signed: bool = False) -> str:
    """Return a size in GiB without the unit, for people; ``n/a`` if it is unknown."""
    if size_bytes is None:
        return "n/a"
    text = f"{size_bytes / GIB:{'+' if signed else ''}.{digits}f}"
    return text.replace("-", "−") if float(text) != 0 else text.lstrip("-+")


def size_text(size: int | None) -> str:
    """Return a size with its unit, in MiB below one GiB and in KiB below one MiB."""
    if size is None:
        return "an unknown size"
    if 0 < size < MIB:
        return f"{size / KIB:,.0f} KiB"
    return f"{size / MIB:,.0f} MiB" if size < GIB else f"{format_gib(size, digits=2)} GiB"
