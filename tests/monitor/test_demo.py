"""The demo recording tells its story through the very pipeline that live GPUs go through."""

from collections.abc import Callable

import pytest

from vramtop.estimator.errors import CannotTellError, InputError
from vramtop.estimator.methods import estimate
from vramtop.monitor.demo import LiveOrDemo, demo_path, demo_source
from vramtop.monitor.recording import read_recording
from vramtop.monitor.snapshot import GpuReading, Snapshot
from vramtop.monitor.watch import Watchlist


def test_a_job_loads_and_runs_on_budget_another_outgrows_its_own_and_a_third_no_longer_fits() -> None:
    watchlist = Watchlist(estimate)
    stories: dict[str, list[str]] = {}
    fullest = 0.0
    for snapshot in read_recording(demo_path()):
        board = watchlist.update(snapshot)
        told = [(row.job.label, row.comparison.status) for row in board.processes if row.job and row.comparison]
        told += [(row.job.label, row.fit.verdict) for row in board.pending if row.fit]
        for label, word in told:
            story = stories.setdefault(label, [])
            if story[-1:] != [word]:
                story.append(word)
        second = board.gpus[1].reading
        fullest = max(fullest, (second.used_bytes or 0) / (second.total_bytes or 1))
    assert stories["llama-8b-sft"] == ["loading", "warming_up", "on_budget"]
    assert stories["qwen-7b-dpo"] == ["loading", "warming_up", "on_budget", "over"]
    assert stories["qwen-14b-lora"][0] == "fits"
    assert stories["qwen-14b-lora"][-1] == "does_not_fit"
    assert 0.9 < fullest < 1


def test_every_figure_of_the_demo_adds_up() -> None:
    for snapshot in read_recording(demo_path()):
        for gpu in snapshot.gpus:
            assert gpu.total_bytes == (gpu.reserved_bytes or 0) + (gpu.used_bytes or 0) + (gpu.free_bytes or 0)
            assert gpu.used_bytes == (gpu.attributed_bytes or 0) + (gpu.unattributed_bytes or 0)


class Refusing:
    """A live source that cannot be opened the first ``times``."""

    def __init__(self, error: Exception, times: int, then: Snapshot | None = None) -> None:
        self.error, self.times, self.then = error, times, then

    def open(self) -> None:
        self.times -= 1
        if self.times >= 0:
            raise self.error

    def read(self) -> Snapshot | None:
        return self.then

    def close(self) -> None:
        pass


def test_without_a_driver_the_demo_is_played_and_says_why() -> None:
    source = LiveOrDemo(Refusing(CannotTellError("no NVIDIA driver was found"), 1))
    source.open()
    snapshot = source.read()
    assert snapshot is not None
    assert snapshot.source.kind == "demo"
    assert snapshot.faults[0].message == "demo recording, not this machine: no NVIDIA driver was found"
    source.close()


def test_a_driver_that_was_there_is_waited_for_and_no_demo_takes_its_place(
    make_snapshot: Callable[..., Snapshot], make_gpu: Callable[..., GpuReading]
) -> None:
    live = Refusing(CannotTellError("driver gone"), 0, make_snapshot([make_gpu()]))
    source = LiveOrDemo(live, demo_source)
    source.open()
    assert source.read() == live.then
    live.times = 1
    with pytest.raises(CannotTellError, match="driver gone"):
        source.open()


def test_a_mistake_is_not_hidden_behind_the_demo() -> None:
    with pytest.raises(InputError):
        LiveOrDemo(Refusing(InputError("wrong"), 1)).open()
