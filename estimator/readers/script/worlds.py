"""Several readings of one script: where a condition cannot be decided, both answers are followed and compared."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...job import UncertaintyDirection
from ..source import MODEL_STATES, Component, Setting, as_bool, as_int
from .follow import Script, follow
from .models import Doubt
from .outcome import Outcome
from .python import (
    Decisions,
    Imports,
    Undecided,
)

_MAX_ALL_STEPS = 200_000
"""Statements and expressions followed in all readings of a script."""
_MAX_WORLDS = 16

_ALL: tuple[Component, ...] = (*MODEL_STATES, "activations", "logits")
_TRAINED: tuple[Component, ...] = ("gradients", "optimizer", "activations")
_EFFECTS: Mapping[str, tuple[UncertaintyDirection, tuple[Component, ...], str | None]] = {
    **dict.fromkeys(("model_name_or_path", "script_model_config", "task", "model"), ("either", _ALL, None)),
    **dict.fromkeys(("use_peft", "lora_r"), ("less", _TRAINED, "lora.rank")),
    "lora_target_modules": ("either", _TRAINED, "lora.targets"),
    "lora_modules_to_save": ("more", MODEL_STATES, None),
    "script_trainable": ("less", _TRAINED, None),
    "script_other_models": ("either", ("weights",), None),
    **dict.fromkeys(
        ("dtype", "torch_dtype", "bf16", "fp16", "mixed_precision"),
        ("either", (*MODEL_STATES, "activations"), "training.precision"),
    ),
    **dict.fromkeys(("load_in_4bit", "load_in_8bit"), ("less", ("weights",), "lora.quantization")),
    **dict.fromkeys(
        ("activation_checkpointing", "gradient_checkpointing", "activation_offloading"),
        ("less", ("activations",), "training.activation_checkpointing"),
    ),
    **dict.fromkeys(("per_device_train_batch_size",), ("less", ("activations", "logits"), "training.micro_batch")),
    **dict.fromkeys(
        ("max_length", "max_seq_length"), ("either", ("activations", "logits"), "training.sequence_length")
    ),
    **dict.fromkeys(("optim", "optim_args"), ("either", ("optimizer",), "training.optimizer")),
    **dict.fromkeys(("use_fsdp", "fsdp", "deepspeed"), ("less", MODEL_STATES, "parallel.strategy")),
    "fsdp_auto_wrap_policy": ("less", ("communication",), "parallel.fsdp_units"),
    **dict.fromkeys(("fsdp_sharding_strategy", "zero_stage"), ("less", MODEL_STATES, "parallel.strategy")),
    **dict.fromkeys(
        ("fsdp_offload_params", "offload_optimizer_device", "offload_param_device"),
        ("less", MODEL_STATES, "parallel.cpu_offload"),
    ),
    "attn_implementation": ("either", ("activations",), "model.attention"),
    "use_liger_kernel": ("less", ("logits",), "training.loss"),
    "gradient_accumulation_steps": ("either", ("gradients",), "training.gradient_accumulation"),
    **dict.fromkeys(("torch_compile",), ("either", ("activations",), None)),
}
"""What settings decide, in which direction an estimate that counts the larger answer may be off, and the job's key."""


@dataclass(slots=True)
class _World:
    outcome: Outcome
    decisions: Decisions
    parent: "_World | None" = None
    """The reading whose answers it shares but for one condition."""
    condition: Undecided | None = None
    """Condition that was assumed."""


def _read(script: Script, decisions: Decisions, imports: Imports) -> tuple[_World, int]:
    reading = follow(script, decisions, imports)
    return _World(reading.outcome, decisions), reading.steps


def read_worlds(script: Script) -> Outcome:
    """Return the reading of a script that takes most memory, with what the others decide differently as doubts."""
    imports = Imports(script.folders)
    steps = _MAX_ALL_STEPS
    first, used = _read(script, Decisions(), imports)
    steps -= used
    worlds = [first]
    queue = [(first, each) for each in first.decisions.asked.values()]
    seen = {frozenset(first.decisions.given.items())}
    queue.sort(key=lambda item: -item[1].matters)
    while queue and len(worlds) < _MAX_WORLDS and steps > 0:
        parent, asked = queue.pop(0)
        given = {**parent.decisions.given, asked.key: not asked.answer}
        if frozenset(given.items()) in seen:
            continue
        seen.add(frozenset(given.items()))
        world, used = _read(
            script, Decisions(given, texts=first.decisions.texts, passed=first.decisions.passed), imports.again()
        )
        steps -= used
        if first.outcome.trains and not world.outcome.trains:
            continue
        world.parent, world.condition = parent, asked
        worlds.append(world)
        new = [each for key, each in world.decisions.asked.items() if key not in parent.decisions.asked]
        queue += [(world, each) for each in new if each.matters]
    left = list({each.key: each for _, each in queue if each.matters}.values())
    return _merge(worlds, left=left, options=script.options)


