"""Chooses how estimates of a search find reserved memory: replaying a step takes much longer than the rest.

They may find what torch's allocator reserves without a replay, and need not replay what the job may be instead.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

ReservedMemory = Literal["replayed", "least", "guessed"]
"""``replayed``: from a replay of two steps; ``least``: what is allocated at the peak, less than which the allocator
never reserves, so that a job which does not even fit so does not fit; ``guessed``: its usual share more."""
_FOUND: ContextVar[ReservedMemory] = ContextVar("how reserved memory is found", default="replayed")


@contextmanager
def with_reserved_memory(how: ReservedMemory) -> Iterator[None]:
    """Let estimates that the thread makes in the block find the reserved memory in this way."""
    before = _FOUND.set(how)
    try:
        yield
    finally:
        _FOUND.reset(before)


def how_reserved_memory_is_found() -> ReservedMemory:
    """Return how estimates find the reserved memory: ``replayed`` outside of ``with_reserved_memory``."""
    return _FOUND.get()


_ONLY_FIGURES: ContextVar[bool] = ContextVar("only figures are estimated", default=False)


@contextmanager
def only_figures() -> Iterator[None]:
    """Let estimates that the thread makes in the block leave out what widens ranges and adds sentences alone.

    That is what the job does not state: versions of libraries, units, and whether batches differ in length. It takes
    several replays, and a search that compares figures needs none of it.
    """
    before = _ONLY_FIGURES.set(True)
    try:
        yield
    finally:
        _ONLY_FIGURES.reset(before)


def estimates_only_figures() -> bool:
    """Return True inside of ``only_figures``."""
    return _ONLY_FIGURES.get()
