"""What collectives of DTensors allocate in a trace, compared with the same ones on real tensors."""

from typing import Any

import pytest
import torch
from storage_counter import StorageCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from vramtop.estimator.worker.memory.tracker import StorageTracker
from vramtop.estimator.worker.parallel.data_parallel import fake_process_group, meta_propagation_untracked

SHAPE = (2, 64, 128)


class PlainCounter(StorageCounter):
    """Counts the storages of plain tensors: those of tensors that wrap them have no memory."""

    def count(self, tensor: torch.Tensor) -> None:
        if type(tensor) is torch.Tensor:
            super().count(tensor)


def whole(mesh: Any, placement: Any) -> Any:
    """Make the whole of a rank's part of a tensor."""
    part = torch.empty(SHAPE)
    sharded = DTensor.from_local(part, mesh, [placement], run_check=False)
    return sharded.redistribute(placements=[Replicate()]).to_local()


@pytest.mark.parametrize("placement", [Shard(2), Partial()], ids=str)
def test_a_collective_allocates_what_it_does_on_real_tensors(placement: Any) -> None:
    """The group's collectives move no data, but allocate their results: of them, waiting makes no copy."""
    with fake_process_group(2), torch.no_grad():
        mesh = init_device_mesh("cpu", (2,))
        real, traced = PlainCounter(), StorageTracker()
        with real:
            whole(mesh, placement)
        with FakeTensorMode(), traced, meta_propagation_untracked(traced):
            whole(mesh, placement)
    level = peak = 0
    for event in traced.history.events:
        size = traced.history.records[abs(event) - 1].size
        level += size if event > 0 else -size
        peak = max(peak, level)
    part = 4 * 2 * 64 * 128
    assert peak == real.peak == (5 * part if placement == Shard(2) else 2 * part)
