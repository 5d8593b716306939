"""Budgets, snapshots, GPUs, processes, hosts and sources with figures that are easy to check."""

import threading
from collections.abc import Sequence
from typing import Any

from vramtop.estimator.budget import Budget, Components, ModelFacts, Peak, Phase
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.monitor.attach.attachment import Attachment
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.capacity import DeviceCapacity
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.fleet.fleet import FleetGpu, FleetProcess, HostReading, RankFacts
from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading, MigReading, Snapshot, Source, WatchedJob
from vramtop.monitor.sources.nvml.device_calls import NoDriverError


def make_budget(
    job: Job | None = None, *, device: float = 40, low: float | None = None, high: float | None = None
) -> Budget:
    """Make a budget of ``device`` GiB: 1/16 CUDA context, 1/8 activations, the rest weights, gradients and states."""
    unit = round(device * GIB / 16)
    loading = Components(weights=3 * unit, context=unit)
    full = Components(weights=3 * unit, gradients=3 * unit, optimizer=6 * unit, activations=2 * unit, context=unit)
    size = full.total_bytes + unit
    return Budget(
        job=job or Job(name="llama-8b-sft", model=ModelSpec(id="meta-llama/Llama-3.1-8B")),
        model=ModelFacts(parameters=8_030_261_248, trainable_parameters=8_030_261_248, count="approximate"),
        method="formula",
        phases=(
            Phase(name="loading", components=loading, outside_bytes=unit),
            Phase(name="forward", components=full, outside_bytes=unit),
            Phase(name="backward", components=full, outside_bytes=unit),
            Phase(name="optimizer step", components=full, outside_bytes=unit),
        ),
        peak=Peak(
            phase="backward",
            components=full,
            allocated_bytes=full.total_bytes - unit,
            reserved_bytes=full.total_bytes,
            device_bytes=size,
            low_bytes=size - unit if low is None else round(low * GIB),
            high_bytes=size + unit if high is None else round(high * GIB),
        ),
        steady_device_bytes=size,
        assumptions=("CUDA context of 500 MiB",),
        warnings=(),
    )


def make_process(pid: int = 4711, used: float | None = 30, **changes: Any) -> GpuProcess:
    """Make a process that holds ``used`` GiB; None: its memory is unknown."""
    facts: dict[str, Any] = {
        "pid": pid,
        "start_time": 1_000.0,
        "used_bytes": None if used is None else round(used * GIB),
        "kinds": ("compute",),
        "user": "ana",
        "name": "python",
        "command": f"python train.py --seed {pid}",
    }
    return GpuProcess(**(facts | changes))


def make_gpu(index: int = 0, processes: Sequence[GpuProcess] = (), **changes: Any) -> GpuReading:
    """Make an 80 GiB GPU whose used memory is that of its processes plus 1 GiB."""
    used = sum(process.used_bytes or 0 for process in processes) + GIB
    facts: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index:08d}",
        "name": "NVIDIA H100 80GB HBM3",
        "total_bytes": 80 * GIB,
        "reserved_bytes": GIB // 2,
        "used_bytes": used,
        "free_bytes": 80 * GIB - GIB // 2 - used,
        "utilisation_percent": 98,
        "temperature_c": 63,
        "power_w": 412.0,
        "power_limit_w": 700.0,
        "processes": tuple(processes),
        "read_at": 2_000.0,
    }
    return GpuReading(**(facts | changes))


def make_device(index: int = 0, free: float | None = 80, **changes: Any) -> DeviceCapacity:
    """Make the capacity of an 80 GiB GPU of which so many GiB are free; None: that is unknown."""
    facts: dict[str, Any] = {"uuid": None, "name": "card", "total_bytes": 80 * GIB}
    facts["free_bytes"] = None if free is None else round(free * GIB)
    return DeviceCapacity(index=index, **(facts | changes))


def make_snapshot(gpus: Sequence[GpuReading], *, time: float = 2_000.0, **changes: Any) -> Snapshot:
    """Make a snapshot of these GPUs, taken 1,000 seconds after the processes started."""
    source = Source(kind="nvml", host="gpubox-3", driver_version="580.95", cuda_version="13.0")
    return Snapshot(**({"time": time, "source": source, "gpus": tuple(gpus)} | changes))


def make_run(job: Job | str, *pids: int, **changes: Any) -> WatchedJob:
    """Make the run of a job, or of one with this name, whose processes are as old as those of ``make_process``."""
    facts: dict[str, Any] = {
        "job": Job(name=job) if isinstance(job, str) else job,
        "pids": tuple((pid, 1_000.0) for pid in pids),
    }
    return WatchedJob(**(facts | changes))


