"""What the probe costs the program that it watches, with confidence intervals.

Run by ``make bench-probe``; exit code 1 where a target is missed. Three figures:

- start: the interpreter's start with the probe's folder in PYTHONPATH and without, in turns.
- publishing: a training loop on one thread, pinned to one core so that the probe's thread takes its time from the loop,
  in short segments with and without the probe, in random order. The probe publishes RATE times as often as it would,
  and the loss is divided by that: what remains of the machine's noise shrinks with it. Elapsed time is what users see;
  processor time of the whole process leaves out what other programs on this machine do.
- marks: what a step costs that says when it begins and ends.

torch's CUDA part is a stand-in with its dictionary of counters (there is no need for a GPU here), for eight devices of
which one is used, as on a machine where each rank sees all GPUs.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import threading
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vramtop.monitor.probe import publisher
from vramtop.monitor.probe.launch import probed_environment

START_TARGET_MS = 10.0
LOOP_TARGET_PERCENT = 0.5
RATE = 50
RESAMPLES = 4000
_KINDS = ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes")
_MORE = ("inactive_split_bytes", "requested_bytes")
_POOLS, _FIGURES = ("all", "small_pool", "large_pool"), ("current", "peak", "allocated", "freed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A median with its 95 % confidence interval."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def times(self, factor: float) -> "Interval":
        """In another unit."""
        return Interval(middle=self.middle * factor, low=self.low * factor, high=self.high * factor)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all three and print them."""
    parser = argparse.ArgumentParser(description="What the probe costs the program that it watches.")
    parser.add_argument("--starts", type=int, default=100, help="pairs of interpreter starts")
    parser.add_argument("--pairs", type=int, default=100, help="pairs of segments of the loop")
    parser.add_argument("--seconds", type=float, default=0.3, help="seconds of a segment")
    parser.add_argument("--rate", type=float, default=RATE, help="samples a second while the loss is measured")
    options = parser.parse_args(argv)
    started = starts(options.starts)
    print(f"start          {started} ms more; target below {START_TARGET_MS:g}")
    elapsed, processor, step_ms = publishing(options.pairs, options.seconds, options.rate)
    print(f"loop           {step_ms:.2f} ms a step, one thread on one core")
    print(f"publishing     {elapsed} % of elapsed time at one sample a second")
    print(f"               {processor} % of processor time")
    print(f"               {publish_us():.0f} us of the thread's processor time a sample, at one a second")
    mark_us = marks_us()
    marked = mark_us / 10 / step_ms
    print(f"marks          {mark_us:.2f} us a step, {marked:.3f} % of this loop")
    worst = max(elapsed.high, processor.high) + marked
    print(f"in all         at most {worst:.3f} % of the loop; target below {LOOP_TARGET_PERCENT:g}")
    return 0 if started.high < START_TARGET_MS and worst < LOOP_TARGET_PERCENT else 1


def starts(pairs: int) -> Interval:
    """Milliseconds that the start takes longer with the probe's folder in PYTHONPATH."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with_probe = probed_environment(environ)
    compiled(with_probe), compiled(environ)  # first runs write what is compiled
    differences = []
    for _ in range(pairs):
        order = [environ, with_probe]
        random.shuffle(order)
        taken = {id(each): compiled(each) for each in order}
        differences.append((taken[id(with_probe)] - taken[id(environ)]) * 1000)
    return interval(differences)


def compiled(environ: dict[str, str]) -> float:
    """Seconds that an interpreter takes that does nothing."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", ""], env=environ, check=True)
    return time.perf_counter() - began


def publishing(pairs: int, seconds: float, rate: float) -> tuple[Interval, Interval, float]:
    """Loss in percent at one sample a second: of elapsed time, of processor time; milliseconds of a step without it."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    pretend_cuda()
    publisher.publish_facts(
        trainer={f"argument_{i}": i for i in range(130)}, model={"config": {f"key_{i}": i for i in range(60)}}
    )
    step = training_step()
    steps = max(1, round(seconds / min(timeit.repeat(step, number=10, repeat=20)) * 10))
    elapsed, processor, plain = [], [], []
    for _ in range(pairs):
        order = [True, False]
        random.shuffle(order)
        taken = {probed: segment(step, steps, rate if probed else None) for probed in order}
        elapsed.append((taken[True][0] / taken[False][0] - 1) * 100)
        processor.append((taken[True][1] / taken[False][1] - 1) * 100)
        plain.append(taken[False][0] / steps * 1000)
    return interval(elapsed).times(1 / rate), interval(processor).times(1 / rate), statistics.median(plain)


def segment(step: Callable[[], None], steps: int, rate: float | None) -> tuple[float, float]:
    """Elapsed and processor seconds of some steps, with the probe's thread at work or without it."""
    if rate is not None:
        publisher.start(1 / rate)
    step()
    began, used = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    taken = time.perf_counter() - began, time.process_time() - used
    if rate is not None:
        publisher.stop()
    return taken


def publish_us(seconds: float = 10.0) -> float:
    """Microseconds of processor time that the probe's thread takes for a sample, beside a loop that keeps it cold."""
    step = training_step()
    publisher.start(1.0)
    clock = time.pthread_getcpuclockid(next(t.ident or 0 for t in threading.enumerate() if t.name == "vramtop-probe"))
    step()
    used, began = time.clock_gettime(clock), time.perf_counter()
    while time.perf_counter() - began < seconds:
        step()
    used = time.clock_gettime(clock) - used
    publisher.stop()
    return used / seconds * 1e6


def marks_us() -> float:
    """Microseconds of the calls at a step's begin and end."""

    def marks() -> None:
        publisher.step_began()
        publisher.step_ended()

    return min(timeit.repeat(marks, number=10_000, repeat=20)) / 10_000 * 1e6


def training_step() -> Callable[[], None]:
    """One step of a small model."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(32, 256)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch), batch).backward()
        optimizer.step()

    return step


def pretend_cuda() -> None:
    """Put a module in torch.cuda's place that has devices, and all else from the true one."""
    true = torch.cuda

    class Cuda:
        uuid = "GPU"

        def __getattr__(self, name: str) -> Any:
            return getattr(true, name)

        is_initialized = staticmethod(lambda: True)
        device_count = staticmethod(lambda: 8)
        get_allocator_backend = staticmethod(lambda: "native")
        memory_stats_as_nested_dict = staticmethod(memory_stats)

        def get_device_properties(self, index: int) -> "Cuda":
            return self

    vars(torch)["cuda"] = Cuda()


def memory_stats(index: int) -> dict[str, Any]:
    """As many entries as torch's, made anew at each call, as torch does."""
    figure = 0 if index else 20 << 30
    stats: dict[str, Any] = {
        kind: {pool: dict.fromkeys(_FIGURES, figure) for pool in _POOLS} for kind in (*_KINDS, *_MORE)
    }
    return {**stats, "num_alloc_retries": 0, "num_ooms": 0, "num_sync_all_streams": 0, "max_split_size": -1}


def interval(figures: Sequence[float]) -> Interval:
    """The median, and between which values it lies with 95 % confidence (bootstrap)."""
    chance = random.Random(0)  # noqa: S311 - no secret
    medians = sorted(statistics.median(chance.choices(figures, k=len(figures))) for _ in range(RESAMPLES))
    low, high = medians[round(RESAMPLES * 0.025)], medians[round(RESAMPLES * 0.975) - 1]
    return Interval(middle=statistics.median(figures), low=low, high=high)


if __name__ == "__main__":
    sys.exit(main())
