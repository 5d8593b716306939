"""A process group with all of the job's ranks in a single process, whose collectives do nothing.

The trace runs as rank 0, which holds the most where a dimension does not divide evenly.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ..replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..memory.tracker import StorageTracker
    from ..request.request import Parallel


@contextlib.contextmanager
def fake_process_group(world_size: int) -> Iterator[None]:
    """Open a fake process group of this size; none for a single rank."""
    if world_size == 1:
        yield
        return
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    coordinate = getattr(DeviceMesh, "_compute_coordinate_on_dim", None)
    if coordinate is not None:
        DeviceMesh._compute_coordinate_on_dim = lambda mesh: _without_fake_mode(coordinate, mesh)
    try:
        yield
    finally:
        if coordinate is not None:
            DeviceMesh._compute_coordinate_on_dim = coordinate
        dist.destroy_process_group()


def device_mesh(parallel: Parallel, device: str = "cpu") -> Any:
    """Return a mesh of devices with those of the dimensions ``replicate``, ``shard`` and ``tensor`` that exceed 1."""
    sizes = {"replicate": parallel.copies, "shard": parallel.data_shard, "tensor": parallel.tensor}
    return device_mesh_of({name: size for name, size in sizes.items() if size > 1}, device)


def device_mesh_of(sizes: dict[str, int], device: str = "cpu") -> Any:
    """Return a mesh of devices with these dimensions."""
    from torch.distributed.device_mesh import init_device_mesh

    return _without_fake_mode(lambda: init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes)))


def meta_propagation_untracked(tracker: StorageTracker) -> contextlib.AbstractContextManager[None]:
    """Pause the tracker where DTensor runs an operation on fake tensors to infer the shape of its result."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    original = ShardingPropagator._propagate_tensor_meta_non_cached

    def run(*args: Any, **kwargs: Any) -> Any:
        with tracker.paused():
            return original(*args, **kwargs)

    return replaced((ShardingPropagator, "_propagate_tensor_meta_non_cached", run))


def _without_fake_mode(function: Any, *args: Any) -> Any:
    """Call a function on real tensors: a mesh reads its ranks' values."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        return function(*args)
