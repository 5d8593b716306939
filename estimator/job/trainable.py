"""Patterns of parameter names that decide which parameters train, and the rules that they make.

A pattern matches a parameter whose dotted name it equals, or of whose name it is a run of whole components
(``lm_head``, ``model.layers.31``, ``mlp``); with ``*``, ``?`` or ``[`` it is matched against the whole name.
``!`` in front freezes what matches. The last pattern that matches a parameter decides; a parameter that none matches is
frozen if the first pattern has no ``!``, and trains otherwise.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ..common.records import replace

_MAX_PATTERNS = 10_000
_MAX_CHARACTERS = 500
_MAX_SHOWN = 3
_TRAINED_HEADS = {
    **dict.fromkeys(("sequence-classification", "token-classification"), ("classifier", "score")),
    "question-answering": ("qa_outputs",),
}
"""Modules that peft saves with the adapters, and so trains, by task."""


@dataclass(frozen=True)  # not slotted: the compiled rules are cached
class TrainableRules:
    """Patterns as regular expressions, in their order."""

    patterns: tuple[str, ...]
    """Patterns as they are written."""
    rules: tuple[tuple[str, bool], ...]
    """Regular expressions that are searched in a dotted name, and whether a parameter that matches trains."""
    otherwise: bool
    """True if a parameter that matches none trains."""
    optional: bool = False
    """A pattern may match no parameter: the job does not name them itself."""

    @cached_property
    def compiled(self) -> tuple[re.Pattern[str], ...]:
        """The regular expressions, compiled."""
        return tuple(re.compile(rule) for rule, _ in self.rules)

    def trains(self, name: str) -> bool:
        """Return True if a parameter of that dotted name trains."""
        last_first = zip(reversed(self.compiled), reversed(self.rules), strict=True)
        return next((trains for rule, (_, trains) in last_first if rule.search(name)), self.otherwise)


def check_patterns(patterns: Sequence[str]) -> None:
    """Check patterns as they are written in a job file.

    Raises:
        ValueError: there are none, or one is empty or far longer than any name.
    """
    if not patterns:
        raise ValueError(
            'trainable is an empty list; leave it out to train everything, or write ["!*"] to train nothing'
        )
    if len(patterns) > _MAX_PATTERNS:
        raise ValueError(f"trainable has {len(patterns):,} patterns; use a few with * instead")
    for pattern in patterns:
        name = pattern.removeprefix("!")
        if not name.strip(".") or any(character.isspace() for character in name) or len(name) > _MAX_CHARACTERS:
            raise ValueError(f"trainable has the pattern {pattern[:80]!r}, which no parameter's name can match")
        try:
            re.compile(pattern_regex(name))
        except re.error as error:
            raise ValueError(f"trainable has the invalid pattern {pattern[:80]!r}: {error}") from None


def describe_trained(patterns: Sequence[str]) -> str:
    """Return what trains by some patterns, in a few words."""
    frozen = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    if len(frozen) == len(patterns):
        return "nothing" if "*" in frozen else f"all but {_some(frozen)}"
    return _some(list(patterns))


def _some(names: list[str]) -> str:
    more = len(names) - _MAX_SHOWN
    return ", ".join(names[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")


def trained_heads(task: str) -> TrainableRules | None:
    """Return the rules by which peft trains the new head of a task beside its adapters; None: it trains none.

    Source: peft 0.21, ``peft_model.py`` (``PeftModelForSequenceClassification`` and those of other tasks).
    """
    names = _TRAINED_HEADS.get(task)
    return None if names is None else replace(_rules(names, True), optional=True)


def trainable_rules(patterns: Sequence[str], *, adapters: bool = False) -> TrainableRules:
    """Return the rules that patterns make.

    Args:
        patterns: as in ``training.trainable``.
        adapters: the job trains adapters, so that whatever no pattern names is frozen.
    """
    return _rules(tuple(patterns), adapters)


@lru_cache(maxsize=256)
def _rules(patterns: tuple[str, ...], adapters: bool) -> TrainableRules:
    return TrainableRules(
        patterns=patterns,
        rules=tuple((pattern_regex(pattern.removeprefix("!")), not pattern.startswith("!")) for pattern in patterns),
        otherwise=patterns[0].startswith("!") and not adapters,
    )


def pattern_regex(pattern: str) -> str:
    """Return the regular expression for one pattern without ``!``, in the syntax that Python 3.9 has too."""
    if not any(character in pattern for character in "*?["):
        return rf"(?:\A|\.){re.escape(pattern.strip('.'))}(?:\.|\Z)"
    first, *others = (_fixed_regex(part) for part in re.split(r"\*+", pattern))
    if not others:
        return rf"\A{first}\Z"
    # a lookahead with a reference to what it matched never tries another match: time stays linear in the stars
    between = "".join(f"(?=(?P<s{at}>.*?{part}))(?P=s{at})" for at, part in enumerate(others[:-1]))
    return rf"\A{first}{between}.*{others[-1]}\Z"


def _fixed_regex(part: str) -> str:
    """Return the regular expression for the part of a glob between two stars."""
    found = []
    for piece in re.findall(r"\[!?\]?[^\]]*\]|.", part):
        if len(piece) > 1:
            inside = re.sub(r"([\\\[&~|^])", r"\\\1", piece[1:-1].removeprefix("!"))
            found.append(f"[{'^' if piece.startswith('[!') else ''}{inside}]")
        else:
            found.append("." if piece == "?" else re.escape(piece))
    return "".join(found)
