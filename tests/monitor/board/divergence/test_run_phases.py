from collections.abc import Sequence

from builders import make_budget

from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.board.run_phases import PhaseTracker
from vramtop.monitor.snapshot.snapshot import ProcessCounters


def follow(tracker: PhaseTracker, sizes: Sequence[float | None], *, begin: float = 1_000.0) -> PhaseTracker:
    for second, size in enumerate(sizes):
        tracker.add(begin + second, None if size is None else round(size * GIB))
    return tracker


def marks_of(tracker: PhaseTracker) -> list[tuple[str, float]]:
    return [(mark.phase, mark.time) for mark in tracker.phase_starts]


def test_a_run_from_its_start_goes_through_all_phases() -> None:
    budget = make_budget(device=40)  # 2.5 GiB of context, 10 with the weights, 42.5 at the peak
    curve = [2.6] * 5 + [2.6 + n for n in range(1, 8)] + [10.0] * 4 + [20.0, 38.0, 42.0] + [42.0] * 40
    tracker = follow(PhaseTracker(budget, start_time=990.0, from_start=True), curve)
    assert marks_of(tracker) == [
        ("started", 990.0),
        ("context", 1000.0),
        ("loading", 1006.0),
        ("warming_up", 1011.0),
        ("steady", 1018.0),  # the time of the last rise of the peak, not of its detection
    ]


def test_phases_that_were_not_observed_have_no_start() -> None:
    late = follow(PhaseTracker(make_budget(device=40), start_time=100.0), [41.0] * 60)
    assert (late.phase, marks_of(late)) == ("steady", [("started", 100.0), ("steady", 1000.0)])
    hidden = follow(PhaseTracker(make_budget(device=40)), [10.0] * 3)
    assert (hidden.phase, hidden.phase_starts) == ("warming_up", ())
    nothing = follow(PhaseTracker(make_budget(device=40)), [None, None])
    assert (nothing.phase, nothing.peak_bytes) == (None, None)


def test_falling_memory_does_not_return_to_an_earlier_phase() -> None:
    tracker = follow(PhaseTracker(make_budget(device=40)), [41.0] * 40 + [12.0] * 500 + [3.0] * 100)
    assert tracker.phase == "steady"
    assert tracker.peak_bytes == 41 * GIB


def test_a_job_that_resumes_loading_after_a_long_pause_is_not_steady() -> None:
    budget = make_budget(device=40)
    tracker = follow(PhaseTracker(budget, start_time=0.0, from_start=True), [15.0] * 70)
    tracker = follow(PhaseTracker(budget, start_time=-7_200.0, from_start=True), [15.0] * 70)
    assert tracker.phase == "steady"
    follow(tracker, [20.0], begin=1_070.0)
    assert tracker.phase == "warming_up"
    assert "steady" not in [mark.phase for mark in tracker.phase_starts]


def test_reported_steps_take_precedence_over_the_memory_curve() -> None:
    tracker = PhaseTracker(make_budget(device=40), start_time=990.0, from_start=True)
    phases = []
    for second, steps in enumerate([0] * 400 + [1] * 3 + [2]):
        counters = ProcessCounters(time=1_000.0 + second, steps=steps)
        tracker.add(1_000.0 + second, 20 * GIB, counters)
        phases.append(tracker.phase)
    assert set(phases[:403]) == {"warming_up"}  # by its memory alone it would be steady after 240 s
    assert phases[403] == "steady"
    assert tracker.phase_starts[-1].time == 1_403.0
    unknown = follow(PhaseTracker(make_budget(device=40)), [3.0])
    unknown.add(1_001.0, None, ProcessCounters(time=1_001.0, steps=7))
    assert unknown.phase == "steady"
