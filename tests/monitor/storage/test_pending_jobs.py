import stat
import threading
from pathlib import Path

import pytest
from builders import make_board, make_budget, make_gpu, make_snapshot, make_watchlist

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job, Lora, ModelSpec, Parallel
from vramtop.monitor.storage.pending_jobs import PendingJobs

JOBS = tuple(
    Job(name=name, model=ModelSpec(id="gpt2"), lora=lora, parallel=Parallel(strategy="ddp", data_replicate=2))
    for name, lora in (("first", None), ("second", Lora(targets=["q_proj"])), ("third", Lora()))
)


@pytest.fixture
def kept(tmp_path: Path) -> PendingJobs:
    return PendingJobs(tmp_path / "vramtop" / "pending.json")


def wait_until_written() -> None:
    for thread in threading.enumerate():
        if thread.name == "save pending jobs":
            thread.join(10)


def test_pending_jobs_are_kept_in_their_order(kept: PendingJobs) -> None:
    for job in (*JOBS, JOBS[0]):
        kept.add(job)
        wait_until_written()
    assert PendingJobs(kept.path).load() == JOBS
    kept.remove(JOBS[1])
    wait_until_written()
    assert PendingJobs(kept.path).load() == (JOBS[0], JOBS[2])
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600


def test_unreadable_entries_are_reported_and_kept(kept: PendingJobs) -> None:
    said: list[str] = []
    kept.notify = said.append
    assert kept.path is not None
    kept.add(JOBS[0])
    wait_until_written()
    text = kept.path.read_text().replace('"content": [', '"content": [{"training": {"macro_batch": 3}}, ')
    kept.path.write_text(text)
    assert kept.load() == (JOBS[0],)
    assert "macro_batch" in said[0]
    kept.remove(JOBS[0])
    wait_until_written()
    assert "macro_batch" in kept.path.read_text()
    kept.path.write_text("{")
    assert kept.load() == ()
    assert "is damaged" in said[-1]
    kept.add(JOBS[2])
    wait_until_written()
    assert "It was kept as pending.json.damaged-" in said[-1]
    assert kept.load() == (JOBS[2],)


def test_a_watchlist_reports_added_and_removed_pending_jobs() -> None:
    told: list[tuple[str, str | None]] = []
    watchlist = make_watchlist(
        pending=[JOBS[0], JOBS[0]],
        on_pending_added=lambda job: told.append(("pend", job.name)),
        on_pending_removed=lambda job: told.append(("unpend", job.name)),
    )
    watchlist.remove_pending(JOBS[1])
    watchlist.remove_pending(JOBS[0])
    assert told == [("pend", "first"), ("unpend", "first")]


def test_reserved_memory_is_not_available_to_pending_jobs() -> None:
    board = make_board([make_gpu(0)], pending=["waits"], reserved_bytes=lambda _: {0: 50 * GIB})
    row = board.pending[0]
    assert row.fit.verdict == "does_not_fit"
    assert row.fit.gpus[0].device.committed_bytes == board.committed[0] == 50 * GIB


def test_a_pending_jobs_fit_changes_after_several_equal_readings() -> None:
    watchlist = make_watchlist(pending=[JOBS[0]])
    pair = [70, 70, 10, 70, 10, 10, 10, 10, 70, 70, 70]
    turned = []
    for second, free in enumerate(pair):
        gpus = [make_gpu(n, free_bytes=free * GIB) for n in (0, 1)]
        row = watchlist.update(make_snapshot(gpus, time=2_000.0 + second)).pending[0]
        turned.append((row.fits, row.fits_changed_at))
    assert turned[:6] == [(True, None)] * 6  # one or two bad readings change nothing
    assert turned[6:10] == [(False, 2_006.0)] * 4
    assert turned[10] == (True, 2_010.0)
    watchlist.remove_pending(JOBS[0])
    watchlist.update(make_snapshot([make_gpu(0, free_bytes=10 * GIB)]))
    watchlist.add_pending(JOBS[0])
    row = watchlist.update(make_snapshot([make_gpu(0, free_bytes=10 * GIB)])).pending[0]
    assert (row.fits, row.fits_changed_at) == (False, None)  # known again


def test_a_pending_job_must_also_fit_the_host() -> None:
    need = estimate(Job(model=ModelSpec(id="gpt2"))).host
    assert need is not None

    def verdict(available: int | None) -> str:
        options = {"estimate": lambda job: replace(make_budget(job), host=need), "host_memory": lambda _: available}
        return make_board([make_gpu(0)], pending=["waits"], **options).pending[0].fit.verdict

    assert [verdict(size) for size in (None, 64 * GIB, GIB // 2)] == ["fits", "fits", "does_not_fit"]
