"""Snapshots of a machine whose GPUs cannot be read, until a driver appears."""

from collections.abc import Callable

import pytest
from builders import make_gpu, make_snapshot, make_watchlist

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.monitor.snapshot.figures import NO_DRIVER
from vramtop.monitor.snapshot.snapshot import Snapshot
from vramtop.monitor.sources.optional_gpus import OptionalGpuSource
from vramtop.monitor.sources.sampler import RETRY_SECONDS


class Live:
    """A live source that fails to open the first ``times`` times."""

    def __init__(self, error: Exception, times: int, then: Snapshot | None = None) -> None:
        self.error, self.times, self.then = error, times, then
        self.opened = 0

    def open(self) -> None:
        self.opened += 1
        self.times -= 1
        if self.times >= 0:
            raise self.error

    def read(self) -> Snapshot | None:
        return self.then

    def close(self) -> None:
        pass


def test_without_a_driver_snapshots_state_the_reason_until_one_appears(clock: Callable[[], float]) -> None:
    live = Live(CannotTellError("no NVIDIA driver here"), 2, make_snapshot([make_gpu()]))
    source = OptionalGpuSource(live, clock=clock, now=lambda: 2_000.0)
    source.open()
    for _ in range(3):
        snapshot = source.read()
        assert (snapshot.gpus, snapshot.time, snapshot.source.kind) == ((), 2_000.0, "nvml")
        assert [(fault.code, fault.message) for fault in snapshot.faults] == [(NO_DRIVER, "no NVIDIA driver here")]
    assert live.opened == 1
    clock.advance(RETRY_SECONDS)  # type: ignore[attr-defined]
    snapshot = source.read()
    assert snapshot.faults
    assert live.opened == 2
    clock.advance(RETRY_SECONDS)  # type: ignore[attr-defined]
    assert source.read() == live.then
    assert live.opened == 3


def test_a_driver_that_disappears_is_a_failure() -> None:
    """The earlier figures stay on the screen with their age."""
    live = Live(CannotTellError("driver gone"), 0, make_snapshot([make_gpu()]))
    source = OptionalGpuSource(live)
    source.open()
    assert source.read() == live.then
    live.times = 1
    with pytest.raises(CannotTellError, match="driver gone"):
        source.open()


def test_an_input_error_is_not_a_missing_driver() -> None:
    with pytest.raises(InputError):
        OptionalGpuSource(Live(InputError("wrong"), 1)).open()


def test_the_fit_of_a_pending_job_is_unknown_without_a_gpu() -> None:
    watchlist = make_watchlist(pending=[Job(name="sft", model=ModelSpec(id="gpt2"))])
    (row,) = watchlist.update(make_snapshot([])).pending
    assert row.fit is None
    assert row.budget is not None
    assert row.problem == "needs 40.0 GiB, and no GPU is visible here"
