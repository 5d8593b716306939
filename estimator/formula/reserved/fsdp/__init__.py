"""FSDP's gathers and reductions in the replay: FSDP1's flat parameters, FSDP2's units, Megatron-FSDP's buckets.

Lives here: what each version allocates around blocks, on which streams.
Callers: ``formula.reserved`` only.
"""

from typing import TYPE_CHECKING

from ....common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .fsdp1 import FlatUnits as FlatUnits
    from .fsdp2 import Units as Units
    from .megatron import MegatronUnits as MegatronUnits
else:
    __getattr__, __all__ = lazy_exports(__name__, {"fsdp1": "FlatUnits", "fsdp2": "Units", "megatron": "MegatronUnits"})
