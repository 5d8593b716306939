"""TRL's training methods: what their trainers hold beside the trained model, by TRL's version.

Lives here: a record per method, the defaults of its configuration, and the readers of what only TRL has (pairs of
sequences, losses, reference and reward models, generation). ``trainer`` reads what all users of transformers share.
Callers: ``trainer``, ``tools``, the two entry points of ``readers``, and ``tui.job`` for a method that is a flag;
``program`` for the names of TRL's classes.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .defaults import (
        argument_defaults as argument_defaults,
        model_config_defaults as model_config_defaults,
        trl_defaults as trl_defaults,
    )
    from .lengths import read_length as read_length
    from .liger import read_liger as read_liger
    from .loss import read_loss as read_loss
    from .method_of_job import read_method as read_method
    from .methods import (
        METHODS as METHODS,
        TRAINER_NAMES as TRAINER_NAMES,
        Method as Method,
        method_of_class as method_of_class,
    )
    from .other_models import Setup as Setup, read_other_models as read_other_models
    from .rollout import read_rollout as read_rollout
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "defaults": "argument_defaults model_config_defaults trl_defaults",
            "lengths": "read_length",
            "liger": "read_liger",
            "loss": "read_loss",
            "method_of_job": "read_method",
            "methods": "Method METHODS method_of_class TRAINER_NAMES",
            "other_models": "read_other_models Setup",
            "rollout": "read_rollout",
        },
    )
