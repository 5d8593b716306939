"""Placement on MIG devices: each is a device of its own, and only jobs of one rank are placed there."""

import pytest
from builders import make_board, make_budget, make_device, make_gpu, make_mig_gpu, make_process, make_snapshot

from vramtop.estimator.budget import RankPeak, RankPeaks
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job, ModelSpec, Parallel
from vramtop.estimator.serving_need import ServingNeed
from vramtop.monitor.board.board import GpuRow, ProcessRow
from vramtop.monitor.board.capacity import device_capacities
from vramtop.monitor.board.fit import check_fit, check_serving_fit
from vramtop.monitor.board.watchlist import committed_bytes
from vramtop.monitor.snapshot.figures import Fault

TWO = Job(model=ModelSpec(id="gpt2"), parallel=Parallel(strategy="ddp", data_replicate=2))


def test_mig_devices_are_devices_and_their_gpu_is_not() -> None:
    devices = device_capacities(make_snapshot([make_mig_gpu(0), make_gpu(1)]), {})
    assert [(device.label, device.cuda_device, device.available_bytes) for device in devices[:3]] == [
        ("GPU 0:3:0 (MIG 1c.3g.40gb)", "MIG-0-3-0", 39 * GIB),
        ("GPU 0:3:1 (MIG 2c.3g.40gb)", "MIG-0-3-1", 39 * GIB),
        ("GPU 0:9 (MIG 1g.20gb)", "MIG-0-9-0", 19 * GIB),
    ]
    assert [device.label for device in devices[3:]] == ["GPU 1"]


def test_committed_memory_is_deducted_from_its_instance_or_from_the_whole_gpu() -> None:
    committed = {0: GIB, (0, 3): 5 * GIB, 1: 9 * GIB}
    devices = device_capacities(make_snapshot([make_mig_gpu()]), committed)
    assert [device.available_bytes for device in devices] == [33 * GIB, 33 * GIB, 18 * GIB]


def test_free_memory_of_the_whole_gpu_is_not_available_to_a_mig_device() -> None:
    found = check_fit(make_budget(device=45), device_capacities(make_snapshot([make_mig_gpu()]), {}))
    assert found.verdict == "does_not_fit"
    assert "GPU 0:3:0 (MIG 1c.3g.40gb) is 6.0 GiB short" in found.sentence


def test_several_ranks_are_placed_on_whole_gpus() -> None:
    budget = make_budget(TWO, device=10)
    both = check_fit(budget, device_capacities(make_snapshot([make_mig_gpu(0), make_gpu(1), make_gpu(2)]), {}))
    assert (both.verdict, both.placement) == ("fits", (1, 2))
    assert {gpu.verdict for gpu in both.gpus if gpu.device.mig} == {"does_not_fit"}
    one = check_fit(budget, device_capacities(make_snapshot([make_mig_gpu(0), make_gpu(1)]), {}))
    assert (one.verdict, one.placement) == ("does_not_fit", (1,))
    assert "there is 1 here; a MIG device is for jobs with one rank" in one.sentence
    assert "MIG" not in check_fit(budget, device_capacities(make_snapshot([make_gpu(1)]), {})).sentence


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ((), "GPU 0 is in MIG mode and has no MIG device"),
        ((Fault(field="mig", code="NO_PERMISSION", message="not allowed"),), "GPU 0 is in MIG mode, and not allowed"),
    ],
)
def test_nothing_fits_on_a_gpu_in_mig_mode_without_devices(faults: tuple[Fault, ...], words: str) -> None:
    found = check_fit(make_budget(), device_capacities(make_snapshot([make_gpu(0, mig=(), faults=faults)]), {}))
    assert found.verdict == "does_not_fit"
    assert words in found.sentence


def test_a_running_job_is_committed_in_its_instance_if_that_is_known() -> None:
    known, unknown = make_process(1, 10, gpu_instance=9), make_process(2, 36)
    gpu = make_mig_gpu(0, [known, unknown])
    rows = tuple(
        ProcessRow(gpu=gpu, process=process, elapsed_seconds=1.0, budget=make_budget())
        for process in gpu.processes or ()
    )
    rest = make_budget().steady_device_bytes - 10 * GIB
    assert committed_bytes([GpuRow(reading=gpu, rows=rows)]) == {0: rest - 26 * GIB, (0, 9): rest}


