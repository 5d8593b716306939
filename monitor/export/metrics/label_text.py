"""Text of labels: printable, without secrets, and of bounded length."""

from functools import lru_cache

from vramtop.estimator.common import displayed

from ...host import sanitize_line

_MAX_CHARACTERS = 120


@lru_cache(maxsize=4096)  # the same few texts at each scrape
def label_text(text: str | None) -> str:
    """Return the value of a label; empty for what is unknown, which to Prometheus is the same as no label."""
    line = sanitize_line(displayed(text)) if text else None
    if line is None:
        return ""
    return line if len(line) <= _MAX_CHARACTERS else f"{line[: _MAX_CHARACTERS - 1]}…"
