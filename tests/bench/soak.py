"""Soak test for memory growth: two simulated days at an accelerated clock, and the real command for some minutes.

Run by ``make soak``; the exit code is 1 if memory grows. Three stages, each in its own process:

* ``core``: 172,800 snapshots pass through the watchlist. They show a machine with eight GPUs: every simulated hour
  jobs start, load, train, end and are dismissed; other processes come and go; GPUs are lost and recover.
* ``app``: the same days with a snapshot every ten seconds, drawn by the real app at 120x40, with key presses.
* ``command``: ``vramtop`` in a pseudo-terminal with the libnvidia-ml.so.1 that the loader finds, and a key press every
  ten seconds.

Growth is the median resident set in the last eighth of the run minus the median in the fifth eighth, the one after the
middle. A heap that does not grow may still differ by one arena of Python's allocator (1 MiB).
"""

import argparse
import asyncio
import fcntl
import os
import pty
import random
import select
import statistics
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence

import psutil

from vramtop.estimator.common.sizes import GIB, MIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job, ModelSpec, Training
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.snapshot.faults import Fault
from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading, Snapshot, Source, WatchedJob

DAYS = 2
GPUS, BACKGROUND_PROCESSES_PER_GPU = 8, 6
TOTAL_BYTES = 80 * GIB
RESERVED_BYTES = GIB // 2
START_TIME = 1_800_000_000.0
KEYS = ("down", "up", "s", "slash", "escape", "f", "escape", "question_mark", "escape", "t", "escape")
MAX_GROWTH_BYTES = MIB
SAMPLES = 400


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested stages, each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("stages", nargs="*", choices=("core", "app", "command", []), help="stages to run; default: all")
    parser.add_argument("--days", type=float, default=DAYS, help="simulated days")
    parser.add_argument("--minutes", type=float, default=20.0, help="real minutes that the command stage runs")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.here:
        (stage,) = options.stages
        return {"core": core, "app": app, "command": command}[stage](options)
    codes = [
        subprocess.run(
            [sys.executable, __file__, stage, "--here", "--days", str(options.days), "--minutes", str(options.minutes)],
            check=False,
        ).returncode
        for stage in options.stages or ("core", "app", "command")
    ]
    return 1 if any(codes) else 0


def core(options: argparse.Namespace) -> int:
    """Pass a snapshot per simulated second through the watchlist alone."""
    watchlist = Watchlist(estimate=estimate, is_running=lambda _: False)
    memory = MemorySampler(round(options.days * 86_400))
    for tick, snapshot in enumerate(simulated_snapshots(options.days, 1.0, watchlist)):
        watchlist.update(snapshot)
        memory.sample(tick)
    return memory.report("core")


def app(options: argparse.Namespace) -> int:
    """Draw a snapshot per ten simulated seconds in the real app, without a terminal."""
    return asyncio.run(_app(options.days))


