"""FSDP's settings under accelerate and the Trainer.

Lives here: where they are written, and the units that a wrap policy makes.
Callers: ``sharding`` and ``trainer_program``.
"""

from typing import TYPE_CHECKING

from ....common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .settings import FSDP1_NAMES as FSDP1_NAMES, fsdp_settings as fsdp_settings
    from .units import read_units as read_units
else:
    __getattr__, __all__ = lazy_exports(__name__, {"settings": "FSDP1_NAMES fsdp_settings", "units": "read_units"})
