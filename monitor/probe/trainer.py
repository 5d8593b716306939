"""What transformers' Trainer tells of itself through a callback. Runs in the user's process, as ``publisher`` does."""

from __future__ import annotations

import sys
from typing import Any

from . import publisher

_SECRET = ("_token", "_key", "_password", "_secret")


def add_callback(trainer_module: Any) -> None:
    """Give every Trainer of ``transformers.trainer`` the callback that tells its settings, its model and its steps."""
    callbacks = getattr(trainer_module, "DEFAULT_CALLBACKS", None)
    base = getattr(sys.modules.get("transformers.trainer_callback"), "TrainerCallback", None)
    if callbacks is not None and base is not None:
        callbacks.append(callback_class(base))


def callback_class(base: Any) -> Any:
    """The callback, as a subclass of transformers' TrainerCallback; several of them in one Trainer do no harm."""

    class VramtopCallback(base):  # type: ignore[misc]
        """Tells vramtop what is trained; changes nothing."""

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            try:
                publisher.start()  # ranks that were forked have no probe yet
                publisher.publish_facts(**_facts(args, state, model))
            except Exception:  # nothing of ours may reach the user's program
                pass

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            publisher.step_began()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            publisher.step_ended((id(state), state.global_step))

        def __reduce__(self) -> Any:
            return base, ()  # where a Trainer is sent to another process, there need be no vramtop

    return VramtopCallback


def _facts(args: Any, state: Any, model: Any) -> dict[str, Any]:
    """The trainer's arguments and the model's facts; made once, when training begins."""
    facts = {"trainer": _plain(args.to_dict()), "class": type(args).__name__, "max_steps": state.max_steps}
    if model is not None:
        facts["model"] = _model_facts(model)
    return facts


def _model_facts(model: Any) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for parameter in model.parameters():
        kind = str(parameter.dtype).replace("torch.", "")
        key = f"{kind} trained" if parameter.requires_grad else f"{kind} frozen"
        # DeepSpeed's ZeRO-3 leaves an empty tensor behind, and its size beside it
        counts[key] = counts.get(key, 0) + int(getattr(parameter, "ds_numel", None) or parameter.numel())
    config: Any = getattr(model, "config", None)
    found = {
        "class": type(model).__name__,
        "parameters": counts,
        "config": _plain(config.to_dict()) if hasattr(config, "to_dict") else None,
        "attention": getattr(config, "_attn_implementation", None),
        "gradient_checkpointing": _checkpoints(model),
    }
    adapters = getattr(model, "peft_config", None)
    if adapters:
        first = next(iter(adapters.values()))
        targets = getattr(first, "target_modules", None)
        found["lora"] = {"r": getattr(first, "r", None), "target_modules": _plain(targets)}
    return found


def _checkpoints(model: Any) -> bool:
    for name in ("is_activation_checkpointing", "is_gradient_checkpointing"):  # the newer one first: the other warns
        if hasattr(type(model), name):
            return bool(getattr(model, name))
    return False


def _plain(value: Any) -> Any:
    """As JSON has it, without what could be secret: tokens and keys are left out."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items() if not _secret(str(k))}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def _secret(name: str) -> bool:
    name = name.lower()
    return name.endswith(_SECRET) or name == "token"
