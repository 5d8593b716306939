"""Stand-ins for what makes tensors on a GPU by a number or a type: ``zeros(3, device=0)``, ``torch.cuda.FloatTensor``.

C++ asks CUDA about such devices before any mode sees the call.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.utils import _device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .fake_gpu import FakeGpus

_CUDA_TYPE = "torch.cuda."


def numbered(device: Any, gpus: FakeGpus) -> Any:
    """Return a device with its number: C++ asks CUDA for the current one otherwise."""
    if type(device) is int:
        return torch.device("cuda", device)
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device) and device.type == "cuda" and device.index is None:
        return torch.device("cuda", gpus.current)
    return device


def factories(gpus: FakeGpus) -> Iterator[tuple[Any, str, Any]]:
    """Yield torch's factory functions, and ``torch.device``, with numbers for devices."""
    named = _device._device_constructors()  # torch keeps this list: it has to be made from its own functions

    def placed(make: Any) -> Any:
        @functools.wraps(make)
        def run(*args: Any, **kwargs: Any) -> Any:
            if isinstance(kwargs.get("device"), int):
                kwargs["device"] = numbered(kwargs["device"], gpus)
            return make(*args, **kwargs)

        return run

    def in_parts(make: Any) -> Any:
        """Make a sparse tensor where its parts are, and move it."""

        @functools.wraps(make)
        def run(*args: Any, device: Any = None, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            return made if device is None else made.to(numbered(device, gpus))

        return run

    for owner in (torch, torch.fft, torch.nested, torch.Tensor):
        for name in dir(owner):
            make = getattr(owner, name)
            if callable(make) and (make in named or name.endswith("_like") or name.startswith("new_")):
                yield owner, name, (in_parts if name.startswith("sparse_") else placed)(make)
    yield torch, "device", _device_type(torch.device)


def _device_type(kind: Any) -> Any:
    """Return what ``torch.device`` is, with ``torch.device(0)`` for a GPU."""

    class Device(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if not kwargs and len(args) == 1 and isinstance(args[0], int):
                args = "cuda", args[0]
            return kind(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, kind)

    return Device("device", (), {"__module__": "torch", "__doc__": kind.__doc__})


def types_on_gpu(to: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield tensor types of CUDA, as ``torch.cuda.FloatTensor``, and what takes them or makes tensors of the same.

    Args:
        to: moves a tensor to a device and dtype.
    """
    plain_type, plain_default = torch.Tensor.type, torch.set_default_tensor_type
    kinds = {name: getattr(torch, name) for name in dir(torch.cuda) if name.endswith("Tensor")}

    def constructed(dtype: torch.dtype, device: Any, args: Any) -> Any:
        """Return what a type of tensors makes of sizes, or of data."""
        if all(isinstance(each, int) for each in args) or isinstance(args[0], torch.Size):
            return torch.empty(*(args or (0,)), dtype=dtype, device=device)
        data = args[0]
        return to(data if isinstance(data, torch.Tensor) else torch.tensor(data, dtype=dtype), device, dtype)

    plain_new, plain_new_tensor = torch.Tensor.new, torch.Tensor.new_tensor

    def new(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, FakeTensor) or self.layout is not torch.strided:
            return plain_new(self, *args, **kwargs)
        return constructed(self.dtype, kwargs.get("device") or self.device, args)

    def new_tensor(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, FakeTensor):
            return plain_new_tensor(self, data, *args, **kwargs)
        given = {name: each for name, each in kwargs.items() if each is not None}
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **given})

    class OnGpu(type):
        dtype: torch.dtype

        def __call__(cls, *args: Any, device: Any = None) -> Any:
            return constructed(cls.dtype, device or "cuda", args)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype

    def type_of(self: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if dtype is None:
            name = plain_type(self)
            is_named = name.startswith(_CUDA_TYPE) or not self.is_cuda
            return name if is_named else name.replace("torch.", _CUDA_TYPE)
        if isinstance(dtype, torch.dtype):
            return plain_type(self, dtype, non_blocking, **kwargs)
        on_gpu, kind = _read(dtype)
        return to(self, "cuda" if on_gpu else "cpu", kind)

    def set_default(t: Any) -> None:
        on_gpu, kind = _read(t)
        torch.set_default_dtype(kind)
        torch.set_default_device("cuda" if on_gpu else None)

    for name, kind in kinds.items():
        attributes = {"__module__": "torch.cuda", "dtype": kind.dtype, "is_cuda": True}
        yield torch.cuda, name, OnGpu(name, (), attributes)
    yield torch.Tensor, "type", type_of
    yield torch.Tensor, "type_as", to
    yield torch.Tensor, "new", new
    yield torch.Tensor, "new_tensor", new_tensor
    yield torch, "set_default_tensor_type", functools.wraps(plain_default)(set_default)


def _read(kind: Any) -> tuple[bool, torch.dtype]:
    """Return whether a tensor type is CUDA's, and its dtype."""
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
    return name.startswith(_CUDA_TYPE), getattr(torch, name.rpartition(".")[2]).dtype


def materialize(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
    """Give a lazy module's parameter or buffer its shape, as torch does, where it may become fake."""
    like = _like_lazy(self)
    data = torch.empty(shape, device=device or like.device, dtype=dtype or like.dtype)
    kind = self.cls_to_become
    made = kind(data, self.requires_grad) if kind is torch.nn.Parameter else data
    become(self, made)


def become(tensor: Any, made: Any) -> None:
    """Turn a tensor into another, which nobody else has: ``swap_tensors`` refuses some that fake ones' tables know."""
    tensor.__class__, tensor.__dict__ = type(made), made.__dict__
    torch._C._swap_tensor_impl(tensor, made)


def moves_lazy(tensor: Any, fn: Any) -> bool:
    """Return True for a tensor without a shape, and note what a function that moves tensors will make of it."""
    if not is_lazy(tensor):
        return False
    tensor._vramtop_like = fn(_like_lazy(tensor))
    return True


def _like_lazy(tensor: Any) -> Any:
    """Return an empty tensor with the device and dtype that a lazy parameter will have."""
    found = tensor.__dict__.get("_vramtop_like")
    return torch.empty(0, dtype=tensor.data.dtype) if found is None else found
