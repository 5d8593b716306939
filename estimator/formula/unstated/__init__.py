"""Settings that a job leaves open and memory depends on: versions of libraries, units of FSDP, lengths of batches.

Lives here: the other sides of such a choice, each as a changed job, how far they lie from it by the closed form, and
the range and the sentences that allow for them.
Callers: ``estimation``.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .left_open import LeftOpen as LeftOpen, find_left_open as find_left_open, with_left_open as with_left_open
else:
    __getattr__, __all__ = lazy_exports(__name__, {"left_open": "LeftOpen find_left_open with_left_open"})
