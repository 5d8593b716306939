"""Tensor-parallel styles of transformers' plans that torch does not have.

A module runs on this rank's shard of its parameters as ordinary tensors, as transformers 5.23 runs it
(``distributed/tensor_parallel.py``): its input is whole, its output a shard, or summed over the ranks.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEQUENCE_DIMENSION = 1
"""The dimension of hidden states that sequence parallelism splits."""


class LocalStyle(ParallelStyle):  # type: ignore[misc] # torch is not type-checked
    """Runs the module's forward pass on this rank's shard of its parameters (``local_params``)."""

    def _apply(self, module: Any, mesh: Any) -> Any:
        self.split_parameters(module, mesh)
        forward = module.forward

        def run(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self.transform_inputs(args, kwargs, mesh)
            with local_parameters(module):
                output = forward(*args, **kwargs)
            return None if output is None else self.transform_output(output, mesh)

        module.forward = run
        return module

    def split_parameters(self, module: Any, mesh: Any) -> None:
        """Split the module's own parameters; by default, the plan names each of them itself."""

    def transform_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], _mesh: Any) -> tuple[Any, Any]:
        """Return the arguments of the forward pass."""
        return args, kwargs

    def transform_output(self, output: Any, _mesh: Any) -> Any:
        """Return the module's output."""
        return output


class PackedColumns(LocalStyle):
    """A linear layer whose output is two parts of equal size, each split by columns (``packed_colwise``)."""

    def split_parameters(self, module: Any, mesh: Any) -> None:
        """Split the module's own parameters."""
        for name, parameter in list(module.named_parameters(recurse=False)):
            split_parameter(module, name, max(parameter.ndim - 2, 0), mesh)

    def transform_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Any) -> tuple[Any, Any]:
        """Return the arguments of the forward pass."""
        return (AllReduceGradients.apply(args[0], mesh.get_group()), *args[1:]), kwargs


class PackedRows(LocalStyle):
    """A linear layer whose input is two parts, each split (``packed_rowwise``)."""

    def split_parameters(self, module: Any, mesh: Any) -> None:
        """Split the module's own parameters."""
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.ndim > 1:
                split_parameter(module, name, parameter.ndim - 1, mesh)

    def transform_output(self, output: Any, mesh: Any) -> Any:
        """Return the module's output."""
        return AllReduceOutputs.apply(output, mesh.get_group())


class TensorParallelExperts(LocalStyle):
    """Every rank runs its shard of every expert; the outputs are summed over the ranks (``moe_tp_experts``)."""

    def transform_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Any) -> tuple[Any, Any]:
        """Return the arguments of the forward pass."""
        given = [_without_dtensor(value) for value in args]
        # hidden states and routing weights: every rank computes a part of their gradients
        summed = [
            AllReduceGradients.apply(value, mesh.get_group()) if position != 1 and _is_float(value) else value
            for position, value in enumerate(given)
        ]
        return tuple(summed), kwargs

    def transform_output(self, output: Any, mesh: Any) -> Any:
        """Return the module's output."""
        return AllReduceOutputs.apply(output, mesh.get_group())


class IdentityExpert(LocalStyle):
    """An expert that returns its input, divided by the number of ranks because their outputs are summed."""

    def transform_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Any) -> tuple[Any, Any]:
        """Return the arguments of the forward pass."""
        return (args[0] / mesh.size(), *args[1:]), kwargs


class AllReducedOutput(LocalStyle):
    """A module whose output is summed over the ranks (``all_reduce``, ``gather``)."""

    def transform_output(self, output: Any, mesh: Any) -> Any:
        """Return the module's output."""
        partial = output if isinstance(output, DTensor) else DTensor.from_local(output, mesh, [Partial()])
        return partial.redistribute(placements=[Replicate()]).to_local()


class LatentKeyValueProjection(LocalStyle):
    """DeepSeek's down-projection of keys and values: each rank's heads read the rotary part of its output directly.

    Args:
        rotary_size: elements of that part (``qk_rope_head_dim``).
    """

    def __init__(self, rotary_size: int) -> None:
        super().__init__()
        self.rotary_size = rotary_size

    def transform_output(self, output: Any, mesh: Any) -> Any:
        """Return the module's output."""
        latent, rotary = output.split([output.shape[-1] - self.rotary_size, self.rotary_size], dim=-1)
        return torch.cat([latent, AllReduceGradients.apply(rotary, mesh.get_group())], dim=-1)


