"""The NVML source of a scripted driver."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from builders import FakeClock
from fake_driver import FakeDriver, FakeGpu

from vramtop.monitor.snapshot.demand import CurrentDemand
from vramtop.monitor.snapshot.snapshot import GpuReading
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource


@pytest.fixture
def demand() -> CurrentDemand:
    return CurrentDemand()


@pytest.fixture
def source(driver: FakeDriver, clock: FakeClock, demand: CurrentDemand) -> Iterator[NvmlSource]:
    """A source that the test opens after it has set the driver's GPUs."""
    source = NvmlSource(clock=clock, now=lambda: 1_800_000_000.0, demand=demand)
    yield source
    source.close()


@pytest.fixture
def first_reading(driver: FakeDriver, source: NvmlSource) -> Callable[..., GpuReading]:
    """Give the driver one GPU with these facts, open the source, and return its first reading."""

    def read(**facts: Any) -> GpuReading:
        driver.gpus = [FakeGpu(**facts)]
        source.open()
        (gpu,) = source.read().gpus
        return gpu

    return read
