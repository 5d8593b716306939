"""Parameters of a library's own class (``Params4bit``): fake tensors that also have that class."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

_KINDS: dict[Any, Any] = {}
"""The class of fake tensors that also have a library's class, by that class."""


def subclasses() -> Iterator[tuple[Any, str, Any]]:
    """Yield what lets parameters of other classes be fake tensors."""
    make = torch.Tensor._make_subclass

    def make_subclass(cls: Any, data: Any, require_grad: bool = False, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(data, FakeTensor):  # on ``meta``, where no tensor is fake
            own = cls.__bases__[0] if cls in _KINDS.values() else cls
            return make(own, data, require_grad, *args, **kwargs)
        made = data.detach()
        made.requires_grad_(require_grad)
        made._is_param = issubclass(cls, torch.nn.Parameter)
        if cls not in (torch.nn.Parameter, torch.Tensor):
            if not issubclass(cls, FakeTensor) and cls not in _KINDS:
                _KINDS[cls] = type(cls)(cls.__name__, (cls, FakeTensor), {"__module__": cls.__module__})
            made.__class__ = _KINDS.get(cls, cls)
        return made

    make_fake = FakeTensor.__new__

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        """Make what ``type(parameter)(value)`` asks for, which is a parameter."""
        if args and isinstance(args[0], torch.Tensor):  # torch gives a mode
            return torch.nn.Parameter(args[0], kwargs.get("requires_grad", True))
        return make_fake(cls, *args, **kwargs)

    yield torch.Tensor, "_make_subclass", staticmethod(make_subclass)
    yield FakeTensor, "__new__", staticmethod(new)


def is_of_library(kinds: Any) -> bool:
    """Return True if some of these types are those of fake tensors that also have a library's class."""
    return any(kind in _KINDS.values() for kind in kinds)


@contextlib.contextmanager
def as_fake_tensors(values: Any) -> Iterator[None]:
    """Let tensors have no other class than ``FakeTensor`` for a while, which torch's fake mode asks for."""
    changed = [each for each in tree_leaves(values) if type(each) in _KINDS.values()]
    kinds = [type(each) for each in changed]
    for each in changed:
        each.__class__ = FakeTensor
    try:
        yield
    finally:
        for each, kind in zip(changed, kinds):  # noqa: B905 - not in Python 3.9
            each.__class__ = kind
