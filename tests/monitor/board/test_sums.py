"""Figures add up whatever the driver reports: random machines are read through the real pynvml."""

import contextlib
import os
from dataclasses import dataclass
from typing import Any

import pynvml
from fake_driver import FakeGpu, FakeProcess
from hypothesis import given, settings, strategies as st

from vramtop.monitor.snapshot.snapshot import GpuReading, Snapshot
from vramtop.monitor.sources.nvml.device_calls import NoDriverError
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource
from vramtop.monitor.sources.recording import RecordingWriter, read_recording

GIB = 2**30
PIDS = (os.getpid(), 1, 2**22 - 1, 2**22 - 2, 77_777_777)
SIZES = st.one_of(st.integers(0, 90 * GIB), st.sampled_from([0, 1, 2**64 - 2, 80 * GIB, 20 * GIB]))
CODES = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_UNKNOWN,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_TIMEOUT,
)
CALLS = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetTemperature",
    "*",
)
FIGURES = ("total_bytes", "used_bytes", "free_bytes", "reserved_bytes", "unattributed_bytes", "utilisation_percent")


@dataclass
class Moment:
    """The driver's answers for its one GPU at one tick."""

    memory: tuple[int, int, int, int | None]
    """Total, reserved, used, and free; None: what is left."""
    processes: list[tuple[int, int | None, tuple[str, ...]]]
    faults: list[tuple[str, int]]


def memories():
    """Plausible GPUs, and GPUs whose figures make no sense."""
    true = st.tuples(st.integers(0, 4 * GIB), st.integers(0, 76 * GIB)).map(lambda m: (80 * GIB, *m, None))
    odd = st.tuples(SIZES, SIZES, SIZES, st.none() | SIZES)
    return st.one_of(true, true, odd)


def moments():
    lists = st.lists(st.sampled_from(["Compute", "Graphics", "MPSCompute"]), min_size=1, unique=True).map(tuple)
    process = st.tuples(st.sampled_from(PIDS), st.none() | SIZES, lists)
    faults = st.lists(st.tuples(st.sampled_from(CALLS), st.sampled_from(CODES)), max_size=3)
    return st.builds(Moment, memories(), st.lists(process, max_size=6), faults)


def play(driver: Any, clock: Any, story: list[Moment]) -> list[Snapshot]:
    """The snapshots of a story, one tick each, five seconds apart."""
    driver.gpus, driver.errors = [FakeGpu()], {}
    source = NvmlSource(clock=clock, now=lambda: 1_800_000_000.0 + clock.time)
    source.open()
    snapshots = []
    for moment in story:
        gpu, driver.errors = driver.gpus[0], {}
        gpu.total_bytes, gpu.reserved_bytes, gpu.used_bytes, gpu.free_bytes = moment.memory
        gpu.processes = [FakeProcess(*process) for process in moment.processes]
        if gpu.free < 0:  # NVML's sizes are unsigned
            gpu.free_bytes = 0
        for call, code in moment.faults:
            driver.fail(call, code, 0)
        clock.advance(5)
        with contextlib.suppress(NoDriverError):
            snapshots.append(source.read())
    source.close()
    return snapshots


def read_one(clock: Any) -> GpuReading:
    with contextlib.closing(NvmlSource(clock=clock)) as source:
        source.open()
        (reading,) = source.read().gpus
    return reading


def check_sums(gpu: GpuReading) -> None:
    total, reserved, used, free = gpu.total_bytes, gpu.reserved_bytes, gpu.used_bytes, gpu.free_bytes
    if any(fault.code == "HOST_MEMORY" for fault in gpu.faults):  # the rest of the host's memory is used by others
        assert total > 0
        assert total >= free
        assert used is None or used == gpu.attributed_bytes
    elif total is not None:
        assert total > 0
        assert total == (reserved or 0) + used + free  # without a reserve (v1) the used bytes include it
    else:
        assert used is free is reserved is None
    if gpu.unattributed_bytes is not None:
        assert gpu.attributed_bytes + gpu.unattributed_bytes == used
    for name in FIGURES:
        figure = getattr(gpu, name)
        assert figure is None or figure >= 0
    for process in gpu.processes or ():
        assert process.used_bytes is None or 0 < process.used_bytes <= (total or process.used_bytes)
        assert process.used_bytes is not None or process.note


def check_reasons(gpu: GpuReading) -> None:
    """Every unknown figure has its reason."""
    for name in ("total_bytes", "used_bytes", "free_bytes", "reserved_bytes", "processes", "utilisation_percent"):
        if getattr(gpu, name) is None:
            assert gpu.reason(name), name
    if gpu.unattributed_bytes is None and gpu.used_bytes is not None and gpu.processes is not None:
        unknown = any(process.used_bytes is None for process in gpu.processes)
        assert unknown or gpu.reason("unattributed_bytes")


@settings(max_examples=60)
@given(story=st.lists(moments(), min_size=1, max_size=3))
def test_figures_add_up_and_are_recorded_whatever_the_driver_reports(driver, clock, tmp_path, story):
    snapshots = play(driver, clock, story)
    for snapshot in snapshots:
        (gpu,) = snapshot.gpus
        check_sums(gpu)
        check_reasons(gpu)
    with RecordingWriter(tmp_path / "run.jsonl.gz", overwrite=True) as writer:
        for snapshot in snapshots:
            writer.write(snapshot)
    assert not snapshots or list(read_recording(tmp_path / "run.jsonl.gz")) == snapshots


def test_processes_that_grow_between_two_calls_are_not_implausible(driver, clock, monkeypatch):
    (gpu,) = driver.gpus = [FakeGpu(used_bytes=20 * GIB, processes=[FakeProcess(PIDS[0], 20 * GIB + 4096)])]
    answer = type(driver)._processes

    def grow(self: Any, name: str, *args: Any) -> int:
        gpu.used_bytes = 21 * GIB
        return answer(self, name, *args)

    monkeypatch.setattr(type(driver), "_processes", grow)
    reading = read_one(clock)
    assert reading.used_bytes == 21 * GIB
    assert reading.unattributed_bytes == GIB - 4096
    assert reading.faults == ()


def test_processes_larger_than_the_used_memory_are_implausible(driver, clock):
    driver.gpus = [FakeGpu(used_bytes=20 * GIB, processes=[FakeProcess(PIDS[0], 30 * GIB)])]
    reading = read_one(clock)
    assert reading.used_bytes == 20 * GIB
    assert reading.unattributed_bytes is None
    assert "add up to 30.0 GiB, more than the 20.0 GiB" in reading.reason("unattributed_bytes")
