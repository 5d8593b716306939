import pytest
from builders import make_budget, make_gpu, make_process, make_snapshot
from hypothesis import given, strategies as st

from vramtop.estimator.budget import Budget, RankPeak
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job, ModelSpec, Parallel
from vramtop.monitor.board.capacity import DeviceCapacity, device_capacities
from vramtop.monitor.board.fit import check_fit
from vramtop.monitor.snapshot.faults import Fault

FOUR = Job(model=ModelSpec(id="gpt2"), parallel=Parallel(strategy="fsdp2", data_shard=4))


def device(index: int, free: float | None, committed: float = 0) -> DeviceCapacity:
    size = None if free is None else round(free * GIB)
    return DeviceCapacity(
        index=index,
        uuid=None,
        name="card",
        total_bytes=80 * GIB,
        free_bytes=size,
        committed_bytes=round(committed * GIB),
    )


@pytest.mark.parametrize(
    ("free", "verdict"), [(50, "fits"), (41, "tight"), (37, "unknown"), (30, "does_not_fit"), (None, "unknown")]
)
def test_verdicts_by_range(free: float | None, verdict: str) -> None:
    budget = make_budget(device=37.65, low=36, high=44)  # expected: 16/16 of 37.65 GiB and less than 41
    assert budget.peak.device_bytes < 41 * GIB
    found = check_fit(budget, [device(0, free)])
    assert (found.verdict, found.gpus[0].verdict) == (verdict, verdict)


def test_the_gpu_with_the_most_available_memory_is_chosen_and_gives_the_margin() -> None:
    budget = make_budget(high=41)
    found = check_fit(budget, [device(0, 45), device(1, 70), device(2, 60, committed=30)])
    assert found.placement == (1,)
    assert found.margin_bytes == 70 * GIB - budget.peak.device_bytes
    assert "GPU 1" in found.sentence


def test_committed_memory_is_not_available() -> None:
    found = check_fit(make_budget(), [device(0, 70, committed=40)])
    assert found.verdict == "does_not_fit"
    assert found.gpus[0].device.available_bytes == 30 * GIB
    assert found.margin_bytes < 0


def test_the_margin_is_unknown_if_available_memory_is_unknown() -> None:
    assert check_fit(make_budget(), [device(0, None)]).margin_bytes is None
    assert check_fit(make_budget(), []).margin_bytes is None
    found = check_fit(make_budget(FOUR, high=41), [*(device(n, 70) for n in range(3)), device(3, None)])
    assert found.margin_bytes is None
    assert found.to_json()["margin_bytes"] is None


def test_every_rank_needs_a_gpu_of_its_own() -> None:
    budget = make_budget(FOUR, high=41)
    assert check_fit(budget, [device(n, 70) for n in range(4)]).verdict == "fits"
    assert check_fit(budget, [device(0, 70), device(1, 70), device(2, 70), device(3, 20)]).verdict == "does_not_fit"
    few = check_fit(budget, [device(0, 70), device(1, 70)])
    assert few.verdict == "does_not_fit"
    assert "needs 4 GPUs" in few.sentence
    assert check_fit(budget, [device(0, 70), device(1, 70), device(2, 70), device(3, None)]).verdict == "unknown"


def stages(*needs: int) -> Budget:
    """The budget of a pipeline whose stages need these GiB."""
    job = Job(model=ModelSpec(id="gpt2"), parallel=Parallel(pipeline=len(needs)))
    each = [RankPeak(device_bytes=n * GIB, low_bytes=(n - 1) * GIB, high_bytes=(n + 1) * GIB) for n in needs]
    return replace(make_budget(job, device=max(needs)), stages=tuple(each))


@pytest.mark.parametrize(
    ("needs", "free", "verdict", "placement"),
    [
        ((30, 20, 10), (12, 32, 22), "fits", (1, 2, 0)),
        ((30, 20, 10), (12, 32, 20), "tight", (1, 2, 0)),
        ((30, 20, 10), (70, 70, 5), "does_not_fit", (0, 1, 2)),
        ((30, 10), (50, None, 20), "fits", (0, 2)),
        ((30, 10), (None, 20), "unknown", (0, 1)),
        ((30, 10), (None, 5), "does_not_fit", (1, 0)),
    ],
)
def test_different_pipeline_stages_are_placed_by_their_needs(needs, free, verdict, placement) -> None:
    found = check_fit(stages(*needs), [device(n, size) for n, size in enumerate(free)])
    assert (found.verdict, found.placement) == (verdict, placement)
    assert f"needs {min(needs)}.0 to {max(needs)}.0 GiB per GPU (uneven split)" in found.sentence


@pytest.mark.parametrize(
    ("mode", "kinds", "words"),
    [
        ("default", ("compute",), None),
        (None, ("compute",), None),
        ("exclusive_process", ("graphics",), None),
        ("exclusive_process", ("compute",), "allows one program at a time"),
        ("exclusive_process", ("mps",), None),
        ("prohibited", None, "does not allow compute programs"),
    ],
)
def test_a_gpu_whose_compute_mode_allows_no_further_program_is_closed(mode, kinds, words) -> None:
    held = [make_process(used=1, kinds=kinds)] if kinds else []
    found = check_fit(make_budget(), device_capacities(make_snapshot([make_gpu(0, held, compute_mode=mode)]), {}))
    assert found.verdict == ("fits" if words is None else "does_not_fit")
    assert words is None or f"GPU 0 {words}" in found.sentence
    assert (found.to_json()["gpus"][0]["closed"] is None) == (words is None)


def test_a_lost_gpu_has_no_capacity() -> None:
    lost = Fault(field=None, code="GPU_IS_LOST", message="the GPU no longer answers")
    nothing = dict.fromkeys(("total_bytes", "reserved_bytes", "used_bytes", "free_bytes", "processes"))
    gone = replace(make_gpu(1), **nothing, faults=(lost,))  # type: ignore[arg-type]
    found = check_fit(make_budget(), device_capacities(make_snapshot([gone]), {}))
    assert (found.verdict, found.sentence) == ("does_not_fit", "needs 40.0 GiB; GPU 1 no longer answers")
    assert check_fit(make_budget(), device_capacities(make_snapshot([make_gpu(0), gone]), {})).placement == (0,)


@given(st.lists(st.one_of(st.none(), st.integers(0, 80)), max_size=8), st.integers(1, 4))
def test_a_job_fits_only_with_its_upper_bound_available_on_each_gpu(free: list[int | None], ranks: int) -> None:
    from vramtop.estimator.estimation import estimate

    job = Job(model=ModelSpec(id="gpt2"), parallel=Parallel(strategy="ddp", data_replicate=ranks))
    budget = estimate(job)
    found = check_fit(budget, [device(n, size) for n, size in enumerate(free)])
    if found.verdict == "fits":
        assert len(set(found.placement)) == ranks
        assert all((free[index] or 0) * GIB >= budget.peak.high_bytes for index in found.placement)
        assert found.margin_bytes >= 0
