"""The share of a model that one rank holds: its pipeline stage, its tensor- and expert-parallel part, its adapters.

Lives here: the record of a rank's parameters, how they are split and stored, and the stages of a job.
Callers: ``model``, from which other rooms take these names.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .spread import model_trained_parameters as model_trained_parameters, stages as stages
    from .stage import LocalParameters as LocalParameters, Stage as Stage, unpacked_bytes as unpacked_bytes
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {"stage": "LocalParameters Stage unpacked_bytes", "spread": "model_trained_parameters stages"},
    )
