"""Runs that were attached by themselves and have ended: the latest stay on the board."""

from typing import Any

import pytest
from builders import make_budget, make_gpu, make_process, make_snapshot
from waiting import until

from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.monitor.attach.automatic.automatic_attach import MAX_ENDED_RUNS, AutomaticAttach
from vramtop.monitor.attach.automatic.worker_client import RunAnswer
from vramtop.monitor.board.watchlist import Watchlist

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
