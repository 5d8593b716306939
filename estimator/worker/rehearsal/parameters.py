"""Parameters of modules, which are fake on the host too, and how modules move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .factories import moves_lazy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .fake_gpu import FakeGpus


def parameters_of_modules(gpus: FakeGpus) -> Iterator[tuple[Any, str, Any]]:
    """Yield what makes parameters fake, and moves modules in place as torch does with real ones."""
    make = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) is torch.Tensor and data.device.type == "cpu":
            data = gpus.on_host(data)
        return make(cls, data, requires_grad)

    def apply(module: Any, fn: Any, recurse: bool = True) -> Any:
        """Apply a function to a module's tensors, as ``torch.nn.Module._apply`` without swapping tensors."""
        if recurse:
            for child in module.children():
                child._apply(fn)
        for name, parameter in module._parameters.items():
            if parameter is None or moves_lazy(parameter, fn):
                continue
            with torch.no_grad():
                changed = fn(parameter)
                gradient = None if parameter.grad is None else fn(parameter.grad)
            if changed is parameter:
                continue
            if hasattr(changed, "_local_tensor"):  # a DTensor, whose parts C++ does not set
                torch.utils.swap_tensors(parameter, torch.nn.Parameter(changed, parameter.requires_grad))
            elif isinstance(parameter, FakeTensor) and isinstance(changed, FakeTensor):
                parameter.data = changed
                if gradient is not None:
                    parameter.grad = gradient
            else:
                module._parameters[name] = torch.nn.Parameter(changed, parameter.requires_grad)
            gpus.label((module._parameters[name],), "weights")
        for name, buffer in module._buffers.items():
            if buffer is not None and not moves_lazy(buffer, fn):
                module._buffers[name] = changed = fn(buffer)
                if isinstance(changed, FakeTensor):
                    gpus.label((changed,), "weights")
        return module

    yield torch.nn.Parameter, "__new__", staticmethod(new)
    yield torch.nn.Module, "_apply", apply
