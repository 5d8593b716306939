"""Does memory stay flat? Two simulated days at an accelerated clock, and the real command for as long as asked.

Run by ``make soak``; exit code 1 where memory grows. Three stages, each in a process of its own:

* ``core``: a machine of eight GPUs whose jobs start, load, train, end and are dismissed every simulated hour, whose
  other processes come and go, and whose GPUs get lost and come back: 172,800 snapshots through the watchlist;
* ``app``: the same days, a snapshot every ten seconds, through the real app, which draws each of them at 120x40,
  with keys;
* ``command``: ``vramtop`` in a pseudo-terminal against whatever libnvidia-ml.so.1 the loader finds, with a key every
  ten seconds.

Growth is the resident set's in the run's second half: what its last eighth holds more than the eighth that follows its
middle, each by its median. One arena of Python's allocator (1 MiB) is what a heap that does not grow may differ by.
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
from vramtop.monitor.snapshot.snapshot import Fault, GpuProcess, GpuReading, Snapshot, Source, WatchedJob

DAYS = 2
GPUS, BACKGROUND = 8, 6
CARD = 80 * GIB
RESERVED = GIB // 2
START = 1_800_000_000.0
KEYS = ("down", "up", "s", "slash", "escape", "f", "escape", "question_mark", "escape", "t", "escape")
ALLOWED_BYTES = MIB
SAMPLES = 400


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages that were asked for, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("stages", nargs="*", choices=("core", "app", "command", []), help="all when left out")
    parser.add_argument("--days", type=float, default=DAYS, help="simulated days")
    parser.add_argument("--minutes", type=float, default=20.0, help="real minutes of the command")
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
    """The watchlist alone, a snapshot a second."""
    watchlist = Watchlist(estimate=estimate, is_running=lambda _: False)
    held = Held(round(options.days * 86_400))
    for at, snapshot in enumerate(machine(options.days, 1.0, watchlist)):
        watchlist.update(snapshot)
        held.look(at)
    return held.verdict("core")


def app(options: argparse.Namespace) -> int:
    """The real app, drawn without a terminal."""
    return asyncio.run(_app(options.days))


async def _app(days: float) -> int:
    from vramtop.tui.app.app import BoardUpdated, VramtopApp

    watchlist = Watchlist(estimate=estimate, is_running=lambda _: False)
    held = Held(round(days * 8_640))
    shown = VramtopApp(Silent(), watchlist)
    async with shown.run_test(size=(120, 40)) as pilot:
        for at, snapshot in enumerate(machine(days, 10.0, watchlist)):
            shown.post_message(BoardUpdated(watchlist.update(snapshot)))
            await pilot.pause()
            if at % 10 == 0:
                await pilot.press(KEYS[at // 10 % len(KEYS)])
            held.look(at)
    return held.verdict("app")


def command(options: argparse.Namespace) -> int:
    """The installed command in a terminal."""
    seconds = options.minutes * 60
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "vramtop.tui.cli"], stdin=follower, stdout=follower, stderr=follower
    )
    os.close(follower)
    watched = psutil.Process(process.pid)
    held = Held(round(seconds), watched)
    keys = (b"\x1b[B", b"\x1b[A", b"s")
    written = ticks = 0
    while (now := time.monotonic() - started) < seconds and process.poll() is None:
        if select.select([leader], [], [], 0.2)[0]:
            written += len(os.read(leader, 65_536))
        if now >= ticks + 1:
            ticks += 1
            held.look(ticks)
            if ticks % 10 == 0:
                os.write(leader, keys[ticks // 10 % len(keys)])
    used = watched.cpu_times()
    if process.poll() is not None:
        print(f"command: it ended by itself, with {process.returncode}")
        return 1
    process.terminate()
    process.wait()
    per_minute = (used.user + used.system) / (seconds / 60)
    print(f"command: {per_minute:.2f} CPU s a minute, {written / seconds:,.0f} bytes a second to the terminal")
    return held.verdict("command")


class Held:
    """The resident set over a run.

    Args:
        ticks: how many there will be.
        process: whose; this one when left out.
    """

    def __init__(self, ticks: int, process: psutil.Process | None = None) -> None:
        self._every = max(1, ticks // SAMPLES)
        self._process = process or psutil.Process()
        self._sizes: list[int] = []
        self._begun = time.monotonic()

    def look(self, tick: int) -> None:
        """Note the size now and then."""
        if tick % self._every == 0:
            self._sizes.append(self._process.memory_info().rss)

    def verdict(self, stage: str) -> int:
        """Print what was seen; 1: memory grows."""
        eighth = len(self._sizes) // 8
        middle = statistics.median(self._sizes[4 * eighth : 5 * eighth])
        last = statistics.median(self._sizes[-eighth:])
        first = statistics.median(self._sizes[:eighth])
        seconds = time.monotonic() - self._begun
        word = "flat" if last - middle <= ALLOWED_BYTES else "GROWS"
        print(
            f"{stage}: {first / MIB:.1f} MiB in the first eighth, {middle / MIB:.1f} after the middle, "
            f"{last / MIB:.1f} in the last ({(last - middle) / 1024:+,.0f} KiB): {word}; {seconds:.0f} s",
            flush=True,
        )
        return 0 if word == "flat" else 1


class Silent:
    """A source that has nothing to say: the snapshots come from the loop."""

    def open(self) -> None:
        """Nothing to open."""

    def read(self) -> Snapshot | None:
        """Nothing new."""
        return None

    def close(self) -> None:
        """Nothing to close."""


def machine(days: float, interval: float, watchlist: Watchlist) -> Iterator[Snapshot]:
    """The snapshots of some days, with their jobs made known to the watchlist and dismissed again."""
    chance = random.Random(0)  # noqa: S311 - the same days in every run
    source = Source(kind="nvml", host="soak", driver_version="580.95", cuda_version="13.0")
    pids = iter(range(10_000, 2**31))
    others = [[_other(next(pids), START, chance) for _ in range(BACKGROUND)] for _ in range(GPUS)]
    runs: list[WatchedJob] = []
    for tick in range(round(days * 86_400 / interval)):
        now = START + tick * interval
        hour, second = divmod(tick * interval, 3600)
        if second < interval:
            for run in runs:
                watchlist.dismiss_runs(run.pids)
            runs = [_begin(next(pids), now, round(hour), gpu) for gpu in range(0, GPUS, 2)]
            for run in runs:
                watchlist.add_run(run)
        if tick % 30 == 0:
            row = others[chance.randrange(GPUS)]
            row[chance.randrange(BACKGROUND)] = _other(next(pids), now, chance)
        lost = round(hour) % GPUS if 1800 <= second < 1860 else None
        gpus = tuple(_gpu(index, now, second, others[index], runs, lost == index) for index in range(GPUS))
        yield Snapshot(time=now, source=source, gpus=gpus)


def _gpu(
    index: int, now: float, second: float, others: Sequence[GpuProcess], runs: Sequence[WatchedJob], lost: bool
) -> GpuReading:
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
        total_bytes=CARD,
        reserved_bytes=RESERVED,
        used_bytes=used,
        free_bytes=CARD - RESERVED - used,
        utilisation_percent=round(now) % 100,
        temperature_c=50 + round(now) % 20,
        power_w=300.0 + round(now) % 100,
        processes=tuple(sorted(processes, key=lambda process: -(process.used_bytes or 0))),
        read_at=now,
    )


def _other(pid: int, now: float, chance: random.Random) -> GpuProcess:
    """A process that nobody knows the job of."""
    size = chance.randrange(100, 2000) * MIB
    command = f"python serve.py --port {pid}"
    return GpuProcess(pid=pid, start_time=now, used_bytes=size, kinds=("compute",), user="ana", command=command)


def _begin(pid: int, now: float, hour: int, gpu: int) -> WatchedJob:
    training = Training(micro_batch=1 + hour % 4, sequence_length=1024)
    job = Job(name=f"hour-{hour}-{gpu}", model=ModelSpec(id="meta-llama/Llama-3.1-8B"), training=training)
    return WatchedJob(job=job, pids=((pid, now),))


if __name__ == "__main__":
    raise SystemExit(main())
