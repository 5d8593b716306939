"""Operators that a library defines in Python (``torch.library.custom_op``, ``register_kernel``).

They run their own code for CUDA, which allocates what it allocates on a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS


def _suppressed(boxes: Any, scores: Any, _most_overlap: float) -> Any:
    """Return the boxes that remain, with the overlaps of all in bits.

    Source: torchvision 0.28, ``csrc/ops/cuda/nms_kernel.cu``.
    """
    order = scores.sort(descending=True)[1]
    count = boxes.shape[0]
    made = boxes.index_select(0, order), boxes.new_empty((count * -(-count // 64),), dtype=torch.int64)
    kept = order.masked_select(torch.empty_like(order, dtype=torch.bool))
    del made
    return kept


_KERNELS: dict[str, Callable[..., Any]] = {"torchvision::nms": _suppressed}
"""Functions that are registered as kernels for CUDA, or for all devices without their own, by the operator's name."""


def registered_kernels() -> Iterator[tuple[Any, str, Any]]:
    """Yield stand-ins that record the kernels that libraries register with torch."""
    register = torch.library.register_kernel

    def register_kernel(op: Any, device_types: Any, func: Any = None, **kwargs: Any) -> Any:
        if func is None:
            return functools.partial(register_kernel, op, device_types, **kwargs)
        if isinstance(op, str) and device_types == "cuda":
            _KERNELS[op] = func
        elif isinstance(op, str) and device_types in (None, "default"):
            _KERNELS.setdefault(op, func)
        register(op, device_types, func, **kwargs)
        return func

    yield torch.library, "register_kernel", register_kernel


def python_of(func: Any) -> Callable[..., Any] | None:
    """Return what an operator that a library defines in Python runs on CUDA; None: it is another's.

    Where that needs a GPU, because it calls a kernel in C++, the library's own rule for fake tensors runs.
    """
    overload = "" if func._overloadname == "default" else f".{func._overloadname}"
    registered = _KERNELS.get(f"{func._schema.name}{overload}")
    if registered is not None:
        return registered
    defined = OPDEFS.get(func._schema.name)
    if defined is None:
        return None
    functions = defined._backend_fns

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return functions.get("cuda", functions.get(None, defined._init_fn))(*args, **kwargs)
        except (RuntimeError, TypeError):
            if defined._abstract_fn is None:
                raise
            return defined._abstract_fn(*args, **kwargs)

    return run
