"""Models that are held beside the trained one: references, teachers, reward models, moving averages.

Lives here: the bytes of such a model on one rank, a budget with them, and a traced budget with the saving of a
checkpoint, which no traced step has.
Callers: ``estimation``, for budgets of every method.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .add_to_budget import with_other_models as with_other_models
    from .held_models import HeldModel as HeldModel
    from .look_up import find_held_models as find_held_models
    from .saving_phase import with_saving_phase as with_saving_phase
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "add_to_budget": "with_other_models",
            "held_models": "HeldModel",
            "look_up": "find_held_models",
            "saving_phase": "with_saving_phase",
        },
    )
