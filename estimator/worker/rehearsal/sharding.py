"""Communication of FSDP1 and FSDP2 under the tracker: labels of their tensors, and the order of their streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..memory.tracker import StorageTracker


def labels_of_fsdp2(tracker: StorageTracker) -> Iterator[tuple[Any, str, Any]]:
    """Yield what labels FSDP2's communication."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group_module

    group = group_module.FSDPParamGroup
    methods = {name: getattr(group, name) for name in ("unshard", "wait_for_unshard", "post_backward")}
    functions = {name: getattr(group_module, name) for name in ("foreach_all_gather", "foreach_reduce")}

    def post_backward(self: Any, *unused: Any) -> Any:
        component = "communication" if self.reduce_grads else "gradients"
        tracker.label(_unsharded_gradients(self), component)
        with tracker.labelling(component):
            return methods["post_backward"](self, *unused)

    yield group, "unshard", tracker.labelled(methods["unshard"])
    yield group, "wait_for_unshard", tracker.labelled(methods["wait_for_unshard"])
    yield group, "post_backward", post_backward
    yield group_module, "foreach_all_gather", tracker.labelled(functions["foreach_all_gather"])
    yield group_module, "foreach_reduce", tracker.labelled(functions["foreach_reduce"])


def _unsharded_gradients(group: Any) -> Iterator[Any]:
    for parameter in group.fsdp_params:
        whole = getattr(parameter, "_unsharded_param", None)
        if whole is not None and whole.grad is not None:
            yield whole.grad


def whole_sizes(module: Any) -> Iterator[tuple[Any, int]]:
    """Yield the original parameters that FSDP1 has sharded, with the elements of the whole."""
    for each in module.modules():
        flat = getattr(getattr(each, "_handle", None), "flat_param", None)
        if flat is not None and flat._params is not None:
            yield from ((parameter, shape.numel()) for parameter, shape in zip(flat._params, flat._shapes))  # noqa: B905


def labels_of_fsdp1(tracker: StorageTracker) -> Iterator[tuple[Any, str, Any]]:
    """Yield what labels FSDP1's communication."""
    from torch.distributed.fsdp import _runtime_utils
    from torch.distributed.fsdp._flat_param import FlatParamHandle

    reduce = _runtime_utils._post_backward_hook

    def post_backward(state: Any, handle: Any, flat_param: Any = None, *unused: Any) -> Any:
        component = "communication" if state._sync_gradients else "gradients"
        tracker.label((handle.flat_param.grad,), component)
        with tracker.labelling(component):
            result = reduce(state, handle, flat_param, *unused)
        tracker.label((getattr(handle.flat_param, "_saved_grad_shard", None),), "gradients")
        return result

    yield FlatParamHandle, "pre_unshard", tracker.labelled(FlatParamHandle.pre_unshard)
    yield FlatParamHandle, "unshard", tracker.labelled(FlatParamHandle.unshard)
    yield _runtime_utils, "_post_backward_hook", post_backward


_NCCL = object()
"""Stands for the stream of the process group: NCCL runs the collectives of a group one after another."""


def streams_of_fsdp1(tracker: StorageTracker) -> Iterator[tuple[Any, str, Any]]:
    """Yield what reports FSDP1's collectives and its ``record_stream`` to the tracker.

    torch's streams and events of the CPU do nothing. Here they carry an order, so that the tracker knows when a storage
    that another stream uses comes back to its pool.
    """
    from torch.distributed.fsdp import _flat_param, _runtime_utils

    handle = _flat_param.FlatParamHandle
    all_gather, reduce = handle._all_gather_flat_param, _runtime_utils._reduce_grad
    order, number = tracker.order, tracker.stream_number

    def collective(original: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            stream, nccl = number(torch.cpu.current_stream()), number(_NCCL)
            order.wait(nccl, order.record(stream))
            order.wait(stream, order.record(nccl))
            return result

        return run

    yield handle, "_all_gather_flat_param", collective(all_gather)
    yield _runtime_utils, "_reduce_grad", collective(reduce)
    yield _flat_param, "_no_dispatch_record_stream", tracker.record_stream
    yield _runtime_utils, "_no_dispatch_record_stream", tracker.record_stream
    # fake tensors have no addresses, by which FSDP1 tells storages apart and whether they are sharded
    yield _flat_param, "_same_storage", lambda a, b: a.untyped_storage()._cdata == b.untyped_storage()._cdata
    yield _flat_param, "_data_ptr_allocated", lambda tensor: tensor.untyped_storage().nbytes() > 0
