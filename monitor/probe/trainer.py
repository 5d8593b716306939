"""Callback that publishes what transformers' Trainer trains. Runs in the user's process, as ``publisher`` does."""

from __future__ import annotations

import re
import sys
from typing import Any

from . import publisher

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.|base_model\.model\.)+")
"""Prefixes that DistributedDataParallel, torch.compile and peft put before a model's own names."""
_MAX_NAMES = 300
_SECRET_ENDINGS = ("_token", "_key", "_password", "_secret")


def add_callback(trainer_module: Any) -> None:
    """Add the callback, which publishes settings, model and steps, to every Trainer of ``transformers.trainer``."""
    callbacks = getattr(trainer_module, "DEFAULT_CALLBACKS", None)
    base = getattr(sys.modules.get("transformers.trainer_callback"), "TrainerCallback", None)
    if callbacks is not None and base is not None:
        callbacks.append(callback_class(base))


def callback_class(base: Any) -> Any:
    """Return the callback, a subclass of transformers' TrainerCallback; several of them in one Trainer do no harm."""

    class VramtopCallback(base):  # type: ignore[misc]
        """Publishes what is trained for vramtop; changes nothing."""

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            try:
                publisher.start()  # forked ranks have no probe yet
                publisher.publish_facts(**_facts(args, state, model))
            except Exception:  # no exception of the probe may reach the user's program
                pass

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            publisher.step_began()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            publisher.step_ended((id(state), state.global_step))

        def __reduce__(self) -> Any:
            return base, ()  # a process that a Trainer is sent to may lack vramtop

    return VramtopCallback


def _facts(args: Any, state: Any, model: Any) -> dict[str, Any]:
    """Return the trainer's arguments and the model's facts; called once, when training begins."""
    facts = {"trainer": _without_secrets(args.to_dict()), "class": type(args).__name__, "max_steps": state.max_steps}
    if model is not None:
        facts["model"] = _model_facts(model)
    return facts


def _model_facts(model: Any) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for parameter in model.parameters():
        kind = str(parameter.dtype).replace("torch.", "")
        key = f"{kind} trained" if parameter.requires_grad else f"{kind} frozen"
        # DeepSpeed's ZeRO-3 leaves an empty tensor, with its size in ds_numel
        counts[key] = counts.get(key, 0) + int(getattr(parameter, "ds_numel", None) or parameter.numel())
    config: Any = getattr(model, "config", None)
    found = {
        "class": type(model).__name__,
        "parameters": counts,
        "config": _without_secrets(config.to_dict()) if hasattr(config, "to_dict") else None,
        "attention": getattr(config, "_attn_implementation", None),
        "gradient_checkpointing": _uses_checkpointing(model),
        "sharded": any(hasattr(parameter, "_fsdp_flattened") for parameter in model.parameters()),
        "trained": _trained_names(model),
    }
    adapters = getattr(model, "peft_config", None)
    if adapters:
        first = next(iter(adapters.values()))
        targets = getattr(first, "target_modules", None)
        found["lora"] = {"r": getattr(first, "r", None), "target_modules": _without_secrets(targets)}
    return found


def _trained_names(model: Any) -> list[str] | None:
    """Return patterns of the names of what is trained beside adapters; None: everything, nothing, or too many names.

    Numbers in a name become ``*`` where the parameters of all numbers are trained.
    """
    if not hasattr(model, "named_parameters"):
        return None
    groups: dict[str, list[tuple[str, bool]]] = {}
    for name, parameter in model.named_parameters():
        if ".lora_" in name or ".original_module." in name:
            continue
        own = _WRAPPERS.sub("", name.replace("modules_to_save.default.", ""))
        groups.setdefault(_NUMBER.sub("*", own), []).append((own, bool(parameter.requires_grad)))
    patterns: list[str] = []
    for pattern, members in groups.items():
        trained = [name for name, trains in members if trains]
        patterns += [pattern] if len(trained) == len(members) else trained
    frozen = any(not trains for members in groups.values() for _, trains in members)
    return patterns if frozen and 0 < len(patterns) <= _MAX_NAMES else None


def _uses_checkpointing(model: Any) -> bool:
    # the later name first: the other one warns
    for name in ("is_activation_checkpointing", "is_gradient_checkpointing"):
        if hasattr(type(model), name):
            return bool(getattr(model, name))
    return False


def _without_secrets(value: Any) -> Any:
    """Return a value that JSON can express, without items that may be secret: tokens and keys."""
    if isinstance(value, dict):
        named = ((str(name), v) for name, v in value.items())
        return {
            name: _without_secrets(v)
            for name, v in named
            if not name.lower().endswith(_SECRET_ENDINGS) and name.lower() != "token"
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_without_secrets(v) for v in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
