"""Overhead of the probe in the training process, with confidence intervals.

Run by ``make bench-probe``; the exit code is 1 if a target is missed. Three figures:

- start: the difference in interpreter start-up time with and without the probe's folder in PYTHONPATH.
- publishing: the slowdown of a training loop on one thread, pinned to one core so that the probe's thread competes with
  it. Short segments with and without the probe run in random order. The probe publishes RATE times per second instead
  of once, and the slowdown is divided by RATE, which reduces the measurement noise by the same factor. Elapsed time is
  what users notice; processor time of the whole process excludes other load on the machine.
- marks: the cost of the calls that mark the beginning and the end of a step.

No GPU is needed: ``torch.cuda`` is replaced by a stand-in that returns a dictionary of allocator counters for eight
devices, one of them in use, as on a machine where each rank sees all GPUs.
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

MAX_START_MS = 10.0
MAX_LOOP_PERCENT = 0.5
RATE = 50
"""Samples per second while the slowdown is measured."""
BOOTSTRAP_SAMPLES = 4000
_COUNTERS = (
    *("allocation", "segment", "active", "inactive_split"),
    *("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"),
)
_POOLS, _STATISTICS = ("all", "small_pool", "large_pool"), ("current", "peak", "allocated", "freed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A median with its 95 % confidence interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def scaled(self, factor: float) -> "Interval":
        """Return the interval with all its values multiplied by a factor."""
        return Interval(median=self.median * factor, low=self.low * factor, high=self.high * factor)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the three figures, print them and return the exit code."""
    parser = argparse.ArgumentParser(description="Measure the overhead of the probe in the training process.")
    parser.add_argument(
        "--starts", type=int, default=100, help="pairs of interpreter starts, with and without the probe"
    )
    parser.add_argument("--pairs", type=int, default=100, help="pairs of loop segments, with and without the probe")
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a segment")
    parser.add_argument("--rate", type=float, default=RATE, help="samples per second while the slowdown is measured")
    options = parser.parse_args(argv)
    start = start_overhead_ms(options.starts)
    print(f"start          {start} ms more; target below {MAX_START_MS:g}")
    elapsed, processor, step_ms = publishing_overhead(options.pairs, options.seconds, options.rate)
    print(f"loop           {step_ms:.2f} ms per step, one thread on one core")
    print(f"publishing     {elapsed} % of elapsed time at one sample per second")
    print(f"               {processor} % of processor time")
    print(f"               {sample_us():.0f} us of the probe thread's processor time per sample, at one per second")
    mark_us = step_marks_us()
    mark_percent = mark_us / 10 / step_ms
    print(f"marks          {mark_us:.2f} us per step, {mark_percent:.3f} % of this loop")
    worst = max(elapsed.high, processor.high) + mark_percent
    print(f"total          at most {worst:.3f} % of the loop; target below {MAX_LOOP_PERCENT:g}")
    return 0 if start.high < MAX_START_MS and worst < MAX_LOOP_PERCENT else 1


def start_overhead_ms(pairs: int) -> Interval:
    """Return the milliseconds by which the probe's folder in PYTHONPATH delays the start of the interpreter."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with_probe = probed_environment(environ)
    start_seconds(with_probe), start_seconds(environ)  # the first runs write bytecode files
    differences = []
    for _ in range(pairs):
        order = [environ, with_probe]
        random.shuffle(order)
        taken = {id(each): start_seconds(each) for each in order}
        differences.append((taken[id(with_probe)] - taken[id(environ)]) * 1000)
    return bootstrap_median(differences)


def start_seconds(environ: dict[str, str]) -> float:
    """Return the elapsed time of an interpreter that runs an empty program."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", ""], env=environ, check=True)
    return time.perf_counter() - started


def publishing_overhead(pairs: int, seconds: float, rate: float) -> tuple[Interval, Interval, float]:
    """Measure the slowdown at one sample per second.

    Returns:
        Additional elapsed time in percent, additional processor time in percent, and milliseconds of a step without
        the probe.
    """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    replace_torch_cuda()
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
    return (
        bootstrap_median(elapsed).scaled(1 / rate),
        bootstrap_median(processor).scaled(1 / rate),
        statistics.median(plain),
    )


def segment(step: Callable[[], None], steps: int, rate: float | None) -> tuple[float, float]:
    """Return the elapsed and processor seconds of ``steps`` steps; the probe publishes at ``rate``, None: no probe."""
    if rate is not None:
        publisher.start(1 / rate)
    step()
    started, used = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    taken = time.perf_counter() - started, time.process_time() - used
    if rate is not None:
        publisher.stop()
    return taken


def sample_us(seconds: float = 10.0) -> float:
    """Return the microseconds of processor time that the probe's thread uses per sample.

    A training loop runs meanwhile, so that the thread finds the processor's caches cold.
    """
    step = training_step()
    publisher.start(1.0)
    clock = time.pthread_getcpuclockid(next(t.ident or 0 for t in threading.enumerate() if t.name == "vramtop-probe"))
    step()
    used, started = time.clock_gettime(clock), time.perf_counter()
    while time.perf_counter() - started < seconds:
        step()
    used = time.clock_gettime(clock) - used
    publisher.stop()
    return used / seconds * 1e6


def step_marks_us() -> float:
    """Return the microseconds of the two calls at the beginning and end of a step."""

    def marks() -> None:
        publisher.step_began()
        publisher.step_ended()

    return min(timeit.repeat(marks, number=10_000, repeat=20)) / 10_000 * 1e6


def training_step() -> Callable[[], None]:
    """Return a function that runs one training step of a small model."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(32, 256)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch), batch).backward()
        optimizer.step()

    return step


def replace_torch_cuda() -> None:
    """Replace ``torch.cuda`` by an object with eight devices; other attributes come from the real module."""
    real_cuda = torch.cuda

    class Cuda:
        uuid = "GPU"

        def __getattr__(self, name: str) -> Any:
            return getattr(real_cuda, name)

        is_initialized = staticmethod(lambda: True)
        device_count = staticmethod(lambda: 8)
        get_allocator_backend = staticmethod(lambda: "native")
        memory_stats_as_nested_dict = staticmethod(memory_stats)

        def get_device_properties(self, index: int) -> "Cuda":
            return self

    vars(torch)["cuda"] = Cuda()


def memory_stats(index: int) -> dict[str, Any]:
    """Return a new dictionary with as many entries as torch's ``memory_stats_as_nested_dict``."""
    figure = 0 if index else 20 << 30
    stats: dict[str, Any] = {
        counter: {pool: dict.fromkeys(_STATISTICS, figure) for pool in _POOLS} for counter in _COUNTERS
    }
    return {**stats, "num_alloc_retries": 0, "num_ooms": 0, "num_sync_all_streams": 0, "max_split_size": -1}


def bootstrap_median(figures: Sequence[float]) -> Interval:
    """Return the median and its 95 % confidence interval (percentile bootstrap)."""
    generator = random.Random(0)  # noqa: S311 - not for cryptography
    medians = sorted(statistics.median(generator.choices(figures, k=len(figures))) for _ in range(BOOTSTRAP_SAMPLES))
    low, high = medians[round(BOOTSTRAP_SAMPLES * 0.025)], medians[round(BOOTSTRAP_SAMPLES * 0.975) - 1]
    return Interval(median=statistics.median(figures), low=low, high=high)


if __name__ == "__main__":
    sys.exit(main())
