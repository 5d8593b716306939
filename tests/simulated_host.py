"""A program that runs vramtop on a made-up machine: ``simulated_host.py GPUS GIB PIDS WORD ...``.

Each GPU has so many GiB; the processes with these pids (separated by commas, or ``-``) hold 10 GiB, one per GPU.
"""

import sys
from pathlib import Path

import pynvml
from fake_driver import GIB, FakeDriver, FakeGpu, FakeProcess

from vramtop.tui.cli.main import main


def simulate(gpus: int, gib: int, pids: list[int]) -> None:
    """Give this process's NVML these GPUs."""
    driver = FakeDriver()
    for at in range(gpus):
        processes = [FakeProcess(pid, 10 * GIB) for pid in pids[at : at + 1]]
        used = GIB + 10 * GIB * len(processes)
        name = f"NVIDIA Simulated {gib}GB"
        driver.gpus.append(
            FakeGpu(name=name, uuid=f"GPU-{gib}-{at}", total_bytes=gib * GIB, used_bytes=used, processes=processes)
        )
    pynvml.nvmlLib = driver
    pynvml._nvmlGetFunctionPointer_cache = {}


def program(folder: Path, gpus: int, gib: int, pids: str = "-") -> Path:
    """Write a program named ``vramtop`` into a folder, which runs vramtop on such a machine."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "vramtop"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {gpus} {gib} {pids} "$@"\n')
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    count, size, listed, *words = sys.argv[1:]
    simulate(int(count), int(size), [] if listed == "-" else [int(pid) for pid in listed.split(",")])
    sys.exit(main(words))
