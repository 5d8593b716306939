"""Mark a search: its estimates may guess what torch's allocator keeps, which takes a hundredth of the time."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ROUGH: ContextVar[bool] = ContextVar("rough estimates", default=False)


@contextmanager
def rough_estimates() -> Iterator[None]:
    """Let estimates that the thread makes in the block guess the reserved memory."""
    before = _ROUGH.set(True)
    try:
        yield
    finally:
        _ROUGH.reset(before)


def are_estimates_rough() -> bool:
    """Return True in a block of ``rough_estimates``."""
    return _ROUGH.get()
