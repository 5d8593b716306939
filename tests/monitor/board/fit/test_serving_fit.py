import pytest
from builders import make_gpu, make_mig_gpu, make_snapshot

from vramtop.estimator.budget import RankPeak, RankPeaks
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.serving_need import ServingNeed
from vramtop.monitor.board.capacity import DeviceCapacity, device_capacities
from vramtop.monitor.board.serving_fit import check_serving_fit

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


def device(index: int, total: float, free: float | None = None, reserved: float = 0) -> DeviceCapacity:
    return DeviceCapacity(
        index=index,
        uuid=None,
        name=None,
        total_bytes=round(total * GIB),
        free_bytes=round((total if free is None else free) * GIB),
        reserved_bytes=round(reserved * GIB),
    )


def test_the_rest_of_the_memory_share_is_cache() -> None:
    found = check_serving_fit(NEED, ranks(1), [device(0, 80)])
    assert (found.verdict, found.placement) == ("fits", (0,))
    assert found.serving.asked_bytes == 72 * GIB
    assert found.serving.cache_bytes == 55.75 * GIB
    assert found.serving.cache_tokens == 55.75 * GIB // 131072
    assert "about 13.9 full-length sequences at once" in found.sentence
    assert found.to_json()["serving"]["concurrency"] == 13.94


@pytest.mark.parametrize(("total", "verdict"), [(22, "does_not_fit"), (22.6, "tight"), (24, "fits")])
def test_one_sequence_of_full_length_must_fit_the_cache(total: float, verdict: str) -> None:
    assert check_serving_fit(NEED, ranks(1), [device(0, total)]).verdict == verdict


def test_a_server_does_not_start_if_its_share_is_not_free() -> None:
    found = check_serving_fit(NEED, ranks(1), [device(0, 80, free=60)])
    assert found.verdict == "does_not_fit"
    assert "would refuse to start" in found.sentence
    assert found.margin_bytes == -12 * GIB
    assert check_serving_fit(replace(NEED, utilization=0.7), ranks(1), [device(0, 80, free=60)]).verdict == "fits"


def test_the_total_of_cuda_excludes_memory_reserved_by_the_driver() -> None:
    found = check_serving_fit(NEED, ranks(1), [device(0, 80, reserved=0.5)])
    assert found.serving.asked_bytes == int(0.9 * 79.5 * GIB)


def test_each_rank_has_its_own_gpu() -> None:
    two = [device(0, 24), device(1, 80)]
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
