from collections.abc import Callable

import pytest

from vramtop.estimator.budget import Budget
from vramtop.estimator.sizes import GIB
from vramtop.monitor.compare import compare


def readings(*sizes: float | None, every: float = 1.0) -> list[tuple[float, int | None]]:
    return [(1_000 + every * n, None if size is None else round(size * GIB)) for n, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("held", "status"),
    [(5, "loading"), (20, "warming_up"), (39, "on_budget"), (42, "on_budget"), (46, "over")],
)
def test_status_by_what_is_held_now(make_budget: Callable[..., Budget], held: float, status: str) -> None:
    budget = make_budget(device=37.65, low=38, high=44)  # loading ends at 4/16 of 37.65 GiB
    assert compare(budget, readings(1, held)).status == status


def test_a_job_that_stays_small_is_under_only_after_a_while(make_budget: Callable[..., Budget]) -> None:
    budget = make_budget(low=38, high=44)
    assert compare(budget, readings(*[20.0] * 60)).status == "warming_up"
    assert compare(budget, readings(*[20.0] * 250)).status == "under"
    assert compare(budget, readings(*[20.0] * 15), elapsed_seconds=7_200).status == "warming_up"
    assert compare(budget, readings(*[20.0] * 70), elapsed_seconds=7_200).status == "under"
    growing = [10 + n * 0.5 for n in range(40)]
    assert compare(budget, readings(*growing, every=10), elapsed_seconds=400).status == "warming_up"


def test_reading_data_and_slow_loading_are_loading_for_an_hour(make_budget: Callable[..., Budget]) -> None:
    budget = make_budget(device=37.65, low=38, high=44)
    for minutes, status in ((10, "loading"), (50, "loading"), (61, "under")):
        held = readings(*[0.5] * 600)
        assert compare(budget, held, elapsed_seconds=minutes * 60).status == status
    slow = [0.5 + n * 7 / 1200 for n in range(1200)]  # 7 GiB in 20 minutes
    assert compare(budget, readings(*slow), elapsed_seconds=1_200).status == "loading"


def test_memory_that_moves_either_way_is_not_settled(make_budget: Callable[..., Budget]) -> None:
    budget = make_budget(device=37.65, low=38, high=44)
    held = [30.0] + [16 + n * 0.01 for n in range(600)]  # dropped after loading, and grows back slowly
    assert compare(budget, readings(*held), elapsed_seconds=1_500).status == "warming_up"


def test_a_job_that_once_held_its_budget_stays_on_budget(make_budget: Callable[..., Budget]) -> None:
    budget = make_budget(device=37.65, low=38, high=44)
    dropped = compare(budget, readings(*[40.0] * 5, *[12.0] * 590), elapsed_seconds=4_000)
    assert dropped.status == "on_budget"
    assert "holds less at the moment" in dropped.sentence
    forgotten = readings(*[12.0] * 600)
    assert compare(budget, forgotten, elapsed_seconds=4_000).status == "under"
    remembered = compare(budget, forgotten, elapsed_seconds=4_000, peak_bytes=40 * GIB)
    assert (remembered.status, remembered.peak_bytes) == ("on_budget", 40 * GIB)


def test_unknown_memory_is_unknown_and_never_zero(make_budget: Callable[..., Budget]) -> None:
    found = compare(make_budget(), readings(40, None))
    assert (found.status, found.observed_bytes, found.difference_bytes) == ("unknown", None, None)
    assert found.peak_bytes == 40 * GIB
    assert compare(make_budget(), []).status == "unknown"


def test_the_difference_is_to_what_is_expected(make_budget: Callable[..., Budget]) -> None:
    budget = make_budget()
    found = compare(budget, readings(60, 50))
    assert found.difference_bytes == 50 * GIB - budget.steady_device_bytes
    assert found.peak_bytes == 60 * GIB
    assert found.diverges
    assert "more than the budget's upper bound" in found.sentence


def test_a_process_that_says_its_steps_needs_no_waiting(make_budget: Callable[..., Budget]) -> None:
    budget = make_budget(low=38, high=44)
    held = readings(20, 20)
    assert compare(budget, held, steps=1).status == "warming_up"
    assert compare(budget, held, steps=2).status == "under"
    assert compare(budget, readings(*[20.0] * 250), steps=0).status == "warming_up"


def test_growth_in_the_steady_phase_is_told_with_the_time_it_leaves(make_budget: Callable[..., Budget]) -> None:
    budget = make_budget(device=40, low=38, high=50)
    sawtooth = [40 + n * 0.01 + (n % 5) * 0.2 for n in range(300)]
    found = compare(budget, readings(*sawtooth), left_bytes=6 * GIB)
    assert (found.status, found.diverges) == ("growing", True)
    assert found.trend is not None
    assert found.trend.bytes_per_second == pytest.approx(0.01 * GIB, rel=0.05)
    assert "grows by 0.6 GiB a minute" in found.sentence
    assert "full in about 10 minutes (almost certain)" in found.sentence


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
def test_what_is_no_growth(make_budget: Callable[..., Budget], held: list[float]) -> None:
    assert compare(make_budget(device=40, low=38, high=50), readings(*held)).status == "on_budget"


def test_a_job_over_its_budget_comes_back_only_when_it_is_clearly_below(make_budget: Callable[..., Budget]) -> None:
    budget = make_budget(device=40, low=38, high=44)
    assert compare(budget, readings(43.9), previous="over").status == "over"
    assert compare(budget, readings(43.9), previous="on_budget").status == "on_budget"
    assert compare(budget, readings(43.0), previous="over").status == "on_budget"
