"""TRL's training methods, one record each: what a trainer puts through the model, and which models it holds.

Read from TRL's sources of versions 0.9 to 1.16 (``trl/trainer/*_trainer.py``, ``trl/experimental``).
"""

import re
from dataclasses import dataclass
from typing import Literal

Scores = Literal["likelihood", "log-probs", "scores", "divergence"]
"""What the loss is made of: the likelihood of the tokens, as in pre-training; log-probabilities of completions; a score
per sequence or token, without a vocabulary; the divergence between student and teacher."""
Reference = Literal["none", "kept", "if-beta"]
"""``kept``: a frozen copy of the model unless adapters are trained; ``if-beta``: that, unless ``beta`` is 0."""
Generation = Literal["none", "group", "pair", "prompt"]
"""Text that is generated during training: groups of completions for several steps at once, two completions per prompt
of a step, or one per prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One of TRL's training methods."""

    name: str
    """TRL's command, or what its command would be: ``dpo``, ``online-dpo``."""
    classes: str
    """What the names of its classes begin with: ``OnlineDPO`` of ``OnlineDPOTrainer``."""
    scores: Scores
    sequences: int = 1
    """Sequences that one example puts through the model at once: 2 for a chosen and a rejected one."""
    reference: Reference = "none"
    reference_beside: bool = False
    """Its frozen model runs while what the trained model's forward pass saved exists, not before it."""
    generation: Generation = "none"
    task: str | None = None
    """The task of the model that it loads; None: that of the config, a language model."""
    num_labels: int | None = None
    """Outputs of the head of the model that it loads; None: the config's."""
    tiles_since: tuple[int, int] | None = None
    """TRL's version since which its trainer makes no logits (``add_fused_lm_head``); None: it makes them."""
    liger_since: tuple[int, int] | None = None
    """TRL's version since which it can run Liger-Kernel's loss of its own."""
    teacher: bool = False
    """A frozen teacher runs in the step (``teacher_model_name_or_path``)."""
    scorers: tuple[str, ...] = ()
    """Arguments that name frozen reward models."""
    upcasts_quantized_until: tuple[int, int] | None = None
    """TRL's version since which it leaves what is not quantized of a quantized model in 16 bits; until then peft's
    ``prepare_model_for_kbit_training`` casts it to fp32. None: it never did."""
    trains_value_model: bool = False
    """It trains a second model, the value model, besides."""
    partly_known: bool = False
    """What else it holds or computes is not known here."""


