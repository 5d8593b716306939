"""Operation ``optimizer``: steps an optimizer class and returns the bytes of its states.

    {"op": "optimizer", "path": "galore_torch:GaLoreAdamW", "options": {"rank": 128},
     "tensors": [{"shape": [4096, 4096], "dtype": "bfloat16"}, ...], "code": {"folder"} or absent}
        -> {"states": [bytes or null, ...], "step": [bytes, ...], "how": "fake" or "fitted", "class": "module.Class",
            "distribution": "galore-torch 1.0" or null}
        -> {"unsupported": "why it cannot be stepped"}

``step`` is the temporary memory while that parameter alone is stepped; null stands for vectors that the class does not
step. The class comes from an installed library; one of the user's own is imported only from the folder that ``code``
names.
"""

from __future__ import annotations

from typing import Any

from ..request.protocol import UnsupportedError
from ..request.request import read_user_code
from ..request.user_code import optimizer_class


def optimizer(message: dict[str, Any]) -> dict[str, Any]:
    """Return the bytes of state of each tensor."""
    from ..step.training_steps import without_compiling

    with without_compiling():
        return _measured(message)


def _measured(message: dict[str, Any]) -> dict[str, Any]:
    import torch

    from ..step.training_steps import OptimizerFactory, measure

    kind = optimizer_class(message["path"], read_user_code(message))
    factory = OptimizerFactory(kind, dict(message.get("options") or {}))
    tensors = [(tuple(each["shape"]), each["dtype"]) for each in message["tensors"]]
    found: dict[Any, Any] = {}
    ways = set()
    try:
        for dtype in dict.fromkeys(dtype for _, dtype in tensors):
            shapes = [shape for shape, its in tensors if its == dtype]
            measured, how = measure(factory, shapes, getattr(torch, dtype))
            ways.add(how)
            found.update({(shape, dtype): each for shape, each in zip(shapes, measured)})  # noqa: B905 - 3.9
    except UnsupportedError as reason:
        return {"unsupported": str(reason)}
    answers = [found[tensor] for tensor in tensors]
    return {
        "states": [None if each is None else round(each.states) for each in answers],
        "step": [0 if each is None else round(each.step) for each in answers],
        "how": "fake" if ways == {"fake"} else "fitted",
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "distribution": _distribution(kind.__module__.partition(".")[0]),
    }


def _distribution(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, packages_distributions, version

    try:
        name = packages_distributions().get(package, [package])[0]
        return f"{name} {version(name)}"
    except (PackageNotFoundError, ImportError):
        return None
