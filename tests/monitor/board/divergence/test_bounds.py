"""A figure that wobbles at a bound by less than is displayed changes a status or a verdict at most once."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from builders import make_budget, make_gpu, make_snapshot
from hypothesis import HealthCheck, given, settings, strategies as st

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.sizes import GIB, UNSEEN_BYTES, format_gib
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.monitor.board.comparison import Comparison, Status, compare_with_budget
from vramtop.monitor.board.pending_rows import PendingFits
from vramtop.monitor.board.run_phases import PhaseTracker
from vramtop.monitor.snapshot.snapshot import GpuProcess, ProcessCounters, Snapshot

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


class PendingJob:
    """A pending job on one GPU, and the verdict that is shown at each reading."""

    def __init__(self, budget: Budget, gpu: Callable[[int], Snapshot], host: int | None = None) -> None:
        self._fits, self._budget, self._gpu, self._host = PendingFits(), budget, gpu, host

    def verdict(self, free: int) -> str | None:
        snapshot = self._gpu(free)
        (row,) = self._fits.rows(snapshot, {}, [(self._budget.job, self._budget)], self._host, {})
        assert "0.0 GiB short" not in row.fit.sentence
        return row.fit.verdict


def one_gpu(free: int) -> Snapshot:
    return make_snapshot([make_gpu(0, free_bytes=free)])


@FIXTURES
@given(at_high=st.booleans(), before=st.sampled_from([-1, 1]), wobble=WOBBLE)
def test_the_verdict_of_a_pending_job_at_a_bound(at_high, before, wobble) -> None:
    budget = make_budget(Job(model=ModelSpec(id="gpt2")), device=40, low=38, high=44)
    bound = budget.peak.high_bytes if at_high else budget.peak.device_bytes
    below, above = ("tight", "fits") if at_high else ("unknown", "tight")
    job = PendingJob(budget, one_gpu)
    first = job.verdict(bound + before * GIB)
    assert first == (above if before > 0 else below)
    assert {job.verdict(bound + offset) for offset in wobble} == {first}
    assert job.verdict(bound - before * (UNSEEN_BYTES + 1)) == (below if before > 0 else above)
