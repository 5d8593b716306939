from collections.abc import Sequence
from itertools import pairwise

import pytest
from builders import make_budget, make_gpu, make_snapshot
from hypothesis import HealthCheck, given, settings, strategies as st

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.sizes import GIB, UNSEEN_BYTES, format_gib
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.monitor.board.comparison import Comparison, Status, as_far_as_known, compare_with_budget
from vramtop.monitor.board.run_phases import PhaseTracker
from vramtop.monitor.board.watchlist import PendingFits
from vramtop.monitor.snapshot.snapshot import GpuProcess, ProcessCounters


def readings(*sizes: float | None, every: float = 1.0) -> list[tuple[float, int | None]]:
    return [(1_000 + every * n, None if size is None else round(size * GIB)) for n, size in enumerate(sizes)]


def judge(
    budget: Budget,
    held: list[tuple[float, int | None]],
    *,
    running: float | None = None,
    steps: int | None = None,
    recent: int | None = None,
    left_bytes: int | None = None,
    previous: Status | None = None,
) -> Comparison:
    """Return the comparison after these readings of a process that has run for ``running`` seconds."""
    start = held[-1][0] - running if running is not None and held else None
    tracker = PhaseTracker(budget, start_time=start)
    process = None
    for time, size in held:
        counters = None if steps is None else ProcessCounters(time=time, steps=steps)
        process = GpuProcess(pid=1, start_time=start, used_bytes=size, kinds=("compute",), counters=counters)
        tracker.add(time, size, counters)
    return compare_with_budget(
        tracker, held[-recent:] if recent else held, process=process, left_bytes=left_bytes, previous=previous
    )


@pytest.mark.parametrize(
    ("held", "status"), [(5, "loading"), (20, "warming_up"), (39, "on_budget"), (42, "on_budget"), (46, "over")]
)
def test_status_follows_the_current_memory(held: float, status: str) -> None:
    budget = make_budget(device=37.65, low=38, high=44)  # loading ends at 4/16 of 37.65 GiB
    assert judge(budget, readings(1, held)).status == status


def test_a_small_job_is_under_budget_only_after_a_while() -> None:
    budget = make_budget(low=38, high=44)
    assert judge(budget, readings(*[20.0] * 60)).status == "warming_up"
    assert judge(budget, readings(*[20.0] * 250)).status == "under"
    assert judge(budget, readings(*[20.0] * 15), running=7_200).status == "warming_up"
    assert judge(budget, readings(*[20.0] * 70), running=7_200).status == "under"
    growing = [10 + n * 0.5 for n in range(40)]
    assert judge(budget, readings(*growing, every=10), running=400).status == "warming_up"
    back = [30.0] + [16 + n * 0.01 for n in range(600)]  # dropped after loading, and grows back slowly
    assert judge(budget, readings(*back), running=1_500).status == "warming_up"


def test_reading_data_and_slow_loading_are_loading_for_an_hour() -> None:
    budget = make_budget(device=37.65, low=38, high=44)
    for minutes, status in ((10, "loading"), (50, "loading"), (61, "under")):
        held = readings(*[0.5] * 600)
        assert judge(budget, held, running=minutes * 60).status == status
    slow = [0.5 + n * 7 / 1200 for n in range(1200)]  # 7 GiB in 20 minutes
    assert judge(budget, readings(*slow), running=1_200).status == "loading"


def test_a_job_that_once_reached_its_budget_stays_on_budget() -> None:
    budget = make_budget(device=37.65, low=38, high=44)
    dropped = judge(budget, readings(*[40.0] * 5, *[12.0] * 590), running=4_000)
    assert dropped.status == "on_budget"
    assert "holds less now" in dropped.sentence
    assert judge(budget, readings(*[12.0] * 600), running=4_000).status == "under"
    remembered = judge(budget, readings(40.0, *[12.0] * 600), running=4_000, recent=600)
    assert remembered.status == "on_budget"
    assert remembered.peak_usage.size_bytes == 40 * GIB
    higher = judge(budget, readings(50.0, *[12.0] * 600), running=4_000)
    assert (higher.status, "reached 50.0 GiB" in higher.sentence) == ("on_budget", True)


