"""Utilisation by process, through the real pynvml with a scripted driver."""

import os

import pynvml
import pytest
from fake_driver import FakeGpu, FakeMig, FakeProcess

from vramtop.monitor.snapshot.demand import Demand

GIB = 2**30
ME, PARENT = os.getpid(), os.getppid()
BOTH = frozenset({"sm_percent", "bandwidth_percent"})
CALL = "nvmlDeviceGetProcessUtilization"


def figures(source):
    return {process.pid: process.figures for _, process in source.read().processes()}


def test_the_driver_is_asked_only_for_what_is_shown(driver, source, demand):
    driver.gpus = [
        FakeGpu(processes=[FakeProcess(ME, GIB, utilisation=(48, 30)), FakeProcess(PARENT, GIB)]),
        FakeGpu(uuid="GPU-1", processes=[FakeProcess(4_000_000, GIB, utilisation=(7, 4))]),
    ]
    source.open()
    before = source.read()
    assert not driver.calls[CALL]
    assert all(process.figures is None for _, process in before.processes())

    demand.value = Demand(process_figures=BOTH)
    found = figures(source)
    assert driver.calls[CALL] == 4  # the size and the samples, on two GPUs
    assert (found[ME].sm_percent, found[ME].bandwidth_percent) == (48, 30)
    assert found[PARENT].sm_percent is None
    assert found[PARENT].fault("sm_percent").message.startswith("the driver has no sample of this process")

    demand.value = Demand()
    assert set(figures(source).values()) == {None}
    assert driver.calls[CALL] == 4


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "this GPU does not report the utilisation by process"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "the driver does not let this user read the utilisation by process"),
        (pynvml.NVML_ERROR_NOT_FOUND, "the driver has no sample"),
        (pynvml.NVML_ERROR_UNKNOWN, "the driver could not read the utilisation by process (UNKNOWN)"),
    ],
    ids=["not supported", "no permission", "no sample", "WSL"],
)
def test_a_refusal_is_the_reason_and_never_0(driver, source, demand, error, reason):
    driver.gpus = [FakeGpu(processes=[FakeProcess(ME, GIB, utilisation=(48, 30))])]
    driver.fail(CALL, error)
    demand.value = Demand(process_figures=BOTH)
    source.open()
    (found,) = figures(source).values()
    assert (found.sm_percent, found.bandwidth_percent) == (None, None)
    assert found.fault("sm_percent").message.startswith(reason)


def test_implausible_samples_and_mig_devices_have_no_figures(driver, source, demand):
    driver.gpus = [
        FakeGpu(processes=[FakeProcess(ME, GIB, utilisation=(4_000_000, 30))]),
        FakeGpu(
            uuid="GPU-1",
            mig=[FakeMig("MIG-1", 3)],
            processes=[FakeProcess(PARENT, GIB, gpu_instance=3, utilisation=(1, 1))],
        ),
    ]
    demand.value = Demand(process_figures=BOTH)
    source.open()
    found = figures(source)
    assert found[ME].fault("sm_percent").code == "IMPLAUSIBLE"
    assert "MIG mode" in found[PARENT].fault("sm_percent").message
    assert driver.calls[CALL] == 2  # none for the GPU in MIG mode
