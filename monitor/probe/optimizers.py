"""Publishes which optimizers a program steps, what they train and the states they keep. Runs in the user's process.

torch calls a hook after every optimizer's step (``register_optimizer_step_post_hook``). The hook looks at an optimizer
twice, after its first and second step; later it costs a look into a dictionary. It reads sizes only: no tensor is
touched, no kernel runs, and nothing is kept of the optimizer.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import publisher

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOKS = 2
"""States may appear in the second step only."""
_MAX_OPTIMIZERS = 1000
"""Programs that step in the backward pass have an optimizer for every parameter."""
_MAX_OPTIONS = 40
_looks: dict[int, int] = {}
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
            if _looks.get(id(optimizer), 0) < _LOOKS:
                _look(optimizer)
        except Exception:  # no exception of the probe may reach the user's program
            pass

    return stepped


def _look(optimizer: Any) -> None:
    key = id(optimizer)
    if key not in _looks and len(_looks) >= _MAX_OPTIMIZERS:
        return
    _looks[key] = _looks.get(key, 0) + 1
    publisher.optimizers[key] = describe(optimizer)


def describe(optimizer: Any) -> dict[str, Any]:
    """Return an optimizer's class and options, and the elements and bytes of what it trains and keeps, by dtype."""
    trained: dict[str, int] = {}
    states: dict[str, int] = {}
    sharded = "deepspeed" if "deepspeed" in sys.modules else None
    tensors = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not parameter.requires_grad:
                continue
            tensors += 1
            sharded = _sharding(parameter) or sharded
            _add(trained, parameter.dtype, parameter.numel())  # of a DTensor: of the whole
            state = optimizer.state.get(parameter)
            for value in state.values() if isinstance(state, dict) else ():
                part: Any = getattr(value, "_local_tensor", value)
                if hasattr(part, "element_size"):
                    _add(states, part.dtype, part.numel() * part.element_size())
    return {
        "class": f"{type(optimizer).__module__}.{type(optimizer).__qualname__}",
        "options": _options(optimizer.param_groups[0]) if optimizer.param_groups else {},
        "tensors": tensors,
        "trained": trained,
        "state_bytes": states,
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


def _add(sums: dict[str, int], dtype: Any, size: int) -> None:
    name = str(dtype).replace("torch.", "")
    sums[name] = sums.get(name, 0) + int(size)
