import threading

import pytest

from vramtop.estimator.common.cancellation import current_token
from vramtop.estimator.common.errors import CancelledError, CannotTellError
from vramtop.tui.background.latest_only_task import LatestOnlyTask


@pytest.fixture
def newest() -> LatestOnlyTask:
    return LatestOnlyTask("test")


def test_a_task_runs_on_another_thread(newest):
    done = threading.Event()
    ran_on: list[threading.Thread] = []

    def task() -> None:
        ran_on.append(threading.current_thread())
        done.set()

    newest.submit(task)
    assert done.wait(5)
    assert ran_on != [threading.current_thread()]
    assert ran_on[0].daemon


def test_of_those_that_wait_only_the_newest_runs(newest):
    begun, go, done = threading.Event(), threading.Event(), threading.Event()
    ran: list[str] = []

    def slow() -> None:
        begun.set()
        go.wait(5)
        ran.append("slow")

    def last() -> None:
        ran.append("last")
        done.set()

    newest.submit(slow)
    assert begun.wait(5)
    newest.submit(lambda: ran.append("replaced"))
    newest.submit(last)
    go.set()
    assert done.wait(5)
    assert ran == ["slow", "last"]


def test_what_waits_can_be_forgotten(newest):
    begun, go, done = threading.Event(), threading.Event(), threading.Event()
    ran: list[str] = []

    def slow() -> None:
        begun.set()
        go.wait(5)

    newest.submit(slow)
    assert begun.wait(5)
    newest.submit(lambda: ran.append("forgotten"))
    newest.interrupt()
    go.set()
    newest.submit(done.set)
    assert done.wait(5)
    assert ran == []


def test_a_task_with_a_bug_does_not_stop_the_next_one(newest, monkeypatch):
    bugs: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda failure: bugs.append(failure.exc_type))
    begun, go, done = threading.Event(), threading.Event(), threading.Event()

    def bug() -> None:
        begun.set()
        go.wait(5)
        raise ZeroDivisionError

    newest.submit(bug)
    assert begun.wait(5)
    newest.submit(done.set)
    go.set()
    assert done.wait(5)
    assert bugs == [ZeroDivisionError]


def test_what_runs_can_be_given_up_and_the_next_task_begins_at_once(newest):
    begun, stopped, done = threading.Event(), threading.Event(), threading.Event()
    raised: list[BaseException] = []

    def slow() -> None:
        try:
            with current_token().on_cancel(stopped.set):
                begun.set()
                stopped.wait(20)
                raise CannotTellError("the worker ended")
        except CancelledError as error:
            raised.append(error)
            raise

    newest.submit(slow)
    assert begun.wait(5)
    newest.submit(lambda: raised.append(AssertionError("was to be dropped")))
    newest.interrupt()
    newest.submit(done.set)
    assert done.wait(5)
    assert [type(error) for error in raised] == [CancelledError]


def test_interrupting_leaves_what_comes_later_alone(newest):
    done = threading.Event()
    newest.interrupt()
    newest.submit(lambda: None if current_token().cancelled else done.set())
    assert done.wait(5)
