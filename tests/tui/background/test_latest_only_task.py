import threading
from collections.abc import Callable
from typing import Any

import pytest
from waiting import until

from vramtop.estimator.common.cancellation import current_token
from vramtop.estimator.common.errors import CancelledError, CannotTellError
from vramtop.tui.background.latest_only_task import LatestOnlyTask

_SECONDS = 60


class UiThread:
    """A stand-in for a widget that stores calls until the test runs them."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []
        self.shown: list[object] = []

    def call_later(self, callback: Callable[..., object], *args: Any) -> None:
        self.calls.append(lambda: callback(*args))

    def run(self) -> list[object]:
        """Run the stored calls; return everything shown so far."""
        while self.calls:
            self.calls.pop(0)()
        return self.shown


class Gate:
    """A request that blocks until the test opens the gate."""

    def __init__(self, result: str) -> None:
        self.started, self.open = threading.Event(), threading.Event()
        self.result = result

    def __call__(self) -> str:
        self.started.set()
        assert self.open.wait(_SECONDS)
        return self.result


@pytest.fixture
def ui() -> UiThread:
    return UiThread()


@pytest.fixture
def task(ui: UiThread) -> LatestOnlyTask[str]:
    return LatestOnlyTask("test", ui.call_later, ui.shown.append, lambda sentence: ui.shown.append(f"✗ {sentence}"))


def test_only_the_latest_request_runs_and_earlier_results_are_discarded(ui, task) -> None:
    first, ran = Gate("first"), []
    task.submit(first)
    assert first.started.wait(_SECONDS)
    task.submit(lambda: str(ran.append("replaced")))
    task.submit(lambda: "last")
    first.open.set()
    until(lambda: ui.calls)
    assert ui.run() == ["last"]
    assert ran == []


def test_a_bug_goes_to_the_excepthook_and_the_next_request_runs(ui, task, monkeypatch) -> None:
    bugs: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda failure: bugs.append(failure.exc_type))
    task.submit(lambda: str(1 / 0))
    until(lambda: bugs)
    task.submit(lambda: "next")
    until(lambda: ui.calls)
    assert ui.run() == ["next"]
    assert bugs == [ZeroDivisionError]


def test_a_request_ends_the_work_of_the_one_before(ui: UiThread, task: LatestOnlyTask[str]) -> None:
    started, stopped = threading.Event(), threading.Event()
    raised: list[BaseException] = []

    def slow() -> str:
        try:
            with current_token().on_cancel(stopped.set):
                started.set()
                assert stopped.wait(_SECONDS)
                raise CannotTellError("the worker ended")
        except CancelledError as error:
            raised.append(error)
            raise

    task.submit(slow)
    assert started.wait(_SECONDS)
    task.submit(lambda: "next")
    until(lambda: ui.calls)
    assert ui.run() == ["next"]
    assert [type(error) for error in raised] == [CancelledError]
