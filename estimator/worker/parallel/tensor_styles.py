"""Tensor-parallel styles that transformers' plans name and torch has none of.

A module runs on this rank's part of its parameters as ordinary tensors, as transformers 5.23 runs it
(``distributed/tensor_parallel.py``): inputs whole, what comes out a part of it or summed over the ranks.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

if TYPE_CHECKING:
    from collections.abc import Iterator

SEQUENCE = 1
"""The dimension of hidden states that sequence parallelism splits."""


class LocalStyle(ParallelStyle):  # type: ignore[misc] # torch is not type-checked
    """The module's forward pass runs on this rank's part of its parameters (``local_params``)."""

    def _apply(self, module: Any, mesh: Any) -> Any:
        self.split(module, mesh)
        forward = module.forward

        def run(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self.enter(args, kwargs, mesh)
            with local_parameters(module):
                output = forward(*args, **kwargs)
            return None if output is None else self.leave(output, mesh)

        module.forward = run
        return module

    def split(self, module: Any, mesh: Any) -> None:
        """Split the module's own parameters; here they are split by entries of their own."""

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any], _mesh: Any) -> tuple[Any, Any]:
        """What the forward pass gets."""
        return args, kwargs

    def leave(self, output: Any, _mesh: Any) -> Any:
        """What the forward pass gives."""
        return output


class PackedColumns(LocalStyle):
    """A linear layer whose output holds two parts of equal size, each split by columns (``packed_colwise``)."""

    def split(self, module: Any, mesh: Any) -> None:
        """Split what the module holds itself."""
        for name, parameter in list(module.named_parameters(recurse=False)):
            split_parameter(module, name, max(parameter.ndim - 2, 0), mesh)

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Any) -> tuple[Any, Any]:
        """What the forward pass gets."""
        return (SumGradients.apply(args[0], mesh.get_group()), *args[1:]), kwargs


class PackedRows(LocalStyle):
    """A linear layer whose input holds two parts, each split (``packed_rowwise``)."""

    def split(self, module: Any, mesh: Any) -> None:
        """Split what the module holds itself."""
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.ndim > 1:
                split_parameter(module, name, parameter.ndim - 1, mesh)

    def leave(self, output: Any, mesh: Any) -> Any:
        """What the forward pass gives."""
        return SumOutputs.apply(output, mesh.get_group())


class Experts(LocalStyle):
    """Every rank runs its part of every expert; the parts of the output are summed (``moe_tp_experts``)."""

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Any) -> tuple[Any, Any]:
        """What the forward pass gets."""
        given = [_whole(value) for value in args]
        # hidden states and the weights of the routes: every rank computes a part of their gradients
        summed = [
            SumGradients.apply(value, mesh.get_group()) if position != 1 and _is_float(value) else value
            for position, value in enumerate(given)
        ]
        return tuple(summed), kwargs

    def leave(self, output: Any, mesh: Any) -> Any:
        """What the forward pass gives."""
        return SumOutputs.apply(output, mesh.get_group())


class IdentityExpert(LocalStyle):
    """An expert that passes its input on, divided beforehand by what the sum over the ranks multiplies it by."""

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Any) -> tuple[Any, Any]:
        """What the forward pass gets."""
        return (args[0] / mesh.size(), *args[1:]), kwargs


class SummedOutput(LocalStyle):
    """The ranks' outputs are summed (``all_reduce``, ``gather``)."""

    def leave(self, output: Any, mesh: Any) -> Any:
        """What the forward pass gives."""
        partial = output if isinstance(output, DTensor) else DTensor.from_local(output, mesh, [Partial()])
        return partial.redistribute(placements=[Replicate()]).to_local()


class LatentKeys(LocalStyle):
    """DeepSeek's down-projection: of its output the rotated part alone goes straight into each rank's heads.

    Args:
        rotated: elements of that part (``qk_rope_head_dim``).
    """

    def __init__(self, rotated: int) -> None:
        super().__init__()
        self.rotated = rotated

    def leave(self, output: Any, mesh: Any) -> Any:
        """What the forward pass gives."""
        latent, rotated = output.split([output.shape[-1] - self.rotated, self.rotated], dim=-1)
        return torch.cat([latent, SumGradients.apply(rotated, mesh.get_group())], dim=-1)


