"""The sampling thread: pace, pause, failures, and stopping while the source hangs."""

import queue
import threading

import pytest
from builders import make_snapshot
from waiting import DEADLINE_SECONDS

from vramtop.estimator.common.errors import CannotTellError, VramtopError
from vramtop.monitor.sources.sampler import EndOfRecording, Sampler


class Feed:
    """A source with scripted reads: snapshots and None are returned, exceptions raised, functions called."""

    def __init__(self, script, last=None):
        self.script = list(script)
        self.last = last
        self.log = []
        self.threads = set()
        self.refusals = []

    def open(self):
        self.note("open")
        if self.refusals:
            raise self.refusals.pop(0)

    def read(self):
        self.note("read")
        item = self.script.pop(0) if self.script else self.last
        if isinstance(item, VramtopError):
            raise item
        return item() if callable(item) else item

    def close(self):
        self.note("close")

    def note(self, word):
        self.log.append(word)
        self.threads.add(threading.current_thread().name)


@pytest.fixture
def sample(request):
    """Start a sampler on a source; its snapshots and errors come through queues."""

    def start(source, interval=0.05, **options):
        snapshots, errors = queue.Queue(), queue.Queue()
        sampler = Sampler(source, interval, snapshots.put, errors.put, **options)
        sampler.start()
        request.addfinalizer(sampler.stop)
        return sampler, snapshots, errors

    return start


def drain(items):
    while not items.empty():
        items.get_nowait()


def test_one_thread_opens_reads_and_closes(sample):
    first, second = make_snapshot([]), make_snapshot([], time=2001.0)
    feed = Feed([first, None, second])
    sampler, snapshots, errors = sample(feed)
    assert [snapshots.get(timeout=DEADLINE_SECONDS), snapshots.get(timeout=DEADLINE_SECONDS)] == [first, second]
    assert sampler.stop(DEADLINE_SECONDS)
    assert feed.log[:4] == ["open", "read", "read", "read"]
    assert feed.log[-1] == "close"
    assert feed.log.count("close") == 1
    assert feed.threads == {"vramtop-sampler"}
    assert errors.empty()


def test_stopping_does_not_wait_for_a_source_that_hangs_and_never_closes_under_it(sample):
    entered, release = threading.Event(), threading.Event()

    def hang():
        entered.set()
        release.wait(DEADLINE_SECONDS)
        return make_snapshot([])

    feed = Feed([hang])
    sampler, snapshots, _ = sample(feed)
    assert entered.wait(DEADLINE_SECONDS)
    assert sampler.stop(0.01) is False
    assert "close" not in feed.log
    release.set()
    assert sampler.stop(DEADLINE_SECONDS) is True
    assert feed.log == ["open", "read", "close"]
    assert snapshots.empty()  # nothing is reported after stop


def test_a_reading_may_be_taken_early_and_a_pause_takes_none_and_ends_with_one(sample):
    feed = Feed([], last=make_snapshot([]))
    sampler, snapshots, _ = sample(feed, interval=3600)
    snapshots.get(timeout=DEADLINE_SECONDS)
    sampler.read_soon()
    snapshots.get(timeout=DEADLINE_SECONDS)
    sampler.pause()
    assert sampler.paused
    sampler.read_soon()
    with pytest.raises(queue.Empty):
        snapshots.get(timeout=0.3)
    sampler.resume()
    assert snapshots.get(timeout=DEADLINE_SECONDS)
    assert not sampler.paused


def test_the_pace_does_not_drift_with_the_time_that_readings_take(sample, clock):
    reads = []

    def read():
        reads.append(clock.time)
        clock.advance(3)
        return make_snapshot([])

    sampler, snapshots, _ = sample(Feed([], last=read), interval=10, clock=clock)
    for number in range(1, 4):
        snapshots.get(timeout=DEADLINE_SECONDS)
        clock.time = 1000 + 10 * number
        sampler.resume()
    snapshots.get(timeout=DEADLINE_SECONDS)
    assert reads == [1000, 1010, 1020, 1030]


def test_a_source_that_fails_is_opened_again(sample):
    snapshot = make_snapshot([])
    feed = Feed([snapshot, CannotTellError("driver gone")], last=snapshot)
    _, snapshots, errors = sample(feed, retry_seconds=0.01)
    assert errors.get(timeout=DEADLINE_SECONDS).message == "driver gone"
    drain(snapshots)
    assert snapshots.get(timeout=DEADLINE_SECONDS) is snapshot
    assert feed.log[:6] == ["open", "read", "read", "close", "open", "read"]


def test_a_failure_without_retry_ends_the_thread(sample):
    feed = Feed([])
    feed.refusals = [CannotTellError("no driver")]
    sampler, _, errors = sample(feed, retry_seconds=None)
    assert errors.get(timeout=DEADLINE_SECONDS).message == "no driver"
    assert sampler.stop(DEADLINE_SECONDS)
    assert feed.log == ["open", "close"]


def test_the_end_of_a_recording_is_reported_once_and_final(sample):
    feed = Feed([make_snapshot([]), EndOfRecording("it has ended")])
    sampler, snapshots, errors = sample(feed, retry_seconds=0.01)
    assert snapshots.get(timeout=DEADLINE_SECONDS)
    assert isinstance(errors.get(timeout=DEADLINE_SECONDS), EndOfRecording)
    assert sampler.stop(DEADLINE_SECONDS)
    assert feed.log == ["open", "read", "read", "close"]
    assert errors.empty()
