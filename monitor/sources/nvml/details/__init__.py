"""Driver calls for the figures that are read only while a screen shows them: clocks, fans, links, health.

Lives here: one class per subject, each of which asks again only for what changes.
Callers: ``NvmlDevice``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .nvml_details import NvmlDetails as NvmlDetails
else:
    __getattr__, __all__ = lazy_exports(__name__, {"nvml_details": "NvmlDetails"})
