"""The line of help for the field that has the focus: what it sets, its choices, its default."""

from vramtop.estimator.job.field_help import field_help

from .fields import TUNING
from .sharding import GPUS, SHARDING

_HELP = {
    "": "Enter folds or unfolds these settings",
    "advice": "1-9 or Enter applies a change, and F10 undoes it; here, letters are keys: ? lists them.",
    TUNING: "full trains all weights; LoRA trains small adapters on frozen weights; QLoRA is LoRA on 4-bit weights.",
    "target.gpu": "The GPUs for the job: those of this machine, or a card of the catalogue; Enter searches.",
    SHARDING: (
        "DDP copies the model to every GPU; FSDP and ZeRO-3 shard weights, gradients and optimizer states; ZeRO-2 "
        "shards gradients and optimizer states."
    ),
    GPUS: "Number of data-parallel GPUs; tensor and pipeline parallelism multiply it.",
}
_MAX_CHOICES = 6


def help_line(key: str) -> str:
    """Return the help of a field in one line; the most important first, since the line may be cut."""
    if key in _HELP:
        return _HELP[key]
    found = field_help(key)
    parts = [found.sentence]
    if 0 < len(found.choices) <= _MAX_CHOICES:
        parts.append(f"One of {', '.join(found.choices)}.")
    if found.default_text is not None:
        parts.append(f"Default: {found.default_text}.")
    return " ".join(filter(None, parts))
