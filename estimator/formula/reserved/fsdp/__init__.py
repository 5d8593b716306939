"""FSDP's gathers and reductions in the replay: flat parameters (FSDP1), and parameters sharded one by one (FSDP2).

Lives here: what each version allocates around blocks, on which streams.
Callers: ``formula.reserved`` only.
"""

from typing import TYPE_CHECKING

from ....common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .fsdp1 import FlatUnits as FlatUnits
    from .fsdp2 import Units as Units
else:
    __getattr__, __all__ = lazy_exports(__name__, {"fsdp1": "FlatUnits", "fsdp2": "Units"})
