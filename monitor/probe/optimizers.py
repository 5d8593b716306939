"""Publishes which optimizers a program steps and what they train. Runs in the user's process.

torch calls a hook after every optimizer's step (``register_optimizer_step_post_hook``). The hook looks at an optimizer
once, after its first step; later it costs a look into a set. It reads sizes only: no tensor is touched, no kernel runs,
and nothing is kept of the optimizer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from . import publisher

_MAX_OPTIMIZERS = 1000
"""Programs that step in the backward pass have an optimizer for every parameter."""
_MAX_OPTIONS = 40
_seen: set[int] = set()
_installed: list[Any] = []


def watch() -> None:
    """Have torch call the hook, once per process; does nothing under a torch without such hooks (before 2.3)."""
    torch, optim = sys.modules.get("torch"), sys.modules.get("torch.optim.optimizer")
    register = getattr(optim, "register_optimizer_step_post_hook", None)
    is_compiling = getattr(sys.modules.get("torch.compiler"), "is_compiling", None)
    if _installed or torch is None or register is None or is_compiling is None:
        return
    _installed.append(register(_hook(is_compiling)))


def _hook(is_compiling: Callable[[], bool]) -> Callable[..., None]:
    def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if is_compiling():  # a constant where torch.compile traces the step: nothing of this becomes a part of it
            return
        try:
            if id(optimizer) not in _seen and len(_seen) < _MAX_OPTIMIZERS:
                _seen.add(id(optimizer))
                publisher.optimizers[id(optimizer)] = describe(optimizer)
        except Exception:  # no exception of the probe may reach the user's program
            pass

    return stepped


def describe(optimizer: Any) -> dict[str, Any]:
    """Return an optimizer's class and options, and the elements of what it trains, by dtype."""
    trained: dict[str, int] = {}
    sharded = "deepspeed" if "deepspeed" in sys.modules else None
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not parameter.requires_grad:
                continue
            sharded = _sharding(parameter) or sharded
            name = str(parameter.dtype).replace("torch.", "")
            trained[name] = trained.get(name, 0) + int(parameter.numel())  # of a DTensor: of the whole
    return {
        "class": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}",
        "options": _options(optimizer.param_groups[0]) if optimizer.param_groups else {},
        "trained": trained,
        "sharded": sharded,
    }


def _sharding(parameter: Any) -> str | None:
    """Return how a parameter is sharded; None: it is whole, as far as can be seen."""
    if hasattr(parameter, "_local_tensor"):
        return "dtensor"
    if hasattr(parameter, "_fsdp_flattened") or type(parameter).__name__ == "FlatParameter":
        return "fsdp1"
    return "deepspeed" if hasattr(parameter, "ds_id") else None


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """Return a group's keyword arguments that are numbers and switches; text could be anything."""
    plain = {
        str(name): value for name, value in group.items() if value is None or isinstance(value, (bool, int, float))
    }
    return dict(list(plain.items())[:_MAX_OPTIONS])
