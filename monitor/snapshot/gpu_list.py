"""Names of several GPUs in a sentence: consecutive indices are shortened, ``GPU 0-63``."""

from collections.abc import Iterable

_MIN_RUN = 3
"""Shorter runs of consecutive indices are written out: ``0, 1``."""


def gpu_list(labels: Iterable[int | str | range], *, most: int | None = None) -> str:
    """Return GPUs and MIG devices in their order: ``0-63``, ``0, 2, 4-7``, ``0:3``.

    Args:
        labels: indices, ranges of indices, and labels of MIG devices.
        most: of more parts than this, only the first are named.
    """
    parts: list[range | str] = []
    for label in labels:
        if isinstance(label, str) and not label.isdecimal():
            parts.append(label)
            continue
        run = label if isinstance(label, range) else range(int(label), int(label) + 1)
        before = parts[-1] if parts else ""
        if isinstance(before, range) and before.stop == run.start:
            parts[-1] = range(before.start, run.stop)
        else:
            parts.append(run)
    words = ", ".join(part if isinstance(part, str) else _range_text(part) for part in parts[:most])
    return words if most is None or len(parts) <= most else f"{words} …"


def _range_text(run: range) -> str:
    return f"{run[0]}-{run[-1]}" if len(run) >= _MIN_RUN else ", ".join(map(str, run))
