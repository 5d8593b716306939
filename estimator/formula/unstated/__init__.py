"""What a job leaves open and memory depends on: versions of libraries, and units of FSDP that no rule knows.

Lives here: the other sides of such a choice, each as a changed job, and the range that allows for them.
Callers: ``estimation``.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .allow_for import with_unstated as with_unstated
else:
    __getattr__, __all__ = lazy_exports(__name__, {"allow_for": "with_unstated"})
