"""The form of a job: its fields, what they hold, and the widgets that show and change them.

Lives here: fields and groups derived from ``Job``, the form's state without widgets, the search for a model, the form.
Callers: ``job``, the fit check and the attach screen.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .field_help import help_line as help_line
    from .fields import TUNING as TUNING
    from .inputs import ModelInput as ModelInput
    from .job_form import JobForm as JobForm
    from .model_search import (
        ModelChoice as ModelChoice,
        cached_models as cached_models,
        model_choices as model_choices,
        model_names as model_names,
    )
    from .sharding import sharding_word as sharding_word
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "field_help": "help_line",
            "fields": "TUNING",
            "inputs": "ModelInput",
            "job_form": "JobForm",
            "model_search": "cached_models model_choices ModelChoice model_names",
            "sharding": "sharding_word",
        },
    )
