"""Model families: for each ``model_type`` a record of what its config leaves unstated and how its blocks use memory.

Lives here: the ``Family`` record, the parameters of each kind of block and head, one row per family, the registry.
Callers: ``model``; ``formula`` for the registry and for what fused kernels replace.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .family import Family as Family
    from .liger_kernels import LIGER_PATCHES as LIGER_PATCHES
    from .registry import FAMILIES as FAMILIES, GENERIC as GENERIC, family_of as family_of
    from .task_heads import head_parameters as head_parameters
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "family": "Family",
            "liger_kernels": "LIGER_PATCHES",
            "registry": "FAMILIES family_of GENERIC",
            "task_heads": "head_parameters",
        },
    )
