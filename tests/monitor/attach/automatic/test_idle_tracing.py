"""Budgets are replaced by traced ones while the machine is idle, and only where that runs nothing unsafe."""

from pathlib import Path
from typing import Any

import pytest
from builders import make_budget, make_gpu, make_process, make_run, make_snapshot
from waiting import until

from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.monitor.attach.automatic.automatic_attach import MAX_ENDED_RUNS, AutomaticAttach
from vramtop.monitor.attach.automatic.idle_tracing import IdleTracing, machine_is_idle
from vramtop.monitor.attach.automatic.run_answer import RunAnswer
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.snapshot.snapshot import WatchedJob

SAFE = "/opt/env/bin/python"


class Attached:
    """As much of an attachment as tracing needs."""

    def __init__(self, worker_python: str | None = SAFE) -> None:
        self.worker_python = worker_python
        self.estimate_environ: dict[str, str] = {}
        self.versions: dict[str, str] = {}


@pytest.fixture
def budgets() -> dict[str, Any]:
    """The quick estimates by the names of their jobs."""
    return {}


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch, budgets: dict[str, Any]) -> list[Any]:
    """Requests to the worker, which answers with the quick estimate as if it were traced."""
    requests: list[Any] = []

    class Client:
        def read(self, request: Any) -> RunAnswer:
            requests.append(request)
            return RunAnswer(budget=replace(budgets[request.job.name], method="traced"))

        def close(self) -> None:
            pass

    monkeypatch.setattr("vramtop.monitor.attach.automatic.worker_client.WorkerClient", Client)
    return requests


@pytest.fixture
def watchlist(budgets: dict[str, Any]) -> Watchlist:
    def estimate(job: Job) -> Any:
        return budgets.setdefault(job.name or "", make_budget(job))

    return Watchlist(estimate=estimate)


def run_of(watchlist: Watchlist, name: str, pid: int, **model: Any) -> WatchedJob:
    run = make_run(Job(name=name, model=ModelSpec(id="gpt2", **model)), pid)
    watchlist.add_run(run)
    return run


@pytest.fixture
def board(watchlist: Watchlist) -> Any:
    def make() -> Any:
        return watchlist.update(make_snapshot([make_gpu(0, [make_process(1, 40), make_process(2, 70)])]))

    return make


def test_what_diverges_is_traced_first_and_one_at_a_time(traced, watchlist, board, clock) -> None:
    tracing = IdleTracing(watchlist, is_idle=lambda: True, clock=clock)
    for name, pid in (("small", 1), ("over", 2)):
        tracing.add(run_of(watchlist, name, pid), Attached(), "NVIDIA H100 80GB HBM3", 80 * 2**30)  # type: ignore[arg-type]
    tracing.observe(board())
    tracing.observe(board())
    until(lambda: board().runs[1].budget.method == "traced")
    assert [request.job.name for request in traced] == ["over"]
    clock.advance(60)
    until(lambda: not tracing._running)
    tracing.observe(board())
    until(lambda: board().runs[0].budget.method == "traced")
    assert [request.job.name for request in traced] == ["over", "small"]


def test_nothing_is_traced_on_a_busy_machine_or_for_a_run_that_is_gone(traced, watchlist, board) -> None:
    busy = IdleTracing(watchlist, is_idle=lambda: False)
    busy.add(run_of(watchlist, "run", 1), Attached(), "NVIDIA H100 80GB HBM3", 80 * 2**30)  # type: ignore[arg-type]
    busy.observe(board())
    gone = IdleTracing(watchlist, is_idle=lambda: True)
    gone.add(run_of(watchlist, "run", 1), Attached(), "NVIDIA H100 80GB HBM3", 80 * 2**30)  # type: ignore[arg-type]
    watchlist.dismiss_runs([(1, 1_000.0)])
    gone.observe(board())
    assert not any((busy._running, gone._running))
    assert not traced


@pytest.mark.parametrize(("python", "model"), [(None, {}), (SAFE, {"trust_remote_code": True})])
def test_no_code_of_others_is_run(traced, watchlist, board, python: str | None, model: Any) -> None:
    tracing = IdleTracing(watchlist, is_idle=lambda: True)
    tracing.add(run_of(watchlist, "run", 1, **model), Attached(python), "NVIDIA H100 80GB HBM3", 80 * 2**30)  # type: ignore[arg-type]
    tracing.observe(board())
    assert not tracing._running
    assert not traced


@pytest.mark.parametrize(("line", "idle"), [("some avg10=1.28 avg60=2", True), ("some avg10=40.00 avg60=2", False)])
def test_a_machine_is_idle_when_nothing_waits_for_a_processor(tmp_path: Path, line: str, idle: bool) -> None:
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "cpu").write_text(f"{line}\nfull avg10=0.00\n")
    assert machine_is_idle(1, tmp_path) == idle
    assert not machine_is_idle(2**60, tmp_path)


RUNS = MAX_ENDED_RUNS + 14


class Rank:
    def __init__(self, pid: int) -> None:
        self.pid, self.start_time = pid, 1_000.0


class Read:
    """As much of an attachment as following it needs."""

    def __init__(self, pid: int) -> None:
        self.ranks = (Rank(pid),)


@pytest.fixture
def attach(monkeypatch: pytest.MonkeyPatch) -> AutomaticAttach:
    class Client:
        def read(self, request: Any) -> RunAnswer:
            job = Job(name=f"job {request.pid}", model=ModelSpec(id="gpt2"))
            read: Any = Read(request.pid)
            return RunAnswer(attachment=read, job=job, budget=make_budget(job))

        def close(self) -> None:
            pass

    monkeypatch.setattr("vramtop.monitor.attach.automatic.worker_client.WorkerClient", Client)
    watchlist = Watchlist(estimate=make_budget, is_running=lambda _: False)
    attach = AutomaticAttach(watchlist)
    attach.start()
    return attach


def test_the_latest_of_many_ended_runs_stay(attach) -> None:
    def show(time: float, *processes: Any) -> Any:
        board = attach._watchlist.update(make_snapshot([make_gpu(0, processes)], time=time))
        attach.observe(board)
        until(attach.finished.is_set)
        return board

    for at in range(RUNS):
        show(2_000.0 + at, make_process(at + 1, 1))
    show(2_100.0)
    board = show(2_101.0)
    assert len(board.runs) == MAX_ENDED_RUNS
    assert {run.job.name for run in board.runs} == {f"job {at + 1}" for at in range(RUNS - MAX_ENDED_RUNS, RUNS)}
    assert len(attach.known) == MAX_ENDED_RUNS
