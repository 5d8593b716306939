"""A board with everything that the exporter has a metric for, and exporters in processes of their own."""

from typing import Any

import pytest
from builders import make_gpu, make_process, make_run, make_snapshot, make_watchlist

from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.monitor.anomalies.anomaly import Anomaly
from vramtop.monitor.board.board import AttachProgress, Board
from vramtop.monitor.snapshot.figures import NO_ANSWER, Fault
from vramtop.monitor.snapshot.snapshot import MigReading, ProcessCounters

GIB = 2**30


@pytest.fixture
def board() -> Board:
    """Four minutes of a machine: a job that grows, one that has ended, pending jobs, MIG, faults, a GPU that hangs."""
    growing = Job(name="grows", model=ModelSpec(id="meta-llama/Llama-3.1-8B"))
    ended = Job(name="over", model=growing.model)
    watchlist = make_watchlist(
        make_run(growing, 10), make_run(ended, 11), low=30, high=50, is_running=lambda _: False,
        host_memory=lambda _: None,
    )  # fmt: skip
    watchlist.anomaly_detector = _Found()
    watchlist.attach_progress = lambda: AttachProgress(read=2, total=3)
    for name in ("small", "small", "large"):
        watchlist.add_pending(Job(name=name, model=ModelSpec(id=f"meta-llama/{name}{len(watchlist.pending())}")))
    mig = MigReading(
        uuid="MIG-1", gpu_instance=3, compute_instance=0, profile="1g.10gb", total_bytes=10 * GIB, used_bytes=2 * GIB,
        free_bytes=8 * GIB,
    )  # fmt: skip
    refused = Fault(field="power_w", code="NOT_SUPPORTED", message="the driver does not say")
    hangs = Fault(field=None, code=NO_ANSWER, message="has not answered for 12 s")
    found = None
    for second in range(0, 250, 10):
        counters = ProcessCounters(
            time=1.0, steps=second, step_seconds=0.5, allocated_bytes=30 * GIB, reserved_bytes=31 * GIB
        )
        processes = [
            make_process(10, 32 + second * 0.02, counters=counters),
            make_process(12, 2, user="bo"),
            make_process(13, None, user="bo"),
        ]
        gpus = [
            make_gpu(0, processes),
            make_gpu(1, [make_process(11, 33)] if second < 230 else [], power_w=None, faults=(refused,)),
            make_gpu(2, [make_process(14, 1.5, gpu_instance=3, compute_instance=0)], mig=(mig,)),
            make_gpu(3, [], faults=(hangs,), used_bytes=70 * GIB),
            make_gpu(4, [], compute_mode="prohibited", power_w=None),
        ]
        faults = (Fault(field=None, code="NOT_LISTED", message="a GPU is gone"),)
        found = watchlist.update(make_snapshot(gpus, time=2_000.0 + second, faults=faults))
    assert found is not None
    return found


class _Found:
    """Finds one forgotten process."""

    def update(self, snapshot: Any) -> tuple[Anomaly, ...]:
        del snapshot
        words = {"sentence": "forgotten", "advice": "end it"}
        return (Anomaly(kind="forgotten", gpu=0, pids=(12,), held_bytes=2 * GIB, **words),)
