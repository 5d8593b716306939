"""Fields that everyone sets, and the groups below which the others are folded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vramtop.estimator.job import Job

from .fields import MODEL, SERVING, TUNING, JobField, field_value
from .sharding import GPUS, SHARDING, SHARDING_KEYS

BASIC = (
    MODEL,
    TUNING,
    "training.sequence_length",
    "training.micro_batch",
    "training.precision",
    "training.activation_checkpointing",
    SHARDING,
    GPUS,
)
"""What everyone sets, in the order of the form."""
_GROUP_OF_TABLE = {"model": "model", TUNING: "adapters", SERVING: "serving", "parallel": "parallelism"}
_GROUP_OF_KEY = {
    **dict.fromkeys(
        (
            *("training.gradient_accumulation", "training.sequences_per_example", "training.loss"),
            *("training.loss_length", "training.reference_pass"),
        ),
        "batch and loss",
    ),
}
_OTHER = "optimizer and memory"
_ORDER = ("adapters", "batch and loss", _OTHER, "model", "parallelism", "serving")


@dataclass(frozen=True, slots=True)
class FieldGroup:
    """Fields below one heading."""

    title: str
    keys: tuple[str, ...]

    @property
    def id(self) -> str:
        """The heading's id in the DOM."""
        return f"group-{self.title.replace(' ', '-')}"

    def heading(self, values: Mapping[str, Any]) -> str:
        """Return the title, with the number of values that differ from their defaults."""
        default = Job()
        count = sum(
            values.get(key) is not None and values[key] != field_value(default, key)
            for key in self.keys
            if key not in SHARDING_KEYS  # the choice of GPUs and sharding shows them
        )
        return f"{self.title} · {count} changed" if count else self.title


def field_groups(fields: Sequence[JobField]) -> tuple[FieldGroup, ...]:
    """Return the groups of the fields that are not basic; a new setting is in the group of its table."""
    members: dict[str, list[str]] = {title: [] for title in _ORDER}
    for field in fields:
        if field.key not in BASIC:
            title = _GROUP_OF_KEY.get(field.key) or _GROUP_OF_TABLE.get(field.table, _OTHER)
            members[title].append(field.key)
    return tuple(FieldGroup(title, tuple(keys)) for title, keys in members.items() if keys)
