"""NeMo AutoModel: its YAML recipes and the overrides on its command line.

Lives here: the model, loss and adapters of a recipe, its precision, how each strategy of its ``distributed`` section
spreads the job, tensor-parallel plans, checkpoints, and the settings whose effect is known in its direction only.
Callers: ``tool_registry``, which finds the ``TOOL``.
"""

from typing import TYPE_CHECKING

from ....common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .reader import TOOL as TOOL
else:
    __getattr__, __all__ = lazy_exports(__name__, {"reader": "TOOL"})
