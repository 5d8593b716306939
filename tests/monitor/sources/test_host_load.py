"""The host's load from files of /proc and of a control group."""

import os
from pathlib import Path

import pytest

from vramtop.monitor.sources.host_load_source import HostLoadReader

GIB = 2**30
MEMINFO = "MemTotal: 67108864 kB\nMemAvailable: 50331648 kB\nSwapTotal: 8388608 kB\nSwapFree: 6291456 kB\nHuge: 0\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    folder.mkdir()
    (folder / "meminfo").write_text(MEMINFO)
    (folder / "stat").write_text("cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 2 3 4 5\n")
    return folder


def test_the_processors_are_measured_between_two_readings(proc: Path, tmp_path: Path) -> None:
    reader = HostLoadReader(proc, tmp_path)
    assert reader.read().cpu_percent is None
    (proc / "stat").write_text("cpu  150 0 125 725 100 0 0 0 99 0\n")
    load = reader.read()
    assert (load.cpu_percent, load.cpus, load.cpu_limited) == (75.0, os.cpu_count(), False)
    assert (load.ram_used_bytes, load.ram_total_bytes, load.ram_limited) == (16 * GIB, 64 * GIB, False)
    assert (load.swap_used_bytes, load.swap_total_bytes) == (2 * GIB, 8 * GIB)
    assert load.load is not None


def test_a_container_is_measured_by_its_own_limits(proc: Path, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 1000000\nuser_usec 7\n")
    (tmp_path / "memory.max").write_text(f"{8 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{5 * GIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {GIB}\n")
    times = iter([10.0, 14.0])
    reader = HostLoadReader(proc, tmp_path, clock=lambda: next(times))
    reader.read()
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\n")
    load = reader.read()
    assert (load.cpu_percent, load.cpus, load.cpu_limited) == (75.0, 0.5, True)
    assert (load.ram_used_bytes, load.ram_total_bytes, load.ram_limited) == (4 * GIB, 8 * GIB, True)


def test_what_cannot_be_read_is_unknown_and_not_0(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_bytes(b"MemTotal: \xff kB")
    load = HostLoadReader(tmp_path, tmp_path).read()
    assert load.ram_total_bytes is load.ram_used_bytes is load.swap_total_bytes is load.cpu_percent is None
