"""Every followed run of this user with a known job becomes one measurement; the file keeps the newest, loses none."""

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
from vramtop.estimator.learning.measurement import Measurement, Observed
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.history import history, run_recorder as module
from vramtop.monitor.history.history import History
from vramtop.monitor.history.new_measurement import new_measurement
from vramtop.monitor.history.run_recorder import THREAD, RunRecorder
from vramtop.monitor.snapshot.snapshot import ProcessCounters, ProcessKey, WatchedJob

GIB = 2**30


def measured(run: str = "a", *, time: float = 1000.0, device: float = 41.0, **changes: object) -> Measurement:
    """Make the measurement of a run; figures in GiB."""
    job = Job(name="secret-name", model=ModelSpec(id="meta-llama/Llama-3.1-8B"))
    observed = Observed(device_bytes=round(device * GIB), device_source="readings")
    facts = {"run": run, "state": "steady", "time": time, "card": "NVIDIA H100 80GB HBM3", **changes}
    return new_measurement(job, [make_budget(job)], observed, **facts)  # type: ignore[arg-type]


@pytest.fixture
def kept(tmp_path: Path) -> History:
    return History(tmp_path / "data" / "history.json")


def test_a_run_comes_back_as_it_was_kept(kept: History) -> None:
    first = measured(driver="580.95", versions={"torch": "2.9.1"}, command="python train.py --token x", time=5.0)
    kept.add(first)
    assert kept.list() == (first,)
    assert first.model == "Llama 3.1 8B"
    assert kept.on_card([first.card or ""]) == (first,)
    assert kept.on_card(["NVIDIA A100"]) == ()


def test_one_run_is_one_row_with_its_highest_figures(kept: History) -> None:
    kept.add(measured(device=41, time=10.0))
    kept.add(measured(device=40, time=20.0, state="ended"))
    kept.add(measured(device=39, time=30.0))  # a vramtop that has not noticed the end
    (found,) = kept.list()
    assert (found.observed.device_bytes, found.time, found.state) == (41 * GIB, 30.0, "ended")


def test_nothing_in_the_file_names_anything_of_the_user(kept: History) -> None:
    kept.add(measured(command="/home/ann/train.py --token hf_zq7", allocator="backend:native,/home/ann", driver="580"))
    content = b"".join(file.read_bytes() for file in kept.path.parent.iterdir())
    assert b"steady" in content
    assert measured(allocator="max_split_size_mb:512, expandable_segments:True").allocator.endswith("segments:True")
    assert measured(allocator="roundup_power2_divisions:[256:1,512:2,>:4]").allocator.startswith("roundup")
    for word in (b"secret-name", b"meta-llama/", b"/home", b"train.py", b"hf_zq7", os.uname().nodename.encode()):
        assert word not in content


def test_runs_are_chosen_and_forgotten(kept: History) -> None:
    for at, card in enumerate(("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3")):
        kept.add(measured(str(at), card=card, time=at * 100.0, state="ended" if at else "short"))

    assert [each.time for each in kept.list()] == [200.0, 100.0, 0.0]
    newest = kept.list()[0]
    assert kept.list(newest.run[:12]) == (newest,)
    kept.forget([each for each in kept.list() if each.time < 150.0])
    assert kept.list() == (newest,)
    kept.forget(kept.list())
    assert kept.list() == ()
    assert b"NVIDIA" not in kept.path.read_bytes()  # forgotten for good


def test_the_newest_runs_are_kept(kept: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_RUNS", 3)
    first = measured()
    for at in (4, 0, 3, 1, 2):
        kept.add(replace(first, run=str(at), time=float(at)))
    assert [each.run for each in kept.list()] == ["4", "3", "2"]


@pytest.mark.parametrize("damage", [b"no JSON at all", b'{"version": 1}', b'{"version": 1, "content": {"a": 5}}'])
def test_a_damaged_file_is_set_aside_and_named(kept: History, damage: bytes) -> None:
    kept.path.parent.mkdir()
    kept.path.write_bytes(damage)
    with pytest.raises(CannotTellError, match=r"history\.json, with your measured runs, is damaged"):
        kept.list()
    said = kept.add(measured())
    (aside,) = kept.path.parent.glob("history.json.damaged-*")
    assert said is not None
    assert aside.name in said
    assert aside.read_bytes() == damage
    assert len(kept.list()) == 1


def test_a_newer_file_is_left_as_it_is(kept: History) -> None:
    kept.add(measured())
    kept.path.write_text(kept.path.read_text().replace('"version": 1', '"version": 99'))
    before = kept.path.read_bytes()
    for use in (kept.list, lambda: kept.add(measured("b")), lambda: kept.forget([measured()])):
        with pytest.raises(CannotTellError, match="another version of vramtop and is left as it is"):
            use()  # type: ignore[operator]
    assert kept.path.read_bytes() == before


def test_runs_of_another_version_are_passed_over_and_stay(kept: History) -> None:
    kept.add(measured("a"))
    kept.path.write_text(kept.path.read_text().replace('"steady"', '"dreaming"'))
    kept.add(measured("b"))
    assert [each.run for each in kept.list()] == [measured("b").run]
    assert "dreaming" in kept.path.read_text()


def test_threads_may_share_it(kept: History) -> None:
    first = measured()
    threads = [threading.Thread(target=kept.add, args=(replace(first, run=str(at)),)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept.list()) == 8


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


@pytest.mark.parametrize("what", ["recording", "demo", "guessed settings", "another user's"])
def test_what_is_not_kept(machine: Machine, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    if what == "another user's":
        monkeypatch.setattr("vramtop.monitor.history.run_recorder.os.geteuid", lambda: other)
    elif what == "guessed settings":
        machine.watchlist.add_run(WatchedJob(job=JOB, pids=(machine.key,), missing=("training.micro_batch",)))
    else:
        machine.kind = what
    machine.tick(38, steps=2)
    assert machine.runs == ()
