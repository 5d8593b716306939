"""Readings before the app exists, and the app's subscription."""

import queue
import threading

import pytest
from builders import make_snapshot
from waiting import DEADLINE_SECONDS

from vramtop.monitor.sources.sampler import EarlySampler


class ScriptedSource:
    """A source whose answers the test supplies one by one; an exception is raised by ``open``."""

    def __init__(self):
        self.answers = queue.Queue()
        self.asked = threading.Semaphore(0)

    def open(self):
        self.asked.release()
        answer = self.answers.get(timeout=DEADLINE_SECONDS)
        if isinstance(answer, Exception):
            raise answer

    def read(self):
        self.asked.release()
        return self.answers.get(timeout=DEADLINE_SECONDS)

    def close(self):
        self.asked.release()

    def until_asked(self, times):
        for _ in range(times):
            assert self.asked.acquire(timeout=DEADLINE_SECONDS)


def judged(snapshot):
    return "board of", snapshot


@pytest.fixture
def begin():
    started = []

    def start(judge=judged):
        source = ScriptedSource()
        started.append((EarlySampler(source, 0.05, judge), source))
        return started[-1]

    yield start
    for head_start, source in started:
        source.answers.put(None)
        head_start.sampler.stop(DEADLINE_SECONDS)


def test_the_latest_result_is_kept_for_the_subscriber(begin):
    head_start, source = begin()
    early = [make_snapshot([], time=float(at)) for at in (1, 2)]
    for answer in (None, *early):  # one open, then two reads
        source.answers.put(answer)
    source.until_asked(4)
    taken = queue.Queue()
    assert head_start.subscribe(taken.put, taken.put) == ("board of", early[1])
    later = make_snapshot([], time=3.0)
    source.answers.put(later)
    assert taken.get(timeout=DEADLINE_SECONDS) is later


def test_there_is_no_result_while_the_driver_hangs(begin):
    head_start, source = begin()
    source.until_asked(1)
    taken = queue.Queue()
    assert head_start.subscribe(taken.put, taken.put) is None
    source.answers.put(None)
    first = make_snapshot([])
    source.answers.put(first)
    assert taken.get(timeout=DEADLINE_SECONDS) is first


def test_subscribing_does_not_wait_for_an_estimate(begin):
    """The subscriber gets the snapshot that was being evaluated."""
    begun, go_on = threading.Event(), threading.Event()

    def slowly(snapshot):
        begun.set()
        assert go_on.wait(DEADLINE_SECONDS)
        return judged(snapshot)

    head_start, source = begin(slowly)
    first = make_snapshot([])
    for answer in (None, first):
        source.answers.put(answer)
    assert begun.wait(DEADLINE_SECONDS)
    taken = queue.Queue()
    assert head_start.subscribe(taken.put, taken.put) is None
    go_on.set()
    assert taken.get(timeout=DEADLINE_SECONDS) is first
