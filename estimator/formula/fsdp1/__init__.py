"""FSDP1 in the closed form: its units, by block, by size or by class, and the buffers that they take.

Lives here: what becomes a flat parameter of its own, and what is gathered and reduced at the moments of a step.
Callers: ``formula`` only.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .buffers import flat_buffers as flat_buffers
    from .units import (
        Part as Part,
        casts_units as casts_units,
        flat_units as flat_units,
        gathered_share as gathered_share,
        keeps_copies as keeps_copies,
        unit_rule as unit_rule,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {"buffers": "flat_buffers", "units": "Part casts_units flat_units gathered_share keeps_copies unit_rule"},
    )
