"""Anomalies are reported with their processes; busy processes are not reported."""

from collections.abc import Sequence
from typing import Any

import pytest
from builders import make_gpu, make_process, make_snapshot

from vramtop.estimator.common.records import replace
from vramtop.monitor.anomalies.anomaly import Anomaly, ProcessOrigin
from vramtop.monitor.anomalies.detector import AnomalyDetector
from vramtop.monitor.host.process_directory import ENDED_NOTE, ZOMBIE_NOTE
from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading, Snapshot

SPAWNED = "python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)"
HOUR = 3600.0


class Machine:
    """Scripted GPUs and processes with their origins; ``scan`` passes a snapshot to the detector."""

    def __init__(self) -> None:
        self.time = 10_000.0
        self.rows: list[list[GpuProcess]] = [[], []]
        self.origins: dict[int, ProcessOrigin] = {}
        self.asked: list[int] = []
        self.changes: dict[str, Any] = {}
        self.detector = AnomalyDetector(min_duration_seconds=0, origin_of=self.origin, viewer="ana")

    def origin(self, pid: int, start_time: float | None) -> ProcessOrigin | None:
        self.asked.append(pid)
        return self.origins.get(pid)

    def add(self, gpu: int, pid: int, used: float | None, **facts: Any) -> None:
        self.rows[gpu].append(make_process(pid, used, **{"parent": 50, "command": "python train.py"} | facts))

    def rank(self, number: int, pid: int, *, parent: int = 50, **facts: Any) -> None:
        self.origins[pid] = ProcessOrigin(ancestors=(parent,), rank=number, environment=number, **facts)

    def snapshot(self) -> Snapshot:
        gpus: list[GpuReading] = [
            make_gpu(index, rows, **{"used_bytes": sum(row.used_bytes or 0 for row in rows)} | self.changes)
            for index, rows in enumerate(self.rows)
        ]
        return make_snapshot(gpus, time=self.time)

    def scan(self, *, after: float = 0.0, **cpu_seconds: float) -> tuple[Anomaly, ...]:
        """Return the anomalies ``after`` some seconds; ``p4711=3.0`` adds CPU seconds to process 4711."""
        self.time += after
        for rows in self.rows:
            rows[:] = [
                replace(row, cpu_seconds=(row.cpu_seconds or 0.0) + cpu_seconds.get(f"p{row.pid}", 0.0)) for row in rows
            ]
        return self.detector.update(self.snapshot())


@pytest.fixture
def machine() -> Machine:
    return Machine()


def kinds(found: Sequence[Anomaly]) -> list[tuple[str, int, tuple[int, ...]]]:
    return [(anomaly.kind, anomaly.gpu, anomaly.pids) for anomaly in found]


def test_data_loader_workers_with_a_context_are_reported_at_once(machine: Machine) -> None:
    machine.add(0, 100, 40)
    for pid in (101, 102):
        machine.add(0, pid, 0.5, parent=100, name="pt_data_worker", start_time=machine.time - 1)
    (found,) = machine.scan()
    assert kinds([found]) == [("helpers", 0, (101, 102))]
    assert (found.about, found.held_bytes) == ((100,), 2**30)
    assert found.sentence == (
        "2 data loader workers of process 100 (processes 101, 102) hold a CUDA context each: 1.0 GiB"
    )
    assert "collate_fn" in found.advice
    assert found.concerns([100])
    assert not found.concerns([50])


def test_spawned_helpers_are_found_behind_the_server_that_forked_them(machine: Machine) -> None:
    machine.add(0, 100, 40)
    machine.add(0, 102, 0.5, parent=101, command=SPAWNED)
    machine.origins[102] = ProcessOrigin(ancestors=(101, 100, 50))
    (found,) = machine.scan()
    assert kinds([found]) == [("helpers", 0, (102,))]
    assert "1 helper of process 100" in found.sentence


@pytest.mark.parametrize(
    ("worker", "why"),
    [
        ({"used": 5.0}, "it holds what work needs"),
        ({"used": 0.03}, "no context at all"),
        ({"used": None}, "its memory is not known"),
        ({"start_time": 9_990.0}, "it may still load"),
        ({"command": "python evaluate.py"}, "another program that was started on purpose"),
    ],
)
def test_busy_children_are_not_reported_as_helpers(machine: Machine, worker: dict[str, Any], why: str) -> None:
    machine.add(0, 100, 40)
    machine.add(0, 101, **{"used": 0.5, "parent": 100, "command": SPAWNED} | worker)
    assert machine.scan() == (), why


