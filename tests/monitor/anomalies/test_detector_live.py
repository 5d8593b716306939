"""Anomalies of real processes on a scripted driver's GPUs, found through /proc."""

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fake_driver import FakeGpu, FakeProcess

from vramtop.monitor.anomalies.anomaly import Anomaly
from vramtop.monitor.anomalies.detector import AnomalyDetector
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource

GIB = 2**30
CHILDREN = """\
import multiprocessing, os, sys, time
def child():
    os.write(1, str(os.getpid()).encode() + bytes([10]))
    time.sleep(60)
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    processes = [context.Process(target=child, daemon=True) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
"""
LOADER = """\
import os, time
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, at):
        os.write(1, str(os.getpid()).encode() + bytes([10]))
        time.sleep(60)
if __name__ == "__main__":
    list(DataLoader(Numbers(), num_workers=2))
"""


@pytest.fixture
def start(start_program: Any, tmp_path: Path) -> Any:
    """Start a script, and return its pid and those of its two children, which each print their own."""

    def run(script: str, *words: str) -> tuple[int, list[int]]:
        (tmp_path / "train.py").write_text(script)
        process = start_program([sys.executable, "train.py", *words], cwd=tmp_path, stderr=None)
        return process.pid, sorted(int(process.stdout.readline()) for _ in range(2))

    return run


def scan() -> tuple[Anomaly, ...]:
    """Return the anomalies five minutes from now, when all processes have been running for a while."""
    source = NvmlSource(now=lambda: time.time() + 300)
    source.open()
    try:
        return AnomalyDetector(min_duration_seconds=0).update(source.read())
    finally:
        source.close()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_children_with_a_cuda_context_are_reported(driver: Any, start: Any, method: str) -> None:
    parent, children = start(CHILDREN, method)
    rows = [FakeProcess(parent, 18 * GIB), *(FakeProcess(pid, GIB // 2) for pid in children)]
    driver.gpus = [FakeGpu(processes=rows, used_bytes=19 * GIB)]
    (found,) = scan()
    assert (found.kind, found.pids, found.about, found.held_bytes) == ("helpers", tuple(children), (parent,), GIB)


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_torch_data_loader_workers_are_recognised_by_name(driver: Any, start: Any) -> None:
    parent, workers = start(LOADER)
    rows = [FakeProcess(parent, 18 * GIB), *(FakeProcess(pid, 3 * GIB) for pid in workers)]
    driver.gpus = [FakeGpu(processes=rows, used_bytes=24 * GIB)]
    (found,) = scan()
    assert found.sentence.startswith(f"2 data loader workers of process {parent} ")
    assert "hold GPU memory each: 6.0 GiB" in found.sentence
