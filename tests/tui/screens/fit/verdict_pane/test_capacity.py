"""The capacity of GPUs in MIG mode in the fit check."""

from builders import make_board, make_budget, make_mig_gpu

from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.tui.screens.fit.gpu_picker import Capacity, GpuPicker

FIRST, SECOND = (Job(name=name, model=ModelSpec(id="gpt2")) for name in ("first", "second"))


def test_memory_of_earlier_pending_jobs_is_deducted_from_mig_devices() -> None:
    picker = GpuPicker()
    picker.show_board(make_board([make_mig_gpu(0, free=(30, 19))], device=16, high=17, pending=[FIRST, SECOND]))
    # the first job uses the larger instance, which then has 14 GiB left; the second uses the other one
    assert [device.available_bytes for device in picker.devices(1, pinned=FIRST)] == [30 * GIB, 30 * GIB, 19 * GIB]
    assert [device.available_bytes for device in picker.devices(1, pinned=SECOND)] == [14 * GIB, 14 * GIB, 19 * GIB]
    assert [device.available_bytes for device in picker.devices(1)] == [14 * GIB, 14 * GIB, 3 * GIB]
    capacity = Capacity(devices=picker.devices(1, pinned=SECOND))
    assert capacity.fit(make_budget(device=16, high=17)).cuda_devices == ("MIG-0-9-0",)
    tightest = capacity.tightest(make_budget(device=16, high=17))
    assert (tightest.available_bytes, tightest.total_bytes) == (19 * GIB, 20 * GIB)
