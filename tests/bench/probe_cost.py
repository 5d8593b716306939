"""What the probe of ``vramtop run`` costs the training process (``make bench-probe``).

- start: how much longer the interpreter takes to start with the probe's folder in PYTHONPATH.
- loop: processor time that the probe adds to a training loop on one thread, pinned to one core so that the probe's
  thread competes with it. Short segments with and without the probe run in random order. The probe publishes RATE times
  per second instead of once, and what it adds is divided by RATE, which reduces the noise by the same factor.

No GPU is needed: ``torch.cuda`` is replaced by a stand-in that returns a dictionary of allocator counters for eight
devices, one of them in use, as on a machine where each rank sees all GPUs.
"""

import os
import random
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from typing import Any

import torch

from vramtop.monitor.probe import publisher
from vramtop.monitor.probe.launch import probed_environment

PAIRS = 100
SEGMENT_SECONDS = 0.3
RATE = 50
"""Samples per second while the loop is measured."""
_COUNTERS = (
    *("allocation", "segment", "active", "inactive_split"),
    *("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"),
)
_POOLS, _STATISTICS = ("all", "small_pool", "large_pool"), ("current", "peak", "allocated", "freed")


def main() -> None:
    """Measure both figures and print them."""
    print(f"start  {_median_and_half(start_overhead_ms())} ms more")
    print(f"loop   {_median_and_half(loop_overhead_percent())} % of processor time at one sample per second")


def start_overhead_ms() -> list[float]:
    """Return by how many milliseconds the probe's folder in PYTHONPATH delays each start of the interpreter."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with_probe = probed_environment(environ)
    start_seconds(with_probe), start_seconds(environ)  # the first runs write bytecode files
    return [1000 * (start_seconds(with_probe) - start_seconds(environ)) for _ in range(PAIRS)]


def start_seconds(environ: dict[str, str]) -> float:
    """Return the elapsed time of an interpreter that runs an empty program."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", ""], env=environ, check=True)
    return time.perf_counter() - started


def loop_overhead_percent() -> list[float]:
    """Return by how many percent one sample per second makes each segment of a loop dearer."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    replace_torch_cuda()
    publisher.publish_facts(
        trainer={f"argument_{i}": i for i in range(130)}, model={"config": {f"key_{i}": i for i in range(60)}}
    )
    step, added = training_step(), []
    steps = max(1, round(SEGMENT_SECONDS / min(timeit.repeat(step, number=10, repeat=20)) * 10))
    for _ in range(PAIRS):
        order = [True, False]
        random.shuffle(order)
        taken = {probed: segment(step, steps, probed=probed) for probed in order}
        added.append((taken[True] / taken[False] - 1) * 100 / RATE)
    return added


def segment(step: Callable[[], None], steps: int, *, probed: bool) -> float:
    """Return the processor seconds of so many steps."""
    if probed:
        publisher.start(1 / RATE)
    step()
    used = time.process_time()
    for _ in range(steps):
        publisher.step_began()
        step()
        publisher.step_ended()
    used = time.process_time() - used
    if probed:
        publisher.stop()
    return used


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


def _median_and_half(figures: list[float]) -> str:
    low, median, high = statistics.quantiles(figures, n=4)
    return f"{median:.3f} (half of all: {low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