def make_watchlist(
    *runs: WatchedJob,
    device: float = 40,
    low: float | None = None,
    high: float | None = None,
    pending: Sequence[Job | str] = (),
    **options: Any,
) -> Watchlist:
    """Make a watchlist of these runs and pending jobs, or jobs with these names, each of which needs ``device`` GiB."""
    watchlist = Watchlist(**({"estimate": lambda job: make_budget(job, device=device, low=low, high=high)} | options))
    for run in runs:
        watchlist.add_run(run)
    for job in pending:
        watchlist.add_pending(Job(name=job, model=ModelSpec(id="gpt2")) if isinstance(job, str) else job)
    return watchlist


def no_job(job: Job) -> Budget:
    """Fail where no job is known, so that nothing may ask for a budget."""
    raise AssertionError(f"nobody asks for {job}")


def make_board(gpus: Sequence[GpuReading], *runs: WatchedJob, **options: Any) -> Board:
    """Make the first board of these GPUs; the other arguments are those of ``make_watchlist``."""
    return make_watchlist(*runs, **options).update(make_snapshot(gpus))


def make_mig_gpu(
    index: int = 0, processes: Sequence[GpuProcess] = (), *, free: Sequence[float] = (39, 19), **changes: Any
) -> GpuReading:
    """Make an 80 GiB GPU in MIG mode: a GPU instance of 40 GiB with two compute instances, and one of 20 GiB.

    ``free`` holds the free GiB of the two GPU instances.
    """
    devices_by_instance = ((3, 0, "1c.3g.40gb", 40), (3, 1, "2c.3g.40gb", 40), (9, 0, "1g.20gb", 20))
    mig = tuple(
        MigReading(
            uuid=f"MIG-{index}-{instance}-{compute_instance}",
            gpu_instance=instance,
            compute_instance=compute_instance,
            profile=profile,
            total_bytes=total * GIB,
            used_bytes=round((total - free[instance == 9]) * GIB),
            free_bytes=round(free[instance == 9] * GIB),
        )
        for instance, compute_instance, profile, total in devices_by_instance
    )
    return make_gpu(index, processes, **({"mig": mig} | changes))


def make_rank(pid: int, gib: float | None = 10, *, facts: dict[str, Any] | None = None, **changes: Any) -> FleetProcess:
    """Make a process that holds so many GiB; further arguments are facts of its environment or fields of it."""
    used = None if gib is None else int(gib * GIB)
    known = None if facts is None else RankFacts(**facts)
    fields = {"job": "tune", "user": "ann", "budget_bytes": 20 * GIB, "status": "on_budget", "start_time": 1000.0}
    return FleetProcess(pid=pid, used_bytes=used, facts=known, **{**fields, **changes})


def make_host(name: str, *processes: FleetProcess, **changes: Any) -> HostReading:
    """Make a host with one 80 GiB GPU for each process."""
    gpus = tuple(
        FleetGpu(
            index=at,
            uuid=f"GPU-{name}-{at}",
            name="NVIDIA H100 80GB HBM3",
            total_bytes=80 * GIB,
            used_bytes=(process.used_bytes or 0) + GIB,
            free_bytes=79 * GIB - (process.used_bytes or 0),
            committed_bytes=5 * GIB,
            unattributed_bytes=GIB,
            processes=(process,),
        )
        for at, process in enumerate(processes)
    )
    return HostReading(**{"host": name, "time": 2000.0, "since": 2000.0, "gpus": gpus, **changes})


def make_attachment(**facts: Any) -> Attachment:
    """Make the attachment to a process of which nothing is known but these facts."""
    nothing: dict[str, Any] = dict.fromkeys(("launcher", "cwd", "worker_python", "probe"))
    nothing |= {"ranks": (), "versions": {}, "estimate_environ": {}, "inside": (), "warnings": ()}
    return Attachment(**(nothing | {"pid": 4711, "start_time": 1.0, "command": "python train.py"} | facts))


class ScriptedSource:
    """A source that returns the given snapshots in turn, then repeats the last one.

    Clear ``read_allowed`` to make the next read hang, set it to let the read return.
    """

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self.snapshots = list(snapshots)
        self.reads = 0
        self.read_allowed = threading.Event()
        self.read_allowed.set()

    def open(self) -> None:
        pass

    def read(self) -> Snapshot:
        self.read_allowed.wait(30)
        snapshot = self.snapshots[min(self.reads, len(self.snapshots) - 1)]
        self.reads += 1
        return replace(snapshot)  # each reading is a snapshot of its own

    def close(self) -> None:
        pass


class NoDriver(ScriptedSource):
    """A source on a machine without a driver."""

    def __init__(self, why: str = "there is no driver") -> None:
        super().__init__([])
        self.why = why

    def open(self) -> None:
        raise NoDriverError(self.why)


class FakeClock:
    """A clock that only moves when it is advanced; calling it returns the time."""

    def __init__(self, time: float = 1000.0) -> None:
        self.time = time

    def __call__(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        assert seconds > 0
        self.time += seconds
