"""The words of a command line as people type them: underscores in flags, flags whose value is left out."""

import re
from collections.abc import Container, Iterator, Sequence
from functools import lru_cache

from .familiar import FAMILIAR_FLAGS, IGNORED_FLAGS, IGNORED_SWITCHES
from .job_flags import job_flags, value_alone

_ONE_DASH = re.compile(r"-[A-Za-z][A-Za-z-]+[0-9]?")
"""``-b4`` is ``-b 4``."""


def normal_words(words: Sequence[str], flags: Container[str] = ()) -> list[str]:
    """Return the words with dashes in the names of flags, and ``=`` between a flag and a value that is optional.

    Otherwise ``--lora llama-3.1-8b`` would read the model as the rank. A long name may stand behind one dash: ``-tp``.

    Args:
        words: as they were typed.
        flags: the names of a command's flags, beside those of a job.
    """
    optional = dict(_optional_values())
    normal: list[str] = []
    waiting = list(words)
    while waiting:
        name, equals, value = waiting.pop(0).partition("=")
        name = name.replace("_", "-") if name.startswith("-") else name
        word = f"{name}{equals}{value}"
        if _ONE_DASH.fullmatch(name) and name not in flags and (f"-{name}" in flags or f"-{name}" in flag_names()):
            word = f"-{word}"
        if word == "--exec":  # the rest is another program's
            return [*normal, word, *waiting]
        values = optional.get(word)
        if values is not None:
            text = waiting[0] if waiting else ""
            first = "".join(text.lower().replace(",", " ").split()[:1])
            takes = text.isdecimal() or first == "auto_wrap" or first in values
            word = f"{word}={waiting.pop(0) if takes else ''}"
        normal.append(word)
    return normal


@lru_cache(maxsize=1)
def flag_names() -> frozenset[str]:
    """Return the names of the flags of a job."""
    return frozenset((*job_flags(), *IGNORED_FLAGS, *(name for flag in FAMILIAR_FLAGS for name in flag.names)))


_SWITCH_WORDS = ("true", "false", "yes", "no", "on", "off")
_FURTHER_WORDS = {
    "--fsdp": ("full_shard", "shard_grad_op", "hybrid_shard", "no_shard"),
    "--flash-attention": ("fa2", "fa3", "auto", "disabled", "sdpa"),
    "--activation-checkpointing": ("none", "full", "selective"),
    "--cpu-offload": ("none", "optimizer", "all"),
}
"""Words that may follow a flag whose value is optional, by the first of its names."""


def _optional_values() -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the words that may follow each flag whose value is optional; a number may follow any."""
    for flag in FAMILIAR_FLAGS:
        if flag.value_optional:
            switch = () if flag.placeholder in ("RANK", "N") else _SWITCH_WORDS
            values = frozenset((*flag.choices, *switch, *_FURTHER_WORDS.get(flag.names[0], ())))
            yield from ((name, values) for name in flag.names)
    yield from ((name, frozenset(_SWITCH_WORDS)) for name in IGNORED_SWITCHES)
    for name, key in job_flags().items():
        if value_alone(key) is not None:
            yield name, frozenset((*_SWITCH_WORDS, *_FURTHER_WORDS.get(name, ())))