def _merge(worlds: list[_World], *, left: list[Undecided], options: Mapping[str, Setting]) -> Outcome:
    """Return the reading that takes most memory, with doubts about what each condition decides."""
    best = max(worlds, key=lambda world: _size(world.outcome))
    outcome = best.outcome
    counted = _values(outcome)
    doubts: dict[tuple[Any, ...], Doubt] = {}
    for world in worlds:
        if world.parent is None or world.condition is None:
            continue
        values, before = _values(world.outcome), _values(world.parent.outcome)
        names = [
            name
            for name in _EFFECTS
            if (values.get(name) != before.get(name) or _is_resolved(name, world) != _is_resolved(name, world.parent))
            and (name not in options or name in outcome.assigned)
        ]
        if names:
            other = before if all(values.get(name) == counted.get(name) for name in names) else values
            for doubt in _doubts(world.condition, names, counted, other):
                doubts.setdefault((world.condition.where, str(doubt.key), doubt.components), doubt)
    known = {doubt.sentence for doubt in outcome.doubts}
    for world in worlds:
        outcome.doubts += [doubt for doubt in world.outcome.doubts if doubt.sentence not in known]
        known |= {doubt.sentence for doubt in world.outcome.doubts}
        outcome.option_names |= world.outcome.option_names
    outcome.doubts += doubts.values()
    if left:
        sentence = (
            f"{left[0].where}: whether {left[0].text} is only known when the script runs; what {len(left)} such "
            "conditions decide is not counted."
        )
        outcome.doubts.append(Doubt(sentence=sentence, components=_ALL))
    return outcome


def _is_resolved(name: str, world: _World) -> bool:
    return name not in world.outcome.unresolved


def _values(outcome: Outcome) -> dict[str, Any]:
    """Return the settings of a reading that memory depends on."""
    layers: dict[str, Setting] = {**outcome.accelerate, **outcome.hints, **outcome.written, **outcome.assigned}
    found = {name: setting.value for name, setting in layers.items()}
    if as_bool(layers.get("use_lora")):
        found.setdefault("use_peft", True)
    if not found.get("use_peft"):
        found = {name: value for name, value in found.items() if not name.startswith("lora_")}
    return {name: value for name, value in found.items() if value not in (None, False, [], {})}


def _size(outcome: Outcome) -> tuple[float, ...]:
    """Return what orders readings by the memory that they take."""
    found = _values(outcome)
    layers: dict[str, Setting] = {**outcome.accelerate, **outcome.hints, **outcome.written, **outcome.assigned}
    is_half = any(str(found.get(name, "")).endswith("16") for name in ("dtype", "torch_dtype"))
    trained = 3 if "use_peft" not in found else 1
    if "script_trainable" in found:
        trained = 2 if trained == 3 else 1
        trained = 0 if found["script_trainable"] == ["!*"] else trained
    batch = as_int(layers.get("per_device_train_batch_size")) or 0
    length = max(as_int(layers.get(name)) or 0 for name in ("max_length", "max_seq_length"))
    quantized = "load_in_4bit" in found or "load_in_8bit" in found
    checkpointing = "activation_checkpointing" in found or "gradient_checkpointing" in found
    sharded = not {"use_fsdp", "use_deepspeed", "fsdp", "deepspeed"}.isdisjoint(found)
    whole = "fsdp_auto_wrap_policy" in found and found["fsdp_auto_wrap_policy"] != "blocks"
    copied = found.get("fsdp_sharding_strategy") == "NO_SHARD"
    offloaded = "fsdp_offload_params" in found or "offload_optimizer_device" in found
    has_model = "model_name_or_path" in found or "script_model_config" in found
    others = len(found.get("script_other_models", ()))
    states = (not quantized, not is_half, not sharded, copied, not offloaded, whole)
    return (has_model, trained, *states, not checkpointing, batch, length, others)


def _doubts(
    condition: Undecided, names: list[str], counted: Mapping[str, Any], other: Mapping[str, Any]
) -> Iterator[Doubt]:
    """Yield doubts with one sentence on what a condition decides, and the components that it concerns."""
    pairs = [f"{_LABELS.get(name, name)} ({_shown(counted.get(name))} or {_shown(other.get(name))})" for name in names]
    sentence = (
        f"{condition.where}: whether {condition.text} is only known when the script runs. It decides about "
        f"{', '.join(pairs[:4])}{' and more' if len(pairs) > 4 else ''}; what stands first is counted."
    )
    for name in names:
        direction, components, key = _EFFECTS[name]
        yield Doubt(sentence=sentence, direction=direction, components=components, key=key)


_LABELS = {
    "use_peft": "LoRA adapters",
    "lora_r": "their rank",
    "lora_target_modules": "the layers that they adapt",
    "lora_modules_to_save": "the modules that train besides",
    "script_trainable": "the parameters that train",
    "script_other_models": "other models",
    "script_model_config": "the model's config",
    "model_name_or_path": "the model",
    "task": "the model's head",
    "optim": "the optimizer",
    "per_device_train_batch_size": "the micro-batch",
    "attn_implementation": "the attention",
    "torch_compile": "torch.compile",
    **dict.fromkeys(("activation_checkpointing", "gradient_checkpointing"), "activation checkpointing"),
    **dict.fromkeys(("dtype", "torch_dtype"), "the weights' type"),
    **dict.fromkeys(("use_fsdp", "fsdp"), "sharding"),
    "fsdp_auto_wrap_policy": "what FSDP gathers at once",
    "fsdp_sharding_strategy": "the sharding strategy",
    **dict.fromkeys(("fsdp_offload_params", "offload_optimizer_device", "offload_param_device"), "offloading"),
}


def _shown(value: Any) -> str:
    value = getattr(value, "name", value)
    words = {None: "unset", True: "on", False: "off"}
    is_word = value is None or isinstance(value, bool)
    text = words[value] if is_word else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
