"""Communication buffers by moment of the step: the record that every strategy fills, units of parameters, and FSDP2's.

Lives here: what the strategies share. FSDP1, Megatron-FSDP and ZeRO have rooms of their own.
Callers: those rooms, ``communication``, which chooses between them, and ``model_states``.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .buffers import Buffers as Buffers
    from .fsdp2 import (
        root_buffers as root_buffers,
        unit_buffers as unit_buffers,
        whole_model_buffers as whole_model_buffers,
    )
    from .units import (
        NO_UNIT as NO_UNIT,
        Unit as Unit,
        elements_of as elements_of,
        largest_block as largest_block,
        unit_of as unit_of,
        weight_width as weight_width,
        whole_unit as whole_unit,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "buffers": "Buffers",
            "fsdp2": "root_buffers unit_buffers whole_model_buffers",
            "units": "NO_UNIT Unit elements_of largest_block unit_of weight_width whole_unit",
        },
    )
