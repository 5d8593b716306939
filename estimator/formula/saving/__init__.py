"""Memory of saving a checkpoint: state dicts that ranks gather on the GPU, and copies of them in host memory.

Lives here: what a checkpoint holds, the bytes of it that are gathered at once, by strategy, and the host's copies.
Callers: ``peak_moments`` and ``host_memory``.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .gathered import gathered_bytes as gathered_bytes
    from .host_copies import saved_on_host as saved_on_host
else:
    __getattr__, __all__ = lazy_exports(__name__, {"gathered": "gathered_bytes", "host_copies": "saved_on_host"})
