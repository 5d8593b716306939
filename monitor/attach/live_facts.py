"""Facts that the running program reports by its probe, which precede what was read elsewhere."""

from collections.abc import Iterator, Mapping
from typing import Any

from vramtop.estimator.common.records import replace
from vramtop.estimator.job.rules.optimizers.by_name import optimizer_by_class
from vramtop.estimator.readers.source.evidence import Finding, JobReading
from vramtop.estimator.readers.source.settings import Setting

from ..probe.probe_reader import OptimizerFacts, ProbeSample

_MODEL = "reported by the running program (probe)"
_OPTIMIZER = "the running optimizer (probe)"
_UNKNOWN = "unknown"


def with_live_facts(reading: JobReading, sample: ProbeSample | None) -> JobReading:
    """Return a reading with the trained parameters and the optimizer that the probe reports, if it does."""
    found = {} if sample is None else {finding.key: finding for finding in _live_findings(sample)}
    if not found:
        return reading
    others = tuple(finding for finding in reading.findings if finding.key not in found)
    known = {*found, *(["training.trainable"] if "training.trainable_parameters" in found else [])}
    return replace(
        reading,
        findings=(*others, *found.values()),
        uncertainties=tuple(each for each in reading.uncertainties if each.unless not in known),
    )


def _live_findings(sample: ProbeSample) -> Iterator[Finding]:
    model = sample.model or {}
    trained = 0
    if model.get("sharded") is False:  # else a rank sees its share only
        counts: Mapping[str, int] = model["parameters"]
        trained = sum(count for name, count in counts.items() if name.endswith(" trained"))
    if not trained and all(each.sharded in (None, "dtensor") for each in sample.optimizers):
        trained = sum(count for each in sample.optimizers for count in each.trained.values())
    if trained:
        yield Finding(key="training.trainable_parameters", value=trained, origin=_MODEL, written=True)
    if names := _names(model.get("trained")):
        yield Finding(key="training.trainable", value=names, origin=_MODEL, written=True)
    if sample.optimizers:
        yield from _optimizer_findings(max(sample.optimizers, key=lambda each: sum(each.trained.values())))


def _names(value: Any) -> list[str] | None:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return None
    usable = [name for name in value if name and len(name) <= 500 and not name.startswith("!") and name.isprintable()]
    return usable if len(usable) == len(value) and not any(" " in name for name in usable) else None


def _optimizer_findings(facts: OptimizerFacts) -> Iterator[Finding]:
    given = {name: value for name, value in facts.options.items() if value is not None}
    choice = optimizer_by_class(facts.name, given)
    if choice.name == _UNKNOWN or choice.sentence is not None:
        return
    yield Finding(key="training.optimizer", value=choice.name, origin=_OPTIMIZER, written=True)
    if choice.options:
        yield Finding(key="training.optimizer_options", value=dict(choice.options), origin=_OPTIMIZER, written=True)


_RUNNING_MODEL = "the running model (probe)"
_TRAINER = "the running Trainer (probe)"
_TRAINER_ARGUMENTS = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "optim", "optim_args", "bf16", "fp16"),
    *("gradient_checkpointing", "activation_checkpointing", "torch_compile", "use_liger_kernel", "fsdp"),
    *("fsdp_config", "deepspeed", "max_length", "max_seq_length", "packing", "loss_type", "auto_find_batch_size"),
)
"""The trainer's arguments that memory depends on."""


def settings_from_probe(sample: ProbeSample | None) -> dict[str, Setting]:
    """Return the trainer's arguments and the model's facts; empty before training begins."""
    if sample is None:
        return {}
    trainer = sample.trainer or {}
    settings = {
        name: Setting(value=trainer[name], origin=f"{_TRAINER}: {name}")
        for name in _TRAINER_ARGUMENTS
        if trainer.get(name) not in (None, [], {}, "")
    }
    if sample.model:
        settings |= _model_settings(sample.model)
    return settings


def _model_settings(model: Mapping[str, Any]) -> dict[str, Setting]:
    values: dict[str, Any] = {}
    # most of the weights; quantized ones (uint8 frozen) do not show how they were loaded
    floating = {key: count for key, count in (model.get("parameters") or {}).items() if "float" in key}
    if floating:
        values["dtype"] = max(floating, key=lambda key: floating[key]).partition(" ")[0]
    if model.get("attention") in ("sdpa", "eager", "flash_attention_2", "flash_attention_3"):
        values["attn_implementation"] = model["attention"]
    if isinstance(model.get("gradient_checkpointing"), bool):
        values["activation_checkpointing"] = model["gradient_checkpointing"]
    if isinstance(model.get("config"), Mapping) and model["config"].get("model_type"):
        values["running_model_config"] = model["config"]
    lora = model.get("lora")
    if isinstance(lora, Mapping) and lora.get("r"):
        values |= {"use_peft": True, "lora_r": lora["r"]}
        if lora.get("target_modules"):
            values["lora_target_modules"] = lora["target_modules"]
    return {name: Setting(value=value, origin=_RUNNING_MODEL) for name, value in values.items()}