def test_a_pending_job_takes_memory_from_both_compute_instances() -> None:
    """The second job finds the shared memory taken and the other instance free."""
    rows = make_board([make_mig_gpu()], device=16, high=17, pending=["first", "second", "third", "fourth"]).pending
    assert [row.fit.cuda_devices for row in rows if row.fit] == [
        ("MIG-0-3-0",),
        ("MIG-0-3-0",),
        ("MIG-0-9-0",),
        ("MIG-0-3-0",),
    ]
    assert [row.fit.verdict for row in rows if row.fit] == ["fits", "fits", "fits", "does_not_fit"]


NEED = ServingNeed(
    utilization=0.9,
    weights=15 * GIB,
    activations=GIB,
    libraries=GIB // 4,
    graphs=GIB // 2,
    sequence_bytes=4 * GIB,
    token_bytes=131072,
    sequences=64,
    length=32768,
)


def ranks(count: int) -> RankPeaks:
    return RankPeaks(stages=(RankPeak(device_bytes=0, low_bytes=0, high_bytes=0),), ranks_per_stage=count)


def test_the_rest_of_the_memory_share_is_cache() -> None:
    found = check_serving_fit(NEED, ranks(1), [make_device()])
    assert (found.verdict, found.placement) == ("fits", (0,))
    assert found.serving.asked_bytes == 72 * GIB
    assert found.serving.cache_bytes == 55.75 * GIB
    assert found.serving.cache_tokens == 55.75 * GIB // 131072
    assert "about 13.9 full-length sequences at once" in found.sentence
    assert found.to_json()["serving"]["concurrency"] == 13.94


@pytest.mark.parametrize(("total", "verdict"), [(22, "does_not_fit"), (22.6, "tight"), (24, "fits")])
def test_one_sequence_of_full_length_must_fit_the_cache(total: float, verdict: str) -> None:
    assert check_serving_fit(NEED, ranks(1), [make_device(0, total, total_bytes=round(total * GIB))]).verdict == verdict


def test_a_server_does_not_start_if_its_share_is_not_free() -> None:
    found = check_serving_fit(NEED, ranks(1), [make_device(0, 60)])
    assert found.verdict == "does_not_fit"
    assert "would refuse to start" in found.sentence
    assert found.margin_bytes == -12 * GIB
    assert check_serving_fit(replace(NEED, utilization=0.7), ranks(1), [make_device(0, 60)]).verdict == "fits"


def test_the_total_of_cuda_excludes_memory_reserved_by_the_driver() -> None:
    found = check_serving_fit(NEED, ranks(1), [make_device(reserved_bytes=GIB // 2)])
    assert found.serving.asked_bytes == int(0.9 * 79.5 * GIB)


def test_each_rank_has_its_own_gpu() -> None:
    two = [make_device(0, 24, total_bytes=24 * GIB), make_device(1)]
    assert check_serving_fit(NEED, ranks(1), two).placement == (1,)
    both = check_serving_fit(NEED, ranks(2), two)
    assert (both.verdict, both.placement) == ("fits", (1, 0))
    assert both.serving is None or both.serving.asked_bytes > 0
    assert check_serving_fit(NEED, ranks(3), two).verdict == "does_not_fit"
    unknown = replace(two[0], free_bytes=None)
    assert check_serving_fit(NEED, ranks(1), [unknown]).verdict == "unknown"


def test_vllm_on_several_gpus_is_not_placed_on_mig_devices() -> None:
    devices = device_capacities(make_snapshot([make_mig_gpu(0), make_gpu(1)]), {})
    small = replace(NEED, utilization=0.2)
    assert check_serving_fit(small, ranks(1), devices).cuda_devices == ("GPU-00000001",)
    assert check_serving_fit(small, ranks(1), devices[:3]).cuda_devices == ("MIG-0-3-0",)
    both = check_serving_fit(small, ranks(2), devices)
    assert (both.verdict, both.placement) == ("does_not_fit", (1,))
    assert "there is 1 here; a MIG device is for jobs with one rank" in both.sentence
