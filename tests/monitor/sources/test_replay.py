"""Replay of a recording: pace, end, loop, and rebased times."""

import pytest
from builders import make_gpu, make_process, make_snapshot

from vramtop.estimator.job.job import Job
from vramtop.monitor.snapshot.snapshot import WatchedJob
from vramtop.monitor.sources.recording import RecordingWriter
from vramtop.monitor.sources.replay import ReplaySource
from vramtop.monitor.sources.sampler import EndOfRecording

NOW = 50_000.0


@pytest.fixture
def recorded(tmp_path):
    """Snapshots at seconds 0, 1, 2 and 5 of a process that started 1,000 seconds before them."""
    path = tmp_path / "run.jsonl.gz"
    with RecordingWriter(path) as writer:
        for second in (0.0, 1.0, 2.0, 5.0):
            gpu = make_gpu(0, [make_process(used=second), make_process(7, start_time=None)], read_at=2000.0 + second)
            watched = WatchedJob(job=Job(), pids=((4711, 1000.0), (7, None)))
            writer.write(make_snapshot([gpu], time=2000.0 + second, watched=(watched,)))
    return path


@pytest.fixture
def play(recorded, clock):
    """Open the recording on a fake clock."""

    def opened(**options):
        given = {"clock": clock, "now": lambda: NOW + clock.time - 1000.0, **options}
        source = ReplaySource(recorded, **given)
        source.open()
        return source

    return opened


def times(source, clock, seconds):
    """Return the time of the snapshot of each read, one read a second."""
    found = []
    for _ in range(seconds):
        snapshot = source.read()
        found.append(None if snapshot is None else snapshot.time)
        clock.advance(1)
    return found


def test_snapshots_are_replayed_at_the_recorded_pace_until_the_end(play, clock):
    source = play()
    assert times(source, clock, 6) == [2000, 2001, 2002, None, None, 2005]
    with pytest.raises(EndOfRecording, match=r"run\.jsonl\.gz has ended"):
        source.read()


def test_the_clock_starts_with_the_first_read_and_snapshots_due_in_between_are_skipped(play, clock):
    source = play()
    clock.advance(100)
    first = source.read()
    assert (first.time, first.watched[0].pids[0]) == (2000, (4711, 1000.0))
    clock.advance(2.5)
    assert source.read().time == 2002


def test_a_loop_restarts_after_the_usual_interval(play, clock):
    source = play(loop=True)
    assert times(source, clock, 11) == [2000, 2001, 2002, None, None, 2005, None, None, 2000, 2001, 2002]


def test_rebased_times_are_current_and_keep_their_intervals(play, recorded, clock):
    source = play(rebase=True, kind="demo")
    first = source.read()
    assert (first.source.kind, first.source.path, first.source.host) == ("demo", str(recorded), "gpubox-3")
    assert first.time == first.gpus[0].read_at == NOW
    newest, unknown = sorted(first.gpus[0].processes, key=lambda process: -process.pid)
    assert newest.start_time == NOW - 1000
    assert unknown.start_time is None
    assert first.watched[0].pids == ((4711, NOW - 1000), (7, None))
    clock.advance(1)
    second = source.read()
    assert second.time == NOW + 1
    assert second.watched[0].pids == first.watched[0].pids  # still the same process


def test_times_of_a_rebased_loop_continue(play, clock):
    source = play(rebase=True, loop=True)
    assert times(source, clock, 9)[-1] == NOW + 8
