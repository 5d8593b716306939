"""Programs that train with transformers' Trainer: job keys from TrainingArguments and TRL's and PEFT's arguments.

Lives here: model, step, LoRA, precision, sharding and run settings as the Trainer decides them.
Callers: ``tools`` and the two entry points of ``readers``.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .model_facts import (
        default_targets as default_targets,
        given_config as given_config,
        known_config as known_config,
        stored_dtype as stored_dtype,
    )
    from .trainer_program import read_trainer as read_trainer
    from .unread_settings import warn_of_unread as warn_of_unread
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "model_facts": "default_targets given_config known_config stored_dtype",
            "trainer_program": "read_trainer",
            "unread_settings": "warn_of_unread",
        },
    )
