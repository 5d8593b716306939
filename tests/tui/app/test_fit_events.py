from builders import ScriptedSource, make_budget, make_gpu, make_snapshot
from waiting import until_shown

from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import Training
from vramtop.monitor.board.board import PendingRow
from vramtop.monitor.board.capacity import DeviceCapacity
from vramtop.monitor.board.fit import check_fit
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.options import AppOptions
from vramtop.tui.screens.dashboard.pending_list import pending_line

JOB = Job(name="sft; rm")


def row(fits: bool, turned_at: float | None) -> PendingRow:
    room = DeviceCapacity(index=3, uuid="GPU-3", name="card", total_bytes=80 * GIB, free_bytes=70 * GIB)
    budget = make_budget(JOB)
    return PendingRow(job=JOB, budget=budget, fit=check_fit(budget, [room]), fits=fits, fits_changed_at=turned_at)


async def test_each_change_of_fit_is_told_once() -> None:
    free = [1, *[70] * 6, *[1] * 6]
    other = Job(name=JOB.name, training=Training(micro_batch=2))  # of the same name
    looks = [
        make_snapshot([make_gpu(0, free_bytes=each * GIB), make_gpu(1, free_bytes=each * GIB)], time=2_000.0 + at)
        for at, each in enumerate(free)
    ]
    watchlist = Watchlist(make_budget)
    for job in (JOB, other):
        watchlist.add_pending(job)
    app = VramtopApp(ScriptedSource(looks), watchlist, AppOptions(interval=0.05))
    async with app.run_test(size=(100, 30)) as pilot:
        said = 2 * ["sft; rm fits now"] + 2 * ["sft; rm no longer fits"]
        await until_shown(pilot, lambda: len(app._notifications) >= len(said))
        await pilot.pause(0.2)  # more readings
        assert [note.message for note in app._notifications] == said


def test_a_program_that_is_not_rehearsed_has_the_keys_that_ask_to_run_it() -> None:
    row = PendingRow(job=JOB, problem="not rehearsed: vramtop rehearse job.toml runs the program without a GPU")
    assert pending_line(row, 90, now=0.0).plain.rstrip().endswith("not rehearsed: press f, then Ctrl+R to run it")
    assert "vramtop rehearse job.toml" in pending_line(row, 90, now=0.0, asks=False).plain


def test_a_job_whose_fit_changed_recently_is_highlighted() -> None:
    assert pending_line(row(True, 100.0), 60, now=110.0).plain.startswith(" NOW  sft; rm  ✓ FITS")
    assert pending_line(row(False, 100.0), 60, now=110.0).plain.startswith(" NOW  sft; rm")
    assert pending_line(row(True, 100.0), 60, now=170.0).plain.startswith("pending sft; rm")
    assert pending_line(row(True, None), 60, now=170.0).plain.startswith("pending sft; rm")
