"""Reserved memory of the closed form: two training steps, replayed by the allocator's model.

Lives here: programs of a block's forward and backward pass in real sizes and order, what data parallelism allocates
around them, and the optimizer's step.
Callers: ``formula`` only.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .replayed import (
        REPLAYED_BYTES as REPLAYED_BYTES,
        lengths_cache as lengths_cache,
        replayed_slack as replayed_slack,
    )
else:
    __getattr__, __all__ = lazy_exports(__name__, {"replayed": "REPLAYED_BYTES lengths_cache replayed_slack"})
