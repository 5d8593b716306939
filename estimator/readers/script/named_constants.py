"""Settings of a training loop of its own that a script keeps in names of its module: ``batch_size = 12``."""

from ..source import Setting
from .command_line import setting_of_name
from .models import Notes
from .python import Scope

NAMES_BY_SETTING = {
    "per_device_train_batch_size": (
        *(
            "per_device_train_batch_size",
            "micro_batch_size",
            "device_batch_size",
            "per_device_batch_size",
            "batch_size",
        ),
    ),
    "gradient_accumulation_steps": (
        *("gradient_accumulation_steps", "grad_accum_steps", "accumulation_steps", "gradient_accumulation"),
        *("grad_accumulation_steps", "accum_steps"),
    ),
}
"""Names that scripts keep a setting in, by transformers' name; the first that has a number counts."""
_SHORT = {"B": "per_device_train_batch_size", "T": "max_length"}
"""Names of the sizes of a batch that some loops use, both together."""


def read_named_constants(scope: Scope, script: str, notes: Notes) -> dict[str, Setting]:
    """Return the settings that names of a module have at the end, for a script with a loop of its own.

    Args:
        scope: the module's.
        script: its name.
        notes: the reading; nothing is read for scripts with a trainer.
    """
    if notes.trainers or not notes.optimizers:
        return {}
    found: dict[str, Setting] = {}
    for setting, names in NAMES_BY_SETTING.items():
        known = (setting_of_name(scope, name, script) for name in names)
        first = next((each for each in known if each is not None and type(each.value) is int), None)
        if first is not None:
            found[setting] = first
    short = {name: setting_of_name(scope, name, script) for name in _SHORT}
    if all(each is not None and type(each.value) is int for each in short.values()):
        for name, each in short.items():
            if each is not None:
                found.setdefault(_SHORT[name], each)
    return found
