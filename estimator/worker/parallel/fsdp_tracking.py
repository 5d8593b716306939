"""FSDP2's communication under the tracker: buffers labelled, and copies to and from the host made visible."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ..replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..memory.tracker import StorageTracker


_STREAM = 3
"""Position of the stream among the arguments of ``foreach_reduce``; what allocates follows."""


class _OnStream:
    """A reduce-scatter whose tensors are allocated on a stream.

    Args:
        communication: torch's.
        stream: the stream.
    """

    def __init__(self, communication: Any, stream: Any) -> None:
        self._communication = communication
        self._stream = stream

    def allocate(self, *args: Any, **kwargs: Any) -> Any:
        """Return a tensor."""
        with torch.cpu.stream(self._stream):
            return self._communication.allocate(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Reduce."""
        return self._communication(*args, **kwargs)


@contextlib.contextmanager
def communication_labelled(tracker: StorageTracker, *, own_pool: bool = False) -> Iterator[None]:
    """Label the tensors that FSDP2 all-gathers and reduce-scatters as communication.

    Args:
        tracker: of the storages.
        own_pool: the input of a reduce-scatter is allocated on the reducing stream, and freed as soon as it is issued,
            as before torch 2.5.
    """
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group_module

    group = group_module.FSDPParamGroup
    methods = {name: getattr(group, name) for name in ("unshard", "wait_for_unshard", "post_backward")}
    functions = {name: getattr(group_module, name) for name in ("foreach_all_gather", "foreach_reduce")}

    def as_communication(original: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            with tracker.labelling("communication"):
                return original(*args, **kwargs)

        return run

    def in_own_pool(original: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            stream, communication = args[_STREAM], args[_STREAM + 1]
            if not hasattr(communication, "allocate"):  # torch before 2.9
                return original(*args, **kwargs)
            changed = (*args[: _STREAM + 1], _OnStream(communication, stream), *args[_STREAM + 2 :])
            result = original(*changed, **kwargs)
            return result[0].new_empty(0), *result[1:]

        return run if own_pool else original

    def post_backward(self: Any, *unused: Any) -> Any:
        component = "communication" if self.reduce_grads else "gradients"
        tracker.label(_unsharded_gradients(self), component)
        with tracker.labelling(component):
            return methods["post_backward"](self, *unused)

    replacements: list[tuple[Any, str, Any]] = [
        (group, "unshard", as_communication(methods["unshard"])),
        (group, "wait_for_unshard", as_communication(methods["wait_for_unshard"])),
        (group, "post_backward", post_backward),
        (group_module, "foreach_all_gather", as_communication(functions["foreach_all_gather"])),
        (group_module, "foreach_reduce", as_communication(in_own_pool(functions["foreach_reduce"]))),
    ]
    with replaced(*replacements):
        yield


@contextlib.contextmanager
def offload_copies(tracker: StorageTracker) -> Iterator[None]:
    """Make the copies of ``CPUOffloadPolicy`` between host and GPU, which FSDP2 skips for tensors on the CPU.

    A parameter's shard is copied to the GPU in its own dtype, then cast, when its unit is gathered; a unit's reduced
    gradient stays on the GPU until it has been copied out (``FSDPParam.all_gather_inputs``, ``foreach_reduce``).
    """
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    keep = FSDPParam.to_sharded_dtensor

    def all_gather_inputs(self: Any) -> list[Any]:
        on_gpu = self._sharded_param_data.clone()
        return [on_gpu if self.param_dtype is None else on_gpu.to(self.param_dtype)]

    def to_sharded_dtensor(self: Any, shard: Any) -> Any:
        on_host = shard.clone()
        tracker.label((on_host,), "gradients")
        tracker.mark_on_host((on_host,))
        return keep(self, on_host)

    with replaced(
        (FSDPParam, "all_gather_inputs", property(all_gather_inputs)),
        (FSDPParam, "to_sharded_dtensor", to_sharded_dtensor),
    ):
        yield


def _unsharded_gradients(group: Any) -> Iterator[Any]:
    for parameter in group.fsdp_params:
        whole = getattr(parameter, "_unsharded_param", None)
        if whole is not None and whole.grad is not None:
            yield whole.grad