async def _app(days: float) -> int:
    from vramtop.tui.app.app import BoardUpdated, VramtopApp

    watchlist = Watchlist(estimate=estimate, is_running=lambda _: False)
    memory = MemorySampler(round(days * 8_640))
    vramtop = VramtopApp(EmptySource(), watchlist)
    async with vramtop.run_test(size=(120, 40)) as pilot:
        for tick, snapshot in enumerate(simulated_snapshots(days, 10.0, watchlist)):
            vramtop.post_message(BoardUpdated(watchlist.update(snapshot)))
            await pilot.pause()
            if tick % 10 == 0:
                await pilot.press(KEYS[tick // 10 % len(KEYS)])
            memory.sample(tick)
    return memory.report("app")


def command(options: argparse.Namespace) -> int:
    """Run the installed command in a pseudo-terminal."""
    seconds = options.minutes * 60
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "vramtop.tui.cli"], stdin=follower, stdout=follower, stderr=follower
    )
    os.close(follower)
    watched = psutil.Process(process.pid)
    memory = MemorySampler(round(seconds), watched)
    keys = (b"\x1b[B", b"\x1b[A", b"s")  # cursor down, cursor up, sort
    written = ticks = 0
    while (now := time.monotonic() - started) < seconds and process.poll() is None:
        if select.select([leader], [], [], 0.2)[0]:
            written += len(os.read(leader, 65_536))
        if now >= ticks + 1:
            ticks += 1
            memory.sample(ticks)
            if ticks % 10 == 0:
                os.write(leader, keys[ticks // 10 % len(keys)])
    used = watched.cpu_times()
    if process.poll() is not None:
        print(f"command: exited early with code {process.returncode}")
        return 1
    process.terminate()
    process.wait()
    per_minute = (used.user + used.system) / (seconds / 60)
    print(f"command: {per_minute:.2f} CPU s per minute, {written / seconds:,.0f} bytes per second to the terminal")
    return memory.report("command")


class MemorySampler:
    """Samples the resident set of a process during a run.

    Args:
        ticks: number of ticks in the whole run.
        process: the process to sample; None: this one.
    """

    def __init__(self, ticks: int, process: psutil.Process | None = None) -> None:
        self._every = max(1, ticks // SAMPLES)
        self._process = process or psutil.Process()
        self._sizes: list[int] = []
        self._started = time.monotonic()

    def sample(self, tick: int) -> None:
        """Store the resident set at every n-th tick, about SAMPLES times per run."""
        if tick % self._every == 0:
            self._sizes.append(self._process.memory_info().rss)

    def report(self, stage: str) -> int:
        """Print the sizes and the verdict; return the exit code of the stage, 1 if memory grows."""
        eighth = len(self._sizes) // 8
        middle = statistics.median(self._sizes[4 * eighth : 5 * eighth])
        last = statistics.median(self._sizes[-eighth:])
        first = statistics.median(self._sizes[:eighth])
        seconds = time.monotonic() - self._started
        verdict = "flat" if last - middle <= MAX_GROWTH_BYTES else "GROWS"
        print(
            f"{stage}: {first / MIB:.1f} MiB in the first eighth, {middle / MIB:.1f} in the fifth, "
            f"{last / MIB:.1f} in the last ({(last - middle) / 1024:+,.0f} KiB): {verdict}; {seconds:.0f} s",
            flush=True,
        )
        return 0 if verdict == "flat" else 1


class EmptySource:
    """A source without snapshots: the stage posts the boards to the app itself."""

    def open(self) -> None:
        """Do nothing."""

    def read(self) -> Snapshot | None:
        """Return None: no new snapshot."""
        return None

    def close(self) -> None:
        """Do nothing."""


def simulated_snapshots(days: float, interval: float, watchlist: Watchlist) -> Iterator[Snapshot]:
    """Yield the snapshots of a simulated machine; add its runs to the watchlist and dismiss them an hour later."""
    generator = random.Random(0)  # noqa: S311 - every run simulates the same days
    source = Source(kind="nvml", host="soak", driver_version="580.95", cuda_version="13.0")
    pids = iter(range(10_000, 2**31))
    others = [
        [_background_process(next(pids), START_TIME, generator) for _ in range(BACKGROUND_PROCESSES_PER_GPU)]
        for _ in range(GPUS)
    ]
    runs: list[WatchedJob] = []
    for tick in range(round(days * 86_400 / interval)):
        now = START_TIME + tick * interval
        hour, second = divmod(tick * interval, 3600)
        if second < interval:
            for run in runs:
                watchlist.dismiss_runs(run.pids)
            runs = [_new_run(next(pids), now, round(hour), gpu) for gpu in range(0, GPUS, 2)]
            for run in runs:
                watchlist.add_run(run)
        if tick % 30 == 0:
            row = others[generator.randrange(GPUS)]
            row[generator.randrange(BACKGROUND_PROCESSES_PER_GPU)] = _background_process(next(pids), now, generator)
        lost = round(hour) % GPUS if 1800 <= second < 1860 else None
        gpus = tuple(_gpu(index, now, second, others[index], runs, lost == index) for index in range(GPUS))
        yield Snapshot(time=now, source=source, gpus=gpus)


def _gpu(
    index: int, now: float, second: float, others: Sequence[GpuProcess], runs: Sequence[WatchedJob], lost: bool
) -> GpuReading:
    """Return the reading of a GPU; those with an even index run a job for the first 50 minutes of each hour."""
    name, uuid = "NVIDIA H100 80GB HBM3", f"GPU-{index:08d}"
    if lost:
        fault = Fault(field=None, code="GPU_IS_LOST", message="the GPU no longer answers")
        return GpuReading(index=index, uuid=uuid, name=name, faults=(fault,))
    processes = [*others]
    if index % 2 == 0 and second < 3000:
        (pid, started) = runs[index // 2].pids[0]
        size = min(60.0, 5 + second / 2) * GIB if second < 600 or index else (20 + second / 100) * GIB
        command = f"python train.py --seed {pid}"
        processes.append(
            GpuProcess(pid=pid, start_time=started, used_bytes=round(size), kinds=("compute",), command=command)
        )
    used = sum(process.used_bytes or 0 for process in processes) + 20 * MIB
    return GpuReading(
        index=index,
        uuid=uuid,
        name=name,
        total_bytes=TOTAL_BYTES,
        reserved_bytes=RESERVED_BYTES,
        used_bytes=used,
        free_bytes=TOTAL_BYTES - RESERVED_BYTES - used,
        utilisation_percent=round(now) % 100,
        temperature_c=50 + round(now) % 20,
        power_w=300.0 + round(now) % 100,
        processes=tuple(sorted(processes, key=lambda process: -(process.used_bytes or 0))),
        read_at=now,
    )


def _background_process(pid: int, now: float, generator: random.Random) -> GpuProcess:
    """Return a process that belongs to no known job."""
    size = generator.randrange(100, 2000) * MIB
    command = f"python serve.py --port {pid}"
    return GpuProcess(pid=pid, start_time=now, used_bytes=size, kinds=("compute",), user="ana", command=command)


def _new_run(pid: int, now: float, hour: int, gpu: int) -> WatchedJob:
    """Return a new run; its micro-batch depends on the hour."""
    training = Training(micro_batch=1 + hour % 4, sequence_length=1024)
    job = Job(name=f"hour-{hour}-{gpu}", model=ModelSpec(id="meta-llama/Llama-3.1-8B"), training=training)
    return WatchedJob(job=job, pids=((pid, now),))


if __name__ == "__main__":
    raise SystemExit(main())
