"""Parameters of modules, which are fake on the host too, and how modules move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .factories import moves_lazy

if TYPE_CHECKING:
    from .fake_gpu import FakeGpus


class Parameters:
    """Makes parameters fake, and moves modules in place as torch does with real ones."""

    def __init__(self, gpus: FakeGpus) -> None:
        self.gpus = gpus
        self._new = torch.nn.Parameter.__new__

    def new(self, cls: Any, data: Any = None, requires_grad: bool = True) -> Any:  # noqa: D102 - torch's own
        if type(data) is torch.Tensor and data.device.type == "cpu":
            data = self.gpus.on_host(data)
        return self._new(cls, data, requires_grad)

    def apply(self, module: Any, fn: Any, recurse: bool = True) -> Any:
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
            self.gpus.label((module._parameters[name],), "weights")
        for name, buffer in module._buffers.items():
            if buffer is not None and not moves_lazy(buffer, fn):
                module._buffers[name] = changed = fn(buffer)
                if isinstance(changed, FakeTensor):
                    self.gpus.label((changed,), "weights")
        return module