class GatheredSequence(ParallelStyle):  # type: ignore[misc] # torch is not type-checked
    """Sequence parallelism around a module: all-gathers its input, and splits its output if that is whole.

    Args:
        split_output: the module returns the whole sequence (a mixture of experts), of which this rank keeps its shard.
        as_dtensor: pass the gathered input as a DTensor, so that its gradients are reduced once for all its uses.
    """

    def __init__(self, *, split_output: bool, as_dtensor: bool) -> None:
        super().__init__()
        self.split_output = split_output
        self.as_dtensor = as_dtensor

    def _apply(self, module: Any, mesh: Any) -> Any:
        _transform_hidden_states(module, lambda part: self.gather(part, mesh))
        if self.split_output:
            module.register_forward_hook(lambda _module, _args, output: _split_output_sequence(output, mesh))
        return module

    def gather(self, part: Any, mesh: Any) -> Any:
        """Return the whole sequence, gathered from the ranks' shards."""
        whole = DTensor.from_local(part, mesh, [Shard(SEQUENCE_DIMENSION)]).redistribute(placements=[Replicate()])
        return whole if self.as_dtensor else whole.to_local(grad_placements=[Partial()])


class SplitInputSequence(ParallelStyle):  # type: ignore[misc] # torch is not type-checked
    """A module whose input is split along the sequence: the first block, which reads the embedding's output."""

    def _apply(self, module: Any, mesh: Any) -> Any:
        _transform_hidden_states(module, lambda whole: split_sequence(whole, mesh))
        return module


class GatheredOutput(ParallelStyle):  # type: ignore[misc] # torch is not type-checked
    """A module whose output is gathered along the sequence: the last norm, before a head that is not split."""

    def _apply(self, module: Any, mesh: Any) -> Any:
        sequence = GatheredSequence(split_output=False, as_dtensor=False)
        module.register_forward_hook(lambda _module, _args, output: sequence.gather(output, mesh))
        return module


class AllReduceGradients(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """The identity, whose gradients are summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, group: Any) -> Any:
        """Called by autograd."""
        ctx.group = group
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Called by autograd."""
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class AllReduceOutputs(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """A sum over the ranks, in place; gradients are not changed."""

    @staticmethod
    def forward(_ctx: Any, tensor: Any, group: Any) -> Any:
        """Called by autograd."""
        dist.all_reduce(tensor, group=group)
        return tensor

    @staticmethod
    def backward(_ctx: Any, gradient: Any) -> Any:
        """Called by autograd."""
        return gradient, None


def split_parameter(module: Any, name: str, dimension: int, mesh: Any) -> None:
    """Replace one parameter by this rank's shard, split along one dimension."""
    parameter = module._parameters.get(name)
    if parameter is not None and not isinstance(parameter, DTensor):
        part = distribute_tensor(parameter.detach(), mesh, [Shard(dimension)], src_data_rank=None)
        module._parameters[name] = torch.nn.Parameter(part, requires_grad=parameter.requires_grad)


def split_sequence(tensor: Any, mesh: Any) -> Any:
    """Return this rank's shard of hidden states that every rank holds whole."""
    whole = tensor if isinstance(tensor, DTensor) else DTensor.from_local(tensor, mesh, [Replicate()])
    return whole.redistribute(placements=[Shard(SEQUENCE_DIMENSION)]).to_local()


@contextlib.contextmanager
def local_parameters(module: Any) -> Iterator[None]:
    """Replace the module's own DTensors by this rank's shards, as ordinary tensors."""
    split = {name: value for name, value in module._parameters.items() if isinstance(value, DTensor)}
    module._parameters.update({name: value.to_local() for name, value in split.items()})
    try:
        yield
    finally:
        module._parameters.update(split)


def _transform_hidden_states(module: Any, transform: Callable[[Any], Any]) -> None:
    """Apply a function to the hidden states that go into a module: its first argument, or ``hidden_states``."""

    def run(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (transform(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": transform(kwargs["hidden_states"])}

    module.register_forward_pre_hook(run, with_kwargs=True)


def _split_output_sequence(output: Any, mesh: Any) -> Any:
    if isinstance(output, tuple):
        return (split_sequence(output[0], mesh), *output[1:])
    return split_sequence(output, mesh)


def _without_dtensor(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
