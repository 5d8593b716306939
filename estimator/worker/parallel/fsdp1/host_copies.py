"""FSDP1's CPU offload on fake tensors: what stays in host memory, and the copies of it on the GPU.

From torch 2.13 (``distributed/fsdp/_flat_param.py``, ``_runtime_utils.py``): the shards and the gradients that the
optimizer sees are pinned host memory. A shard is copied to the GPU whenever its unit is gathered, and the
parameters are views of the copy until the unit is freed; under mixed precision it is cast there, and the copy goes
at once. A unit's reduced gradient is copied to the host but stays on the GPU as ``_saved_grad_shard`` until the
whole backward pass is over (``prepare_gradient_for_optim``). FSDP1 leaves out copies between equal devices, as host
and GPU are on fake tensors.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ...replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...memory.tracker import StorageTracker


@contextlib.contextmanager
def host_copies(tracker: StorageTracker) -> Iterator[None]:
    """Mark what FSDP1 pins as host memory, and make its copies to the GPU, which are communication."""
    from torch.distributed.fsdp import _flat_param

    handle = _flat_param.FlatParamHandle
    pre_unshard, writeback = handle.pre_unshard, handle._writeback_orig_params

    def pin_memory(tensor: Any, *_unused: Any) -> Any:
        tracker.label((tensor,), "gradients")  # the weights are labelled already
        tracker.mark_on_host((tensor,))
        return tensor

    def write_back(self: Any) -> bool:
        result = bool(writeback(self))
        if self.flat_param.grad is not None:  # it was made on the device of the flat parameter, which is the host
            tracker.mark_on_host((self.flat_param.grad,))
        return result

    def copy_and_pre_unshard(self: Any) -> bool:
        pre_unshard(self)
        flat = self.flat_param
        if flat.untyped_storage()._cdata == flat._local_shard.untyped_storage()._cdata:  # as ``flat_param_to``
            with tracker.labelling("communication"):
                flat.data = flat.data.clone()
            if self._use_orig_params and self.is_sharded(flat):
                self._use_sharded_views()
            elif self._use_orig_params:
                self._use_unsharded_views(as_params=True)
        return True

    def use_low_precision_shard(self: Any) -> None:
        flat = self.flat_param
        _flat_param._alloc_storage(flat._mp_shard, flat._local_shard.size())
        flat._mp_shard.copy_(flat._local_shard.clone())
        flat.data = flat._mp_shard

    patches: list[tuple[Any, str, Any]] = [
        (torch.Tensor, "pin_memory", pin_memory),
        (handle, "_writeback_orig_params", write_back),
        (handle, "pre_unshard", copy_and_pre_unshard),
        (handle, "_use_low_precision_shard", use_low_precision_shard),
    ]
    stream = torch.cpu.Stream  # has no such method, which a GPU's stream has
    stream.synchronize = lambda self: tracker.synchronize(tracker.order.record(tracker.stream_number(self)))
    try:
        with replaced(*patches):
            yield
    finally:
        del stream.synchronize