def test_unknown_memory_is_unknown_and_never_zero() -> None:
    found = judge(make_budget(), readings(40, None))
    assert (found.status, found.observed_bytes, found.difference_bytes) == ("unknown", None, None)
    assert found.peak_usage.size_bytes == 40 * GIB
    assert judge(make_budget(), []).status == "unknown"


def test_the_difference_is_relative_to_the_expected_memory() -> None:
    budget = make_budget()
    found = judge(budget, readings(60, 50))
    assert found.difference_bytes == 50 * GIB - budget.steady_device_bytes
    assert found.peak_usage.size_bytes == 60 * GIB
    assert found.diverges
    assert "above its upper bound" in found.sentence


def test_a_process_that_reports_its_steps_is_judged_without_waiting() -> None:
    budget = make_budget(low=38, high=44)
    held = readings(20, 20)
    assert judge(budget, held, steps=1).status == "warming_up"
    assert judge(budget, held, steps=2).status == "under"
    assert judge(budget, readings(*[20.0] * 250), steps=0).status == "warming_up"


def test_growth_in_the_steady_phase_is_reported_with_the_time_to_the_limit() -> None:
    budget = make_budget(device=40, low=38, high=50)
    sawtooth = [40 + n * 0.01 + (n % 5) * 0.2 for n in range(300)]
    found = judge(budget, readings(*sawtooth), left_bytes=6 * GIB)
    assert (found.status, found.diverges) == ("growing", True)
    assert found.trend.bytes_per_second == pytest.approx(0.01 * GIB, rel=0.05)
    assert found.sentence.startswith("GPU full in about 9 min: has grown by 0.6 GiB per minute since ")
    assert "although it should be steady (almost certain), holds " in found.sentence


@pytest.mark.parametrize(
    "held",
    [
        [40 + (n % 7) * 0.5 for n in range(300)],
        [38 + min(n, 100) * 0.02 for n in range(300)],
        [5 + min(n, 200) * 0.17 for n in range(300)],
        [40 + n * 0.01 for n in range(60)],
    ],
    ids=["up and down", "settles", "loads", "a minute is too short"],
)
def test_memory_that_is_not_growing(held: list[float]) -> None:
    assert judge(make_budget(device=40, low=38, high=50), readings(*held)).status == "on_budget"


