"""Every followed run of this user with a known job becomes one measurement, when it is steady and when it ends."""

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from builders import make_budget, make_gpu, make_process, make_snapshot

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.estimator.learning.measurement import Measurement
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.history import run_recorder as module
from vramtop.monitor.history.history import History
from vramtop.monitor.history.run_recorder import THREAD, RunRecorder
from vramtop.monitor.snapshot.snapshot import ProcessCounters, ProcessKey, WatchedJob

GIB = 2**30
JOB = Job(name="sft", model=ModelSpec(id="gpt2"))


@dataclass
class Facts:
    """What was read of a process."""

    versions: dict[str, str] = field(default_factory=lambda: {"torch": "2.9.1+cu128", "transformers": "4.57.0"})
    estimate_environ: dict[str, str] = field(
        default_factory=lambda: {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    )
    command: str = "python train.py --secret-run"


class Machine:
    """One GPU whose only process is a real one of this user, with scripted memory; readings are a second apart."""

    def __init__(self, key: ProcessKey, history: History) -> None:
        self.key, self.history, self.time, self.kind = key, history, 2_000.0, "nvml"
        self.alive = True
        self.said: list[str] = []
        self.kept = 0
        self.watchlist = Watchlist(make_budget, is_running=lambda _: self.alive)
        self.watchlist.add_run(WatchedJob(job=JOB, pids=(key,)))
        self.recorder = self.new_recorder()

    def new_recorder(self) -> RunRecorder:
        return RunRecorder(
            history=lambda: self.history, facts=lambda _: Facts(), notify=self.said.append, on_kept=self._count
        )

    def _count(self) -> None:
        self.kept += 1

    def tick(self, used: float | None, *, steps: int | None = None, seconds: float = 1.0, **of: object) -> None:
        """One reading; ``used`` None: the process has left the GPU."""
        self.time += seconds
        counters = None
        if steps is not None:
            counters = ProcessCounters(
                time=self.time, steps=steps, allocated_peak_bytes=30 * GIB, reserved_peak_bytes=35 * GIB,
                reserved_bytes=35 * GIB,
            )  # fmt: skip
        pid, start = self.key
        rows = [] if used is None else [make_process(pid, used, start_time=start, counters=counters, **of)]
        snapshot = make_snapshot([make_gpu(0, rows)], time=self.time)
        snapshot = replace(snapshot, source=replace(snapshot.source, kind=self.kind))  # type: ignore[attr-defined,type-var]
        self.recorder.observe(self.watchlist.update(snapshot))  # type: ignore[arg-type]
        for thread in threading.enumerate():
            if thread.name == THREAD:
                thread.join()

    @property
    def runs(self) -> tuple[Measurement, ...]:
        return self.history.list()


@pytest.fixture
def key(start_python) -> ProcessKey:
    process = start_python("input()")
    return process.pid, psutil.Process(process.pid).create_time()


@pytest.fixture
def machine(key: ProcessKey, tmp_path: Path) -> Machine:
    history = History(tmp_path / "history.json")
    return Machine(key, history)


def test_a_run_is_kept_once_it_is_steady_and_again_at_its_end(machine: Machine) -> None:
    machine.tick(10, steps=0)
    assert machine.runs == ()
    machine.tick(38, steps=2)
    (found,) = machine.runs
    assert (found.state, found.observed.allocated_bytes, found.observed.reserved_bytes) == (
        "steady",
        30 * GIB,
        35 * GIB,
    )
    assert (found.observed.device_bytes, found.observed.device_source) == (38 * GIB, "probe")
    assert (found.observed.allocator_source, found.card, found.driver) == ("probe", "NVIDIA H100 80GB HBM3", "580.95")
    assert found.versions == {"torch": "2.9.1", "transformers": "4.57.0"}
    assert found.allocator == "expandable_segments:True"
    assert found.predicted[0].device_bytes == 40 * GIB
    machine.tick(38, steps=3)
    assert machine.kept == 1  # nothing has changed
    machine.alive = False
    machine.tick(None)
    (found,) = machine.runs
    assert found.state == "ended"
    assert machine.said == []


def test_a_higher_peak_replaces_the_figure_after_a_while(machine: Machine) -> None:
    machine.tick(38, steps=2)
    machine.tick(39, steps=3)
    assert machine.runs[0].observed.device_bytes == 38 * GIB
    machine.tick(39, steps=60, seconds=61)
    assert machine.runs[0].observed.device_bytes == 39 * GIB
    assert len(machine.runs) == 1


def test_a_better_estimate_is_kept_beside_the_first(machine: Machine) -> None:
    machine.tick(38, steps=2)
    machine.watchlist.set_budget(replace(make_budget(JOB, device=39), method="traced"))
    machine.tick(38, steps=3, seconds=61)
    assert {each.method: each.device_bytes for each in machine.runs[0].predicted} == {
        "formula": 40 * GIB,
        "traced": 39 * GIB,
    }


def test_a_run_that_ends_early_or_without_memory_says_so(machine: Machine) -> None:
    machine.tick(20, steps=0)
    machine.alive = False
    machine.tick(None)
    assert [each.state for each in machine.runs] == ["short"]


def test_readings_alone_are_kept_when_memory_has_settled(machine: Machine) -> None:
    for _ in range(40):
        machine.tick(40)
    (found,) = machine.runs
    assert (found.observed.device_source, found.observed.allocated_bytes) == ("readings", None)


def test_runs_of_other_users_are_not_kept(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    monkeypatch.setattr("vramtop.monitor.history.run_recorder.os.geteuid", lambda: other)
    machine.tick(38, steps=2)
    assert machine.runs == ()


@pytest.mark.parametrize("kind", ["recording", "demo"])
def test_a_recording_is_not_kept(machine: Machine, kind: str) -> None:
    machine.kind = kind
    machine.tick(38, steps=2)
    assert machine.runs == ()


def test_guessed_settings_are_not_kept(machine: Machine) -> None:
    machine.watchlist.add_run(WatchedJob(job=JOB, pids=(machine.key,), missing=("training.micro_batch",)))
    machine.tick(38, steps=2)
    assert machine.runs == ()


def test_a_correction_is_not_kept_as_a_prediction(machine: Machine) -> None:
    """Otherwise each correction would correct the next one."""
    from vramtop.estimator.budget import Learned

    first = make_budget(JOB, device=40)
    learned = Learned(
        sentence="measured here once", runs=1, jobs=1, same_job=True, last=0.0, uncorrected=first.peak,
        uncorrected_outside_bytes=first.phases[2].outside_bytes, uncorrected_steady_bytes=first.steady_device_bytes,
    )  # fmt: skip
    machine.watchlist.set_budget(replace(make_budget(JOB, device=38), learned=learned))
    machine.tick(38, steps=2)
    assert machine.runs[0].predicted[0].device_bytes == 40 * GIB


def test_a_history_that_cannot_be_written_is_said_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_SECONDS", 0.0)

    def closed() -> History:
        raise CannotTellError("history.json cannot be written: Read-only file system.")

    machine.recorder.history = closed
    machine.tick(38, steps=2)
    machine.tick(39, steps=3)
    machine.tick(40, steps=4)
    assert machine.said == ["history.json cannot be written: Read-only file system."]
