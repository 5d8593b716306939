"""FSDP's settings under accelerate and the Trainer.

Lives here: the units that a wrap policy makes.
Callers: ``sharding``.
"""

from typing import TYPE_CHECKING

from ....common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .units import read_units as read_units
else:
    __getattr__, __all__ = lazy_exports(__name__, {"units": "read_units"})
