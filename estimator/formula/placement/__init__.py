"""Jobs that say themselves where modules lie: tensor-parallel plans of the user's, and device maps.

Lives here: what the closed form counts for them, and what it leaves open.
Callers: ``closed_form``.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .placed_words import (
        placement_assumptions as placement_assumptions,
        placement_warnings as placement_warnings,
    )
    from .split_doubt import plan_warnings as plan_warnings, with_split_doubt as with_split_doubt
    from .unlike_blocks import (
        unlike_blocks_warnings as unlike_blocks_warnings,
        with_unlike_blocks as with_unlike_blocks,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "placed_words": "placement_assumptions placement_warnings",
            "split_doubt": "plan_warnings with_split_doubt",
            "unlike_blocks": "unlike_blocks_warnings with_unlike_blocks",
        },
    )