def test_workers_of_a_server_with_little_gpu_memory_are_not_helpers(machine: Machine) -> None:
    machine.add(0, 100, 0.5, command="python -m vllm.entrypoints.openai.api_server")
    machine.add(0, 101, 0.6, parent=100, command=SPAWNED)
    assert machine.scan() == ()


def test_a_fork_differs_from_a_rank_by_its_environment(machine: Machine) -> None:
    """Lightning's rank 0 starts the others with its own command line."""
    machine.add(0, 100, 40)
    machine.add(0, 101, 0.5, parent=100)
    machine.origins = {100: ProcessOrigin(environment=7), 101: ProcessOrigin(ancestors=(100,), environment=7)}
    assert kinds(machine.scan()) == [("helpers", 0, (101,))]
    machine.origins[101] = ProcessOrigin(ancestors=(100,), environment=8, rank=1)
    machine.detector = AnomalyDetector(min_duration_seconds=0, origin_of=machine.origin, viewer="ana")
    assert kinds(machine.scan()) == [("shared", 0, (100, 101))]


def test_ranks_that_share_a_gpu_are_reported(machine: Machine) -> None:
    for number, pid in enumerate((201, 202)):
        machine.add(1, pid, 30)
        machine.rank(number, pid)
    (found,) = machine.scan()
    assert kinds([found]) == [("shared", 1, (201, 202))]
    assert found.sentence.startswith("ranks 0 and 1 of one job share this GPU (processes 201, 202)")
    assert "NCCL does not support" in found.advice


@pytest.mark.parametrize("reason", ["mps", "mig", "one rank", "other launcher", "young", "hidden"])
def test_processes_that_may_share_a_gpu_do(machine: Machine, reason: str) -> None:
    for number, pid in enumerate((201, 202)):
        parent = 50 + (number if reason == "other launcher" else 0)
        kind = ("compute", "mps") if reason == "mps" else ("compute",)
        machine.add(0, pid, 30, parent=parent, kinds=kind, start_time=9_990.0 if reason == "young" else 1_000.0)
        machine.rank(0 if reason == "one rank" else number, pid, parent=parent, on_mig=reason == "mig")
    if reason == "hidden":
        machine.origins = {pid: ProcessOrigin(ancestors=(50,)) for pid in (201, 202)}
    assert machine.scan() == ()


def test_contexts_of_ranks_on_another_ranks_gpu_are_reported(machine: Machine) -> None:
    machine.rows = [[] for _ in range(4)]
    for number in range(4):
        machine.add(number, 300 + number, 20)
        machine.rank(number, 300 + number)
        if number:
            machine.add(0, 300 + number, 0.7)
    (found,) = machine.scan()
    assert kinds([found]) == [("strays", 0, (301, 302, 303))]
    assert found.about == (300,)
    assert found.sentence == (
        "ranks 1 to 3 (processes 301, 302, 303), which run on other GPUs, hold a CUDA context each here: "
        "2.1 GiB of rank 0's GPU"
    )
    assert "set_device" in found.advice


def test_nccl_memory_on_peer_gpus_is_no_anomaly(machine: Machine) -> None:
    for number in range(2):
        machine.rank(number, 300 + number)
        machine.add(number, 300 + number, 20)
        machine.add(1 - number, 300 + number, 0.004 if number else None)
    assert machine.scan() == ()


def test_ranks_of_unknown_memory_on_all_gpus_are_not_reported_as_sharing(machine: Machine) -> None:
    """In some containers sizes are unknown, and NCCL makes the driver list every rank on every GPU."""
    for number in range(2):
        machine.rank(number, 300 + number)
        for gpu in range(2):
            machine.add(gpu, 300 + number, None)
    assert machine.scan() == ()


def test_an_idle_kernel_beside_a_later_run_is_reported_as_forgotten_after_half_an_hour(machine: Machine) -> None:
    machine.add(0, 400, 12, command="python -m ipykernel_launcher -f kernel.json", cpu_seconds=900.0)
    machine.add(0, 500, 20, command="python -m ipykernel_launcher -f other.json", start_time=5_000.0)
    said = [machine.scan(after=60, p500=50) for _ in range(32)]
    assert not any(said[:30])
    (found,) = said[-1]
    assert kinds([found]) == [("forgotten", 0, (400,))]
    assert found.sentence.startswith("your Jupyter kernel 400, started 3 h")
    assert "holds 12.0 GiB and has been idle for 31 min; you have started 500 on this GPU since" in found.sentence
    assert found.advice == "if it is no longer needed, shutting it down in Jupyter or 'kill 400' frees its memory"
    assert machine.scan(after=60, p400=5.0, p500=50) == ()


