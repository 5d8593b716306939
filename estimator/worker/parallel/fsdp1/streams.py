"""Streams and events of FSDP1 on the CPU, reported to the tracker as a GPU's would be ordered.

torch's streams and events of the CPU do nothing. Here they carry an order, so that the tracker knows when a storage
that another stream uses comes back to its pool.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ...replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...memory.tracker import StorageTracker

_NCCL = object()
"""Stands for the stream of the process group: NCCL runs the collectives of a group one after another."""


@contextlib.contextmanager
def ordered_streams(tracker: StorageTracker) -> Iterator[None]:
    """Report waits, events and ``record_stream`` to the tracker."""
    from torch.distributed.fsdp import _flat_param, _runtime_utils

    stream, event, handle = torch.cpu.Stream, torch.cpu.Event, _flat_param.FlatParamHandle
    all_gather, reduce = handle._all_gather_flat_param, _runtime_utils._reduce_grad
    order, number = tracker.order, tracker.stream_number
    tracker.has_streams = True

    def current() -> int:
        return number(torch.cpu.current_stream())

    def wait_stream(self: Any, other: Any) -> None:
        order.wait(number(self), order.record(number(other)))

    def record_event(self: Any, made: Any = None) -> Any:
        made = event() if made is None else made
        made._reach = order.record(number(self))
        return made

    def wait_event(self: Any, other: Any) -> None:
        order.wait(number(self), getattr(other, "_reach", {}))

    def record(self: Any, on: Any = None) -> None:
        self._reach = order.record(current() if on is None else number(on))

    def synchronize(self: Any) -> None:
        tracker.synchronize(getattr(self, "_reach", {}))

    def wait(self: Any, on: Any = None) -> None:
        order.wait(current() if on is None else number(on), getattr(self, "_reach", {}))

    def collective(original: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            stream, nccl = current(), number(_NCCL)
            order.wait(nccl, order.record(stream))
            order.wait(stream, order.record(nccl))
            return result

        return run

    patches: list[tuple[Any, str, Any]] = [
        (stream, "wait_stream", wait_stream),
        (stream, "record_event", record_event),
        (stream, "wait_event", wait_event),
        (event, "record", record),
        (event, "synchronize", synchronize),
        (event, "wait", wait),
        (handle, "_all_gather_flat_param", collective(all_gather)),
        (_runtime_utils, "_reduce_grad", collective(reduce)),
        (_flat_param, "_no_dispatch_record_stream", tracker.record_stream),
        (_runtime_utils, "_no_dispatch_record_stream", tracker.record_stream),
        # fake tensors have no addresses, by which FSDP1 tells storages apart and whether they are sharded
        (torch.Tensor, "data_ptr", lambda tensor: tensor.untyped_storage()._cdata),
        (_flat_param, "_same_storage", lambda a, b: a.untyped_storage()._cdata == b.untyped_storage()._cdata),
        (_flat_param, "_data_ptr_allocated", lambda tensor: tensor.untyped_storage().nbytes() > 0),
    ]
    with replaced(*patches):
        yield
