"""The settings of a job: its tables as records, with one sentence on each field.

Lives here: one module per subject. The first paragraph of a field's docstring is its help, on the command line and in
forms (``job.field_help``).
Callers: ``job`` itself; other rooms take these names from there.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .generation import Inference as Inference, Rollout as Rollout
    from .model import Lora as Lora, ModelSpec as ModelSpec, OtherModel as OtherModel
    from .parallel import MAX_GPUS as MAX_GPUS, Parallel as Parallel
    from .saving import Saving as Saving
    from .surroundings import (
        Run as Run,
        Software as Software,
        Target as Target,
        Uncertainties as Uncertainties,
        UncertaintyDirection as UncertaintyDirection,
    )
    from .training import Training as Training
    from .value_types import OptimizerName as OptimizerName, StrategyName as StrategyName
    from .zero import Zero as Zero
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "generation": "Inference Rollout",
            "model": "Lora ModelSpec OtherModel",
            "parallel": "MAX_GPUS Parallel",
            "saving": "Saving",
            "surroundings": "Run Software Target Uncertainties UncertaintyDirection",
            "training": "Training",
            "value_types": "OptimizerName StrategyName",
            "zero": "Zero",
        },
    )
