"""What rests on guesses is never OVER, UNDER or on budget."""

from typing import Any

import pytest
from builders import make_board, make_gpu, make_process, make_run, make_snapshot, make_watchlist

from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.estimator.job.settings import Uncertainties


def status_of(used: float, *, missing: tuple[str, ...] = (), unsure: Uncertainties | None = None) -> Any:
    job = Job(name="job", model=ModelSpec(id="gpt2"), unsure=unsure or Uncertainties())
    run = make_run(job, 4711, missing=missing)
    board = make_board([make_gpu(0, [make_process(used=used)])], run)
    assert board.run_of(run.pids[0]).missing == missing
    return board.processes[0]


@pytest.mark.parametrize("used", [5, 20, 40, 75])
def test_a_run_with_missing_settings_is_incomplete_whatever_it_holds(used: float) -> None:
    row = status_of(used, missing=("training.micro_batch", "training.sequence_length"))
    assert row.comparison.status == "incomplete"
    assert "; missing: micro-batch, sequence length" in row.comparison.sentence
    assert row.comparison.difference_bytes is None
    assert not row.comparison.diverges
    assert row.has_guessed_budget


def test_a_fast_leak_is_told_before_the_gpu_is_full_although_settings_are_missing() -> None:
    watchlist = make_watchlist(make_run("job", 4711, missing=("training.sequence_length",)))
    sizes = [20.0] * 20 + [20.0 + 3 * second for second in range(1, 19)] + [74.0] * 250
    rows = []
    for second, used in enumerate(sizes):
        reading = make_gpu(0, [make_process(used=used)])
        rows += watchlist.update(make_snapshot([reading], time=2_000.0 + second)).processes
    statuses = [row.comparison.status for row in rows]
    assert list(dict.fromkeys(statuses)) == ["incomplete", "growing"]
    assert statuses.index("growing") < 35
    assert statuses[-1] == "incomplete"  # it has been steady for minutes
    full = rows[37]
    assert full.comparison.sentence.startswith("GPU full in about 1 s: has grown by 180.0 GiB per minute since ")
    assert full.comparison.difference_bytes is None
    assert (full.comparison.is_guess, full.comparison.diverges) == (True, True)


@pytest.mark.parametrize(
    ("direction", "status"), [("no", "over"), ("less", "over"), ("more", "incomplete"), ("either", "incomplete")]
)
def test_what_a_doubt_may_explain_is_not_over(direction: Any, status: str) -> None:
    row = status_of(75, unsure=Uncertainties(optimizer=direction))
    assert row.comparison.status == status
    assert not row.has_guessed_budget
    assert status == "over" or "does not understand the settings that decide its optimizer" in row.comparison.sentence


def test_a_doubt_alone_leaves_a_run_on_budget() -> None:
    assert status_of(40, unsure=Uncertainties(optimizer="either")).comparison.status == "on_budget"