@pytest.mark.parametrize("reason", ["works a little", "another user's", "the newest", "relative", "tiny"])
def test_processes_that_may_be_needed_are_not_reported_as_forgotten(machine: Machine, reason: str) -> None:
    user = "bob" if reason == "another user's" else "ana"
    start = 6_000.0 if reason == "the newest" else 1_000.0
    used = 0.01 if reason == "tiny" else 12
    machine.add(0, 400, used, user=user, start_time=start, cpu_seconds=900.0, parent=40)
    machine.add(0, 500, 20, start_time=5_000.0, parent=400 if reason == "relative" else 50, command="python other.py")
    for _ in range(80):
        work = {"p400": 0.3} if reason == "works a little" else {}
        assert machine.scan(after=60, p500=50, **work) == ()


def test_an_idle_orphan_is_reported_as_forgotten_unless_its_gpu_is_busy(machine: Machine) -> None:
    machine.add(0, 400, 12, cpu_seconds=900.0, parent=1)
    machine.origins[400] = ProcessOrigin(orphan=True)
    machine.changes = {"utilisation_percent": 0}
    (found,) = [machine.scan(after=60) for _ in range(32)][-1]
    assert found.sentence.endswith("the program that started it has ended")
    machine.changes = {"utilisation_percent": 80}
    assert machine.scan(after=60) == ()


def test_a_process_with_hardly_any_cpu_time_is_reported_after_one_reading(machine: Machine) -> None:
    machine.time = 30 * HOUR
    machine.add(0, 400, 12, cpu_seconds=41.0)
    machine.add(0, 500, 20, start_time=29 * HOUR, cpu_seconds=900.0, parent=51)
    (found,) = machine.scan()
    assert "has used 41 s of CPU time in total" in found.sentence
    machine.rows[0][0] = replace(machine.rows[0][0], cpu_seconds=4100.0)
    machine.detector = AnomalyDetector(min_duration_seconds=0, origin_of=machine.origin, viewer="ana")
    assert machine.scan() == ()


@pytest.mark.parametrize(("note", "advice"), [(ENDED_NOTE, "hang in the driver"), (ZOMBIE_NOTE, "its parent 50")])
def test_memory_of_an_ended_process_is_reported(machine: Machine, note: str, advice: str) -> None:
    machine.add(0, 600, 12, note=note)
    (found,) = machine.scan()
    assert kinds([found]) == [("ended", 0, (600,))]
    assert advice in found.advice


def test_unattributed_memory_beyond_the_drivers_own_is_reported(machine: Machine) -> None:
    machine.add(0, 700, 12)
    machine.changes = {"used_bytes": int(12.3 * 2**30)}
    assert [anomaly.gpu for anomaly in machine.scan()] == [1]
    machine.changes = {"used_bytes": 16 * 2**30}
    found = machine.scan(after=2)
    assert [(anomaly.kind, anomaly.held_bytes >> 30) for anomaly in found] == [("unseen", 4), ("unseen", 16)]
    assert "4.0 GiB do not belong to any visible process" in found[0].sentence
    assert "cudaMallocManaged" in found[0].advice
    assert "cudaMallocManaged" not in found[1].advice
    machine.changes = {"used_bytes": 16 * 2**30, "reserved_bytes": None}  # used now includes the driver's reserve
    machine.detector = AnomalyDetector(min_duration_seconds=0, viewer="ana")
    assert machine.scan() == ()


def test_short_anomalies_are_not_reported_and_short_gaps_do_not_end_one(machine: Machine) -> None:
    machine.detector = AnomalyDetector(origin_of=machine.origin, viewer="ana")
    machine.add(0, 100, 40)
    machine.add(0, 101, 0.5, parent=100, name="pt_data_worker")
    assert machine.scan() == ()
    assert machine.scan(after=5) == ()
    assert kinds(machine.scan(after=5)) == [("helpers", 0, (101,))]
    listed, machine.rows[0] = machine.rows[0], [replace(row, name="python") for row in machine.rows[0]]
    assert kinds(machine.scan(after=5)) == [("helpers", 0, (101,))]
    machine.rows[0] = listed
    assert kinds(machine.scan(after=5)) == [("helpers", 0, (101,))]
    del machine.rows[0][1]
    assert machine.scan(after=5) == ()  # ended processes are not kept


def test_unattributed_memory_is_not_reported_for_a_gpu_that_no_longer_answers(machine: Machine) -> None:
    machine.detector = AnomalyDetector(viewer="ana")
    machine.changes = {"used_bytes": 16 * 2**30}
    machine.scan()
    assert kinds(machine.scan(after=8)) == []
    lost = make_gpu(0, processes=(), used_bytes=None, free_bytes=None, reserved_bytes=None)
    lost = replace(lost, processes=None)
    assert machine.detector.update(make_snapshot([lost], time=machine.time + 4)) == ()
