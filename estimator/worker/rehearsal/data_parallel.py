"""Several GPUs in one process: ``torch.nn.DataParallel``, and gradients that go back to the GPU they came from.

C++ takes all fake tensors to be on one device, so that its own copies between GPUs would copy nothing. What stands in
for them makes the same tensors (torch 2.13, ``csrc/cuda/comm.cpp``).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch._utils import _flatten_dense_tensors, _get_device_index, _take_tensors, _unflatten_dense_tensors
from torch.nn.parallel import _functions, comm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .fake_gpu import FakeGpus


def data_parallel(gpus: FakeGpus) -> Iterator[tuple[Any, str, Any]]:
    """Yield stand-ins for what ``DataParallel`` does in C++ and in threads."""
    communicators: set[tuple[int, ...]] = set()

    def with_communicator(devices: Sequence[int]) -> None:
        """Count NCCL's communicator over these GPUs, which is made once."""
        if len(devices) > 1 and tuple(devices) not in communicators:
            communicators.add(tuple(devices))
            gpus.groups.append(len(devices))

    def broadcast(tensor: Any, devices: Sequence[Any], **_: Any) -> list[Any]:
        numbers = [_get_device_index(each) for each in devices]
        with_communicator(numbers)
        return [tensor, *(tensor.to(f"cuda:{each}") for each in numbers[1:])]

    def broadcast_coalesced(tensors: Any, devices: Sequence[Any], buffer_size: int = 10 << 20) -> list[list[Any]]:
        copies: list[list[Any]] = [list(tensors), *([] for _ in devices[1:])]
        for chunk in _take_tensors(tensors, buffer_size):
            flat = broadcast(_flatten_dense_tensors(chunk), devices)
            for made, buffer in zip(copies[1:], flat[1:]):  # noqa: B905 - not in Python 3.9
                made += [each.detach() for each in _unflatten_dense_tensors(buffer, chunk)]
        return copies

    def scatter(
        tensor: Any, devices: Any, chunk_sizes: Any = None, dim: int = 0, streams: Any = None, **_: Any
    ) -> tuple[Any, ...]:
        del streams
        numbers = [_get_device_index(each) for each in devices]
        chunks = tensor.chunk(len(numbers), dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)
        return tuple(each.to(f"cuda:{gpu}") for each, gpu in zip(chunks, numbers))  # noqa: B905 - fewer chunks than GPUs

    def gather(tensors: Sequence[Any], dim: int = 0, destination: Any = None, **_: Any) -> Any:
        number = gpus.current if destination is None else _get_device_index(destination, allow_cpu=True)
        device = "cpu" if number == -1 else f"cuda:{number}"
        shape = list(tensors[0].shape)
        shape[dim] = sum(each.shape[dim] for each in tensors)
        made = torch.empty(shape, dtype=tensors[0].dtype, device=device)
        for part, each in zip(made.split([each.shape[dim] for each in tensors], dim), tensors):  # noqa: B905
            part.copy_(each)
        return made

    def reduce(inputs: Sequence[Any], output: Any = None, root: int = 0, *_: Any, **__: Any) -> None:
        with_communicator([each.get_device() for each in inputs])
        output.copy_(inputs[root])

    def apply_in_turn(
        modules: Sequence[Any], inputs: Sequence[Any], kwargs_tup: Any = None, devices: Any = None
    ) -> list[Any]:
        """Run each replica on its GPU, one after the other instead of in threads."""
        made = []
        for at, (each, given) in enumerate(zip(modules, inputs)):  # noqa: B905 - not in Python 3.9
            with torch.cuda.device(devices[at] if devices else None):
                made.append(each(*given, **(kwargs_tup[at] if kwargs_tup else {})))
        return made

    yield sys.modules[torch.nn.DataParallel.__module__], "parallel_apply", apply_in_turn
    yield _functions, "_get_stream", lambda device: torch.cuda.current_stream()  # noqa: ARG005 - torch's name
    yield comm, "broadcast", broadcast
    yield comm, "broadcast_coalesced", broadcast_coalesced
    yield comm, "scatter", scatter
    yield comm, "gather", gather
    yield torch.cuda.nccl, "is_available", lambda tensors: True  # noqa: ARG005 - torch's name
    yield torch.cuda.nccl, "reduce", reduce


class _Moved(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """A copy on another GPU or the host, whose gradient is copied back."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, source: Any, target: Any, copy: Callable[[Any, Any], Any]) -> Any:
        ctx.back = source, tensor.dtype
        return copy(tensor, target)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        source, dtype = ctx.back
        return gradients[0].to(source, dtype), None, None, None


moved = _Moved.apply
