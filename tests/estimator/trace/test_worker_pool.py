"""Workers that are kept between requests: which requests share one, and when it ends."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from vramtop.estimator.common.cancellation import CancelToken
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.trace.installed_packages import Interpreter
from vramtop.estimator.trace.interpreters import choose_interpreter
from vramtop.estimator.trace.worker_pool import POOL, WorkerPool, resident_bytes
from vramtop.estimator.trace.worker_process import Worker

PACKAGES = {"op": "packages", "distributions": ["msgspec"]}


class LoggedPython:
    """This Python behind a script that notes the process of every start."""

    def __init__(self, folder: Path) -> None:
        self._log, program = folder / "starts", folder / "python"
        self._log.touch()
        program.write_text(f'#!/bin/sh\necho $$ >> "{self._log}"\nexec "{sys.executable}" "$@"\n')
        program.chmod(0o755)
        self.interpreter = Interpreter(path=program, torch="2.13", transformers="5")

    @property
    def pids(self) -> list[int]:
        return [int(line) for line in self._log.read_text().split()]


@pytest.fixture
def python(tmp_path: Path) -> LoggedPython:
    return LoggedPython(tmp_path)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool()
    pool.max_idle_seconds = 600
    yield pool
    pool.close()


def has_ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_by_default_each_request_has_a_worker_that_ends_with_its_answer(python: LoggedPython) -> None:
    for _ in range(2):
        assert "msgspec" in WorkerPool().request(python.interpreter, PACKAGES, 30)["versions"]
    assert len(set(python.pids)) == 2
    assert all(has_ended(pid) for pid in python.pids)


def test_the_worker_that_tells_versions_answers_the_next_request(python: LoggedPython) -> None:
    chosen = choose_interpreter(str(python.interpreter.path), {})
    assert "msgspec" in POOL.request(chosen, PACKAGES, 30)["versions"]
    (pid,) = python.pids
    POOL.close()
    assert has_ended(pid)


def test_requests_share_a_worker_until_the_pool_is_closed(python: LoggedPython, pool: WorkerPool) -> None:
    answers = [pool.request(python.interpreter, PACKAGES, 30) for _ in range(3)]
    assert [answer["versions"] for answer in answers] == [answers[0]["versions"]] * 3
    (pid,) = python.pids
    assert not has_ended(pid)
    pool.close()
    assert has_ended(pid)


def test_a_request_with_user_code_has_its_own_worker(python: LoggedPython, pool: WorkerPool) -> None:
    pool.request(python.interpreter, PACKAGES, 30)
    pool.request(python.interpreter, {**PACKAGES, "code": {"folder": "/"}}, 30)
    kept, own = python.pids
    assert has_ended(own)
    assert not has_ended(kept)


def test_another_interpreter_displaces_the_idle_worker(python: LoggedPython, pool: WorkerPool) -> None:
    newer = Interpreter(path=python.interpreter.path, torch="2.14", transformers="5")
    pool.request(python.interpreter, PACKAGES, 30)
    pool.request(newer, PACKAGES, 30)
    assert [has_ended(pid) for pid in python.pids] == [True, False]


def test_an_idle_worker_ends_after_a_while(python: LoggedPython, pool: WorkerPool) -> None:
    pool.max_idle_seconds = 0.01
    pool.request(python.interpreter, PACKAGES, 30)
    until(lambda: has_ended(python.pids[0]))


def test_a_worker_that_refused_a_request_answers_the_next(python: LoggedPython, pool: WorkerPool) -> None:
    with pytest.raises(CannotTellError, match="dance"):
        pool.request(python.interpreter, {"op": "dance"}, 30)
    pool.request(python.interpreter, PACKAGES, 30)
    assert len(python.pids) == 1


def test_a_worker_that_died_while_idle_is_replaced(python: LoggedPython, pool: WorkerPool) -> None:
    pool.request(python.interpreter, PACKAGES, 30)
    os.kill(python.pids[0], 9)
    until(lambda: Path(f"/proc/{python.pids[0]}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert "msgspec" in pool.request(python.interpreter, PACKAGES, 30)["versions"]
    assert len(python.pids) == 2


def test_a_cancelled_worker_is_not_kept(python, pool, monkeypatch) -> None:
    token = CancelToken()

    def answer_and_cancel(_worker: Worker, *_: Any) -> dict[str, Any]:
        until(lambda: python.pids)
        token.cancel()
        return {}

    monkeypatch.setattr(Worker, "request", answer_and_cancel)
    with token.scope():
        pool.request(python.interpreter, PACKAGES, 30)
    monkeypatch.undo()
    pool.request(python.interpreter, PACKAGES, 30)
    assert [has_ended(pid) for pid in python.pids] == [True, False]


def test_a_worker_that_has_grown_large_is_not_kept(python, pool, monkeypatch) -> None:
    monkeypatch.setattr("vramtop.estimator.trace.worker_pool.MAX_IDLE_BYTES", 0)
    for _ in range(2):
        pool.request(python.interpreter, PACKAGES, 30)
    assert len(set(python.pids)) == 2
    assert all(has_ended(pid) for pid in python.pids)


def test_a_worker_is_replaced_after_many_requests(python, pool, monkeypatch) -> None:
    monkeypatch.setattr("vramtop.estimator.trace.worker_pool.MAX_REQUESTS", 2)
    for _ in range(3):
        pool.request(python.interpreter, PACKAGES, 30)
    assert len(set(python.pids)) == 2


def test_the_memory_of_a_process_is_known() -> None:
    assert (resident_bytes(os.getpid()) or 0) > 1 << 20
    assert resident_bytes(2**31 - 1) is None
