"""FSDP1's tensors under the tracker: gathered parameters and unsharded gradients as communication."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ...replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...memory.tracker import StorageTracker


@contextlib.contextmanager
def communication_labelled(tracker: StorageTracker) -> Iterator[None]:
    """Label what FSDP1 gathers and reduces as communication, and sharded gradients as gradients."""
    from torch.distributed.fsdp import _runtime_utils
    from torch.distributed.fsdp._flat_param import FlatParamHandle

    def as_communication(original: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            with tracker.labelling("communication"):
                return original(*args, **kwargs)

        return run

    reduce = _runtime_utils._post_backward_hook

    def post_backward(state: Any, handle: Any, *unused: Any) -> Any:
        component = "communication" if state._sync_gradients else "gradients"
        tracker.label((handle.flat_param.grad,), component)
        with tracker.labelling(component):
            result = reduce(state, handle, *unused)
        tracker.label((getattr(handle.flat_param, "_saved_grad_shard", None),), "gradients")
        return result

    patches: list[tuple[Any, str, Any]] = [
        (FlatParamHandle, "pre_unshard", as_communication(FlatParamHandle.pre_unshard)),
        (FlatParamHandle, "unshard", as_communication(FlatParamHandle.unshard)),
        (_runtime_utils, "_post_backward_hook", post_backward),
    ]
    with replaced(*patches):
        yield
