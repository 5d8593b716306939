"""TRL's training methods, one record each: what a trainer puts through the model, and which models it holds.

The records are in ``arguments/trl.toml``.
"""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from ..arguments.table import Default, Library, read_file

Scores = Literal["likelihood", "log-probs", "scores", "divergence"]
"""What the loss is made of: the likelihood of the tokens, as in pre-training; log-probabilities of completions; a score
per sequence or token, without a vocabulary; the divergence between student and teacher."""
Reference = Literal["none", "kept", "if-beta"]
"""``kept``: a frozen copy of the model unless adapters are trained; ``if-beta``: that, unless ``beta`` is 0."""
Generation = Literal["none", "group", "pair", "prompt"]
"""Text that is generated during training: groups of completions for several steps at once, two completions per prompt
of a step, or one per prompt."""
Since = tuple[int, int] | None
"""The first version of TRL in which something holds; None: none."""


class Method(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of TRL's training methods."""

    name: str = ""
    """TRL's command, or what its command would be: ``dpo``, ``online-dpo``."""
    classes: str
    """What the names of its classes begin with: ``OnlineDPO`` of ``OnlineDPOTrainer``."""
    scores: Scores
    sequences: int = 1
    """Sequences of one example that a step puts through the model: 2 for a chosen and a rejected one."""
    reference: Reference = "none"
    reference_beside: bool = False
    """Its frozen model runs while what the trained model's forward pass saved exists, not before it."""
    reference_sharded_since: Since = None
    """Since then its trainer shards its reference under FSDP (``prepare_fsdp``)."""
    generation: Generation = "none"
    task: str | None = None
    """The task of the model that it loads; None: that of the config, a language model."""
    num_labels: int | None = None
    """Outputs of the head of the model that it loads; None: the config's."""
    tiles_since: Since = None
    """Since then its trainer makes no logits (``add_fused_lm_head``)."""
    liger_since: Since = None
    """Since then it can run Liger-Kernel's loss of its own."""
    teacher: bool = False
    """A frozen teacher runs in the step (``teacher_model_name_or_path``)."""
    scored: bool = False
    """Frozen reward models score what it generates."""
    upcasts_quantized_until: Since = None
    """Since then it leaves what is not quantized of a quantized model in 16 bits; until then peft's
    ``prepare_model_for_kbit_training`` casts it to fp32. None: it never did."""
    trains_value_model: bool = False
    """It trains a second model, the value model, besides."""
    partly_known: bool = False
    """What else it holds or computes is not known here."""
    defaults_of: tuple[str, ...] = ()
    """Groups and methods whose defaults it has too."""
    default: Mapping[str, Default] = {}
    """Its own defaults by argument."""


class _Table(Library, frozen=True, forbid_unknown_fields=True):
    """The file ``trl.toml``; the defaults of the group ``all`` are every method's."""

    method: Mapping[str, Method] = {}


TABLE = read_file("trl", _Table)
METHODS = {name: msgspec.structs.replace(row, name=name) for name, row in TABLE.method.items()}
"""By name."""
TRAINER_NAMES = "|".join(row.classes for row in METHODS.values())
"""Alternatives of a regular expression: what the names of TRL's classes begin with."""
_CLASS = re.compile(rf"({TRAINER_NAMES})(?:v2)?(?:Config|Trainer)")


def method_of_class(name: str) -> Method | None:
    """Return the method of a class of TRL's, such as ``DPOTrainer`` or ``GRPOConfig``; None: it is none."""
    match = _CLASS.fullmatch(name)
    return next((row for row in METHODS.values() if match is not None and row.classes == match[1]), None)
