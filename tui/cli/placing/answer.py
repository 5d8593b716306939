"""Answers of ``fit --slurm`` and ``--kubernetes``, as text that a scheduler takes, and as JSON."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vramtop.estimator.common import GIB
from vramtop.estimator.job import Gpu
from vramtop.monitor.board.fit import Verdict

from ...draw import printable

_WIDTH = 110
_WORDS: dict[Verdict, str] = {
    "fits": "fits",
    "tight": "tight",
    "does_not_fit": "does not fit",
    "unknown": "not known whether it fits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The card that the command line or the job names; Nones: any."""

    gpu: Gpu | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Verdict, request and facts."""

    verdict: Verdict
    need: str
    """What the job needs, in words."""
    sentence: str
    json: Mapping[str, Any]
    before: str | None = None
    """First line of the text: ``#!/bin/bash``."""
    request: Sequence[str] = ()
    """Lines for the scheduler; empty: there is nothing to ask it for."""
    table: Sequence[str] = ()
    """Lines of the table below."""
    notes: Sequence[str] = field(default=())

    def lines(self, notes: Sequence[str]) -> Iterator[str]:
        """Yield the text: the request as it is, everything else as comments, so that the whole is a valid file.

        Args:
            notes: further sentences.
        """
        if self.before and self.request:
            yield self.before
        yield f"# {_WORDS[self.verdict]}: needs {self.need}"
        yield from _comment(self.sentence)
        yield from self.request
        yield from (f"# {printable(line)}".rstrip() for line in self.table)
        for note in notes:
            yield from _comment(f"Note: {note}")


def _comment(text: str) -> list[str]:
    return textwrap.wrap(printable(text), _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)


def whole_gib(size_bytes: int) -> int:
    """Return a size in whole GiB, rounded up."""
    return -(-size_bytes // GIB)