_STILL = (99, 0)
_GENERATED = ("reward_model_name_or_path", "reward_model_path", "reward_funcs", "reward_model")
_ROWS = (
    Method(name="sft", classes="SFT", scores="likelihood", tiles_since=(1, 15), upcasts_quantized_until=(0, 26)),
    Method(
        name="dpo",
        classes="DPO",
        scores="log-probs",
        upcasts_quantized_until=(0, 29),
        sequences=2,
        reference="kept",
        reference_beside=True,
        tiles_since=(1, 15),
        liger_since=(0, 19),
    ),
    Method(
        name="kto",
        classes="KTO",
        scores="log-probs",
        upcasts_quantized_until=(1, 4),
        reference="kept",
        reference_beside=True,
        tiles_since=(1, 15),
        liger_since=(0, 17),
    ),
    Method(
        name="bco",
        classes="BCO",
        scores="log-probs",
        upcasts_quantized_until=_STILL,
        reference="kept",
        reference_beside=True,
    ),
    Method(name="cpo", classes="CPO", scores="log-probs", upcasts_quantized_until=_STILL, sequences=2),
    Method(name="orpo", classes="ORPO", scores="log-probs", upcasts_quantized_until=_STILL, sequences=2),
    Method(name="tpo", classes="TPO", scores="log-probs", sequences=3),
    Method(
        name="reward",
        classes="Reward",
        scores="scores",
        upcasts_quantized_until=(0, 26),
        sequences=2,
        task="sequence-classification",
        num_labels=1,
    ),
    Method(
        name="prm",
        classes="PRM",
        scores="scores",
        task="token-classification",
        upcasts_quantized_until=(1, 9),
    ),
    Method(
        name="grpo",
        classes="GRPO",
        scores="log-probs",
        upcasts_quantized_until=(0, 26),
        reference="if-beta",
        generation="group",
        tiles_since=(1, 15),
        liger_since=(0, 17),
        scorers=_GENERATED,
    ),
    Method(
        name="rloo",
        classes="RLOO",
        scores="log-probs",
        upcasts_quantized_until=(0, 27),
        reference="if-beta",
        generation="group",
        tiles_since=(1, 15),
        scorers=_GENERATED,
    ),
    Method(
        name="online-dpo",
        classes="OnlineDPO",
        scores="log-probs",
        upcasts_quantized_until=(1, 9),
        sequences=2,
        reference="kept",
        reference_beside=True,
        generation="pair",
        scorers=_GENERATED,
    ),
    Method(
        name="xpo",
        classes="XPO",
        scores="log-probs",
        upcasts_quantized_until=(1, 9),
        sequences=2,
        reference="kept",
        reference_beside=True,
        generation="pair",
        scorers=_GENERATED,
    ),
    Method(
        name="nash-md",
        classes="NashMD",
        scores="log-probs",
        upcasts_quantized_until=(1, 9),
        reference="kept",
        reference_beside=True,
        generation="pair",
        scorers=_GENERATED,
    ),
    Method(
        name="gkd",
        classes="GKD",
        scores="divergence",
        upcasts_quantized_until=(0, 26),
        teacher=True,
        reference_beside=True,
        generation="prompt",
    ),
    Method(name="gold", classes="GOLD", scores="divergence", teacher=True, reference_beside=True, generation="prompt"),
    Method(
        name="distillation",
        classes="Distillation",
        scores="divergence",
        teacher=True,
        reference_beside=True,
        generation="group",
        tiles_since=(1, 10),
    ),
    Method(
        name="minillm", classes="MiniLLM", scores="divergence", teacher=True, reference_beside=True, generation="group"
    ),
    Method(
        name="ppo",
        classes="PPO",
        scores="log-probs",
        reference="kept",
        generation="prompt",
        scorers=_GENERATED,
        trains_value_model=True,
    ),
    Method(
        name="gmpo",
        classes="GMPO",
        scores="log-probs",
        reference="if-beta",
        generation="group",
        tiles_since=(1, 15),
        liger_since=(0, 17),
        scorers=_GENERATED,
    ),
    Method(name="async-grpo", classes="AsyncGRPO", scores="log-probs", tiles_since=(1, 15)),
    Method(
        name="a2po",
        classes="A2PO",
        scores="log-probs",
        reference="kept",
        generation="group",
        scorers=_GENERATED,
        partly_known=True,
    ),
    Method(name="sdft", classes="SDFT", scores="log-probs", generation="group", partly_known=True),
    Method(name="sdpo", classes="SDPO", scores="log-probs", generation="group", scorers=_GENERATED, partly_known=True),
    Method(
        name="iw-opd",
        classes="IWOPD",
        scores="divergence",
        teacher=True,
        reference_beside=True,
        generation="group",
        partly_known=True,
    ),
    Method(name="async-distillation", classes="AsyncDistillation", scores="log-probs", partly_known=True),
    Method(
        name="server-distillation",
        classes="ServerDistillation",
        scores="divergence",
        generation="group",
        tiles_since=(1, 10),
        partly_known=True,
    ),
)
METHODS = {row.name: row for row in _ROWS}
"""By name."""
TRAINER_NAMES = "|".join(row.classes for row in _ROWS)
"""Alternatives of a regular expression: what the names of TRL's classes begin with."""
_CLASS = re.compile(rf"({TRAINER_NAMES})(?:v2)?(?:Config|Trainer)")


def method_of_class(name: str) -> Method | None:
    """Return the method of a class of TRL's, such as ``DPOTrainer`` or ``GRPOConfig``; None: it is none."""
    match = _CLASS.fullmatch(name)
    return next((row for row in _ROWS if match is not None and row.classes == match[1]), None)
