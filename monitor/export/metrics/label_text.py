"""Text of labels: printable, without secrets, and of bounded length."""

from functools import lru_cache

from ...host import displayed_line

_MAX_CHARACTERS = 120


@lru_cache(maxsize=4096)  # the same few texts at each scrape
def label_text(text: str | None) -> str:
    """Return the value of a label; empty for what is unknown, which to Prometheus is the same as no label."""
    return displayed_line(text, _MAX_CHARACTERS)
