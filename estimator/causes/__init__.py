"""Causes of a divergence: which settings or extra memory would explain what is observed.

Lives here: the tables of possible causes with their priors, and the search for the most plausible explanation.
Callers: ``monitor.board.divergence`` and the ``attach`` command.
"""

from typing import TYPE_CHECKING

from ..common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .divergence import (
        Divergence as Divergence,
        Observation as Observation,
        explain_divergence as explain_divergence,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "divergence": "Divergence explain_divergence Observation",
        },
    )
