"""The optimizer, from TrainingArguments, DeepSpeed's configuration and the classes of a script."""

from collections.abc import Mapping
from typing import Any

from ...job.rules.optimizers.by_name import OptimizerChoice, optimizer_by_trainer_name
from ..source.evidence import FindingCollector
from ..source.settings import LayeredSettings, words_of
from .trainer_inputs import TrainerInputs


def read_optimizer(inputs: TrainerInputs, findings: FindingCollector) -> None:
    """Record the optimizer with its options, and what is uncertain about it."""
    settings = inputs.settings
    if (adafactor := settings.find_true("adafactor")) is not None:
        findings.record_from(adafactor, "training.optimizer", "adafactor")
        return
    setting = settings.find("optim")
    if setting is None or not isinstance(setting.value, OptimizerChoice):  # a script's own --optimizer is its own word
        setting = settings.find("optim", "optimizer")
    if inputs.deepspeed is not None:  # which transformers takes in place of the Trainer's (``deepspeed_optim_sched``)
        setting = inputs.deepspeed.find("optimizer") or setting
    if setting is not None and isinstance(setting.value, OptimizerChoice):  # a class of a script, or DeepSpeed's
        findings.record_optimizer(setting, setting.value)
    elif setting is not None:
        choice = optimizer_by_trainer_name(str(setting.value), _arguments(settings, findings))
        findings.record_optimizer(setting, choice)


def _arguments(settings: LayeredSettings, findings: FindingCollector) -> dict[str, Any]:
    """Return ``optim_args``, with the settings that the Trainer passes beside them."""
    given = settings.find("optim_args")
    found: dict[str, Any] = {}
    if given is not None and isinstance(given.value, Mapping):
        found |= given.value
    elif given is not None:
        parts = (part.partition("=") for part in str(given.value).replace(" ", "").split(",") if "=" in part)
        found |= {name: value for name, _, value in parts}
    decay = settings.find("weight_decay")
    if decay is not None:
        found["weight_decay"] = decay.value
    if (targets := settings.find("optim_target_modules")) is not None:
        words = words_of(targets)
        found["targets"] = "all-linear" if words in (["all-linear"], ["all_linear"]) else words
        if found["targets"] == words != ["attn", "mlp"]:  # as transformers' documentation has them
            found["targets"] = "blocks"
            sentence = f"{targets.origin}: which layers these are is not read; those of all blocks are counted."
            findings.mark_uncertain("training.optimizer", sentence, direction="more")
    return found