class WholeSequence(ParallelStyle):  # type: ignore[misc] # torch is not type-checked
    """Sequence parallelism around a module: its input is gathered, and its output split where it comes out whole.

    Args:
        split_output: the module gives the whole sequence (a mixture of experts), of which this rank keeps its part.
        as_dtensor: the gathered input goes in as a DTensor, so that its gradients are reduced once for all its uses.
    """

    def __init__(self, *, split_output: bool, as_dtensor: bool) -> None:
        super().__init__()
        self.split_output = split_output
        self.as_dtensor = as_dtensor

    def _apply(self, module: Any, mesh: Any) -> Any:
        def enter(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if args:
                return (self.gather(args[0], mesh), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": self.gather(kwargs["hidden_states"], mesh)}

        module.register_forward_pre_hook(enter, with_kwargs=True)
        if self.split_output:
            module.register_forward_hook(lambda _module, _args, output: _split_first(output, mesh))
        return module

    def gather(self, part: Any, mesh: Any) -> Any:
        """All of the sequence from this rank's part of it."""
        whole = DTensor.from_local(part, mesh, [Shard(SEQUENCE)]).redistribute(placements=[Replicate()])
        return whole if self.as_dtensor else whole.to_local(grad_placements=[Partial()])


class SplitInput(ParallelStyle):  # type: ignore[misc] # torch is not type-checked
    """What goes into the module is split along the sequence: how the embedding's output enters the first block."""

    def _apply(self, module: Any, mesh: Any) -> Any:
        def enter(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if args:
                return (split_sequence(args[0], mesh), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": split_sequence(kwargs["hidden_states"], mesh)}

        module.register_forward_pre_hook(enter, with_kwargs=True)
        return module


class GatherOutput(ParallelStyle):  # type: ignore[misc] # torch is not type-checked
    """What comes out of the module is gathered along the sequence: the last norm, before a head that is not split."""

    def _apply(self, module: Any, mesh: Any) -> Any:
        whole = WholeSequence(split_output=False, as_dtensor=False)
        module.register_forward_hook(lambda _module, _args, output: whole.gather(output, mesh))
        return module


class SumGradients(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """Passed on as it is; its gradients are summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, group: Any) -> Any:
        """As autograd calls it."""
        ctx.group = group
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """As autograd calls it."""
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class SumOutputs(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """Summed over the ranks, in place; gradients are passed on as they are."""

    @staticmethod
    def forward(_ctx: Any, tensor: Any, group: Any) -> Any:
        """As autograd calls it."""
        dist.all_reduce(tensor, group=group)
        return tensor

    @staticmethod
    def backward(_ctx: Any, gradient: Any) -> Any:
        """As autograd calls it."""
        return gradient, None


def split_parameter(module: Any, name: str, dimension: int, mesh: Any) -> None:
    """Leave this rank's part of one parameter, split along one dimension."""
    parameter = module._parameters.get(name)
    if parameter is not None and not isinstance(parameter, DTensor):
        part = distribute_tensor(parameter.detach(), mesh, [Shard(dimension)], src_data_rank=None)
        module._parameters[name] = torch.nn.Parameter(part, requires_grad=parameter.requires_grad)


def split_sequence(tensor: Any, mesh: Any) -> Any:
    """This rank's part of hidden states that every rank has whole."""
    whole = tensor if isinstance(tensor, DTensor) else DTensor.from_local(tensor, mesh, [Replicate()])
    return whole.redistribute(placements=[Shard(SEQUENCE)]).to_local()


@contextlib.contextmanager
def local_parameters(module: Any) -> Iterator[None]:
    """The module's own parameters are this rank's parts, as ordinary tensors."""
    split = {name: value for name, value in module._parameters.items() if isinstance(value, DTensor)}
    module._parameters.update({name: value.to_local() for name, value in split.items()})
    try:
        yield
    finally:
        module._parameters.update(split)


def _split_first(output: Any, mesh: Any) -> Any:
    if isinstance(output, tuple):
        return (split_sequence(output[0], mesh), *output[1:])
    return split_sequence(output, mesh)


def _whole(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
