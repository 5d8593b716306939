"""FSDP2's communication under the tracker: buffers labelled, and copies to and from the host made visible."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..memory.tracker import StorageTracker


@contextlib.contextmanager
def communication_labelled(tracker: StorageTracker) -> Iterator[None]:
    """Label the tensors that FSDP2 all-gathers and reduce-scatters as communication."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group_module

    group = group_module.FSDPParamGroup
    methods = {name: getattr(group, name) for name in ("unshard", "wait_for_unshard", "post_backward")}
    functions = {name: getattr(group_module, name) for name in ("foreach_all_gather", "foreach_reduce")}

    def as_communication(original: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            with tracker.labelling("communication"):
                return original(*args, **kwargs)

        return run

    def post_backward(self: Any, *unused: Any) -> Any:
        component = "communication" if self.reduce_grads else "gradients"
        tracker.label(_unsharded_gradients(self), component)
        with tracker.labelling(component):
            return methods["post_backward"](self, *unused)

    replacements = [
        (group, "unshard", as_communication(methods["unshard"])),
        (group, "wait_for_unshard", as_communication(methods["wait_for_unshard"])),
        (group, "post_backward", post_backward),
        *((group_module, name, as_communication(original)) for name, original in functions.items()),
    ]
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, _ in replacements:
            setattr(owner, name, {**methods, **functions}[name])


@contextlib.contextmanager
def offload_copies(tracker: StorageTracker) -> Iterator[None]:
    """Make the copies of ``CPUOffloadPolicy`` between host and GPU, which FSDP2 skips for tensors on the CPU.

    A parameter's shard is copied to the GPU in its own dtype, then cast, when its unit is gathered; a unit's reduced
    gradient stays on the GPU until it has been copied out (``FSDPParam.all_gather_inputs``, ``foreach_reduce``).
    """
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    before = FSDPParam.all_gather_inputs, FSDPParam.to_sharded_dtensor

    def all_gather_inputs(self: Any) -> list[Any]:
        on_gpu = self._sharded_param_data.clone()
        return [on_gpu if self.param_dtype is None else on_gpu.to(self.param_dtype)]

    def to_sharded_dtensor(self: Any, shard: Any) -> Any:
        on_host = shard.clone()
        tracker.label((on_host,), "gradients")
        tracker.mark_on_host((on_host,))
        return before[1](self, on_host)

    FSDPParam.all_gather_inputs, FSDPParam.to_sharded_dtensor = property(all_gather_inputs), to_sharded_dtensor
    try:
        yield
    finally:
        FSDPParam.all_gather_inputs, FSDPParam.to_sharded_dtensor = before


def _unsharded_gradients(group: Any) -> Iterator[Any]:
    for parameter in group.fsdp_params:
        whole = getattr(parameter, "_unsharded_param", None)
        if whole is not None and whole.grad is not None:
            yield whole.grad