def test_growth_does_not_flicker() -> None:
    budget = make_budget(device=40, low=38, high=50)
    held = readings(*[40 + (n // 25) * 0.1 + (0.5 if n % 75 < 25 else 0) for n in range(300)])
    assert judge(budget, held).status == "on_budget"  # grows, but not significantly
    assert judge(budget, held, previous="growing").status == "growing"


def test_the_moment_at_which_a_job_left_its_budget_is_known() -> None:
    budget = make_budget(low=38, high=44)
    assert judge(budget, readings(40, 41, 43)).left_budget_at is None
    assert judge(budget, readings(40, 41, 46, 47, 48)).left_budget_at == 1_002
    assert judge(budget, readings(46, 41, 46, 47)).left_budget_at == 1_002
    assert judge(budget, readings(46, 43.9, 46)).left_budget_at == 1_000  # it was barely below for a moment
    under = judge(budget, readings(1, *[20.0] * 250))
    assert (under.status, under.left_budget_at) == ("under", 1_001)
    assert as_far_as_known(judge(budget, readings(40, 48)), budget, ["micro_batch"]).left_budget_at is None


WOBBLE = st.lists(st.integers(-UNSEEN_BYTES + 1, UNSEEN_BYTES - 1), min_size=2, max_size=30)
FIXTURES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def follow(budget: Budget, sizes: Sequence[int]) -> list[Comparison]:
    """Return the comparison at each reading of a process past its first steps, as the dashboard makes them."""
    tracker, found = PhaseTracker(budget, start_time=0.0), []
    previous: Status | None = None
    for number, size in enumerate(sizes):
        counters = ProcessCounters(time=1000.0 + number, steps=9)
        tracker.add(1000.0 + number, size, counters)
        process = GpuProcess(pid=1, start_time=0.0, used_bytes=size, kinds=("compute",), counters=counters)
        compared = compare_with_budget(tracker, [(1000.0 + number, size)], process=process, previous=previous)
        previous = compared.status
        found.append(compared)
    return found


def changes(states: Sequence[object]) -> int:
    return sum(one != other for one, other in pairwise(states))


@FIXTURES
@given(high=st.sampled_from([0.7, 4.0, 44.0, 300.0]), before=st.sampled_from([-1.0, 1.0]), wobble=WOBBLE)
def test_wobbling_at_the_upper_bound(high: float, before: float, wobble: list[int]) -> None:
    budget = make_budget(device=high * 0.9, low=high * 0.5, high=high)
    bound = budget.peak.high_bytes
    found = follow(budget, [bound + round(before * bound * 0.4), *(bound + offset for offset in wobble)])
    assert found[0].status == ("over" if before > 0 else "on_budget")
    assert changes([each.status for each in found]) <= (1 if before > 0 else 0)
    for each in found:
        assert "holds 0.0 GiB" not in each.sentence
        assert "−" not in each.sentence.partition("(")[0]


@FIXTURES
@given(wobble=WOBBLE)
def test_wobbling_at_the_lower_bound(wobble: list[int]) -> None:
    budget = make_budget(low=38, high=44)
    found = follow(budget, [30 * GIB, *(budget.peak.low_bytes + offset for offset in wobble)])
    assert [each.status for each in found] == ["under", *["on_budget"] * len(wobble)]
    assert follow(budget, [budget.peak.low_bytes - UNSEEN_BYTES - 1])[0].status == "under"


@FIXTURES
@given(high=st.sampled_from([0.7, 4.0, 44.0, 300.0]), beyond=st.integers(0, GIB))
def test_a_step_beyond_the_bound_changes_the_status_at_once(high: float, beyond: int) -> None:
    budget = make_budget(device=high * 0.9, low=high * 0.5, high=high)
    bound, band = budget.peak.high_bytes, max(UNSEEN_BYTES, budget.peak.high_bytes // 100)
    sizes = [bound - band, bound + UNSEEN_BYTES + beyond, max(budget.peak.low_bytes, bound - band - 1 - beyond)]
    found = follow(budget, sizes)
    assert [each.status for each in found] == ["on_budget", "over", "on_budget"]
    assert f"{format_gib(UNSEEN_BYTES + beyond)} GiB above" in found[1].sentence


@FIXTURES
@given(at_high=st.booleans(), before=st.sampled_from([-1, 1]), wobble=WOBBLE)
def test_the_verdict_of_a_pending_job_at_a_bound(at_high, before, wobble) -> None:
    budget = make_budget(Job(model=ModelSpec(id="gpt2")), device=40, low=38, high=44)
    bound = budget.peak.high_bytes if at_high else budget.peak.device_bytes
    below, above = ("tight", "fits") if at_high else ("unknown", "tight")
    fits = PendingFits()

    def verdict(free: int) -> str | None:
        snapshot = make_snapshot([make_gpu(0, free_bytes=free)])
        (row,) = fits.rows(snapshot, {}, [(budget.job, budget)], None, {})
        assert "0.0 GiB short" not in row.fit.sentence
        return row.fit.verdict

    first = verdict(bound + before * GIB)
    assert first == (above if before > 0 else below)
    assert {verdict(bound + offset) for offset in wobble} == {first}
    assert verdict(bound - before * (UNSEEN_BYTES + 1)) == (below if before > 0 else above)
