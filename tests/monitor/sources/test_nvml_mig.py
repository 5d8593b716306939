"""MIG devices through the real pynvml with a scripted driver."""

import os
from pathlib import Path

import pynvml
import pytest
from fake_driver import FakeGpu, FakeMig, FakeProcess

from vramtop.monitor.sources.nvml.mig import LAYOUT_INTERVAL_SECONDS, MIG_MODE_INTERVAL_SECONDS
from vramtop.monitor.sources.recording import RecordingWriter, read_recording

GIB = 2**30
ME = os.getpid()
MIG_CALLS = ("nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId")


def read(source):
    (gpu,) = source.read().gpus
    return gpu


@pytest.fixture
def slots():
    """A GPU instance with two compute instances, an empty slot, and another GPU instance."""
    shared = {"total_bytes": 20 * GIB, "used_bytes": 5 * GIB, "name": "NVIDIA A100-SXM4-80GB MIG 1c.2g.20gb"}
    return [FakeMig("MIG-a", 3, 0, **shared), FakeMig("MIG-b", 3, 1, **shared), None, FakeMig("MIG-c", 9)]


def test_mig_devices_are_read_with_the_memory_of_their_gpu_instance(driver, source, slots, tmp_path: Path):
    held = [FakeProcess(ME, GIB, gpu_instance=9), FakeProcess(4194303, GIB, gpu_instance=7)]
    driver.gpus = [FakeGpu(mig=slots, processes=held)]
    source.open()
    snapshot = source.read()
    (gpu,) = snapshot.gpus
    assert [(d.uuid, d.gpu_instance, d.compute_instance, d.profile) for d in gpu.mig] == [
        ("MIG-a", 3, 0, "1c.2g.20gb"),
        ("MIG-b", 3, 1, "1c.2g.20gb"),
        ("MIG-c", 9, 0, "1g.10gb"),
    ]
    assert [(d.total_bytes, d.used_bytes, d.free_bytes) for d in gpu.mig[1:]] == [
        (20 * GIB, 5 * GIB, 15 * GIB),
        (10 * GIB, GIB, 9 * GIB),
    ]
    assert [device.reserved_bytes for device in gpu.mig] == [0, 0, 0]
    assert driver.calls["nvmlDeviceGetMemoryInfo_v2"] == 3  # for the GPU, and once for each GPU instance
    assert {process.pid: process.gpu_instance for process in gpu.processes} == {ME: 9, 4194303: None}
    with RecordingWriter(tmp_path / "mig.rec") as writer:
        writer.write(snapshot)
    assert next(read_recording(tmp_path / "mig.rec")).gpus == snapshot.gpus


@pytest.mark.parametrize(
    "figures", [{"total_bytes": 0, "used_bytes": 0}, {"total_bytes": 10 * GIB, "used_bytes": 11 * GIB}]
)
def test_impossible_figures_of_mig_devices_are_not_shown(first_reading, driver, figures):
    held = [FakeProcess(ME, GIB, gpu_instance=3)]
    gpu = first_reading(mig=[FakeMig("MIG-a", 3, 0, **figures), FakeMig("MIG-c", 9)], processes=held)
    assert [(device.total_bytes, device.used_bytes) for device in gpu.mig] == [(None, None), (10 * GIB, GIB)]
    assert gpu.reason("mig") == "the driver's figures for the memory of its MIG devices are implausible"


def test_a_gpu_without_mig_mode_is_queried_once(driver, source, clock):
    driver.gpus = [FakeGpu(processes=[FakeProcess(ME, GIB)])]
    source.open()
    for _ in range(3):
        gpu = read(source)
        assert (gpu.mig, gpu.processes[0].gpu_instance, gpu.faults) == (None, None, ())
        clock.advance(1000)
    assert driver.calls["nvmlDeviceGetMigMode"] == 1
    assert not any(driver.calls[call] for call in MIG_CALLS)


def test_mig_mode_switched_on_later_is_noticed(first_reading, driver, source, clock, slots):
    assert first_reading(mig=[]).mig is None
    driver.gpus[0].mig = slots
    assert read(source).mig is None
    clock.advance(MIG_MODE_INTERVAL_SECONDS)
    assert len(read(source).mig) == 3
    driver.gpus[0].mig = []
    clock.advance(MIG_MODE_INTERVAL_SECONDS)
    assert read(source).mig is None


def test_a_removed_device_is_noticed_at_once_and_a_new_one_soon(first_reading, driver, source, clock, slots):
    assert len(first_reading(mig=slots).mig) == 3
    listed = driver.calls["nvmlDeviceGetMaxMigDeviceCount"]
    assert len(read(source).mig) == 3
    assert driver.calls["nvmlDeviceGetMaxMigDeviceCount"] == listed
    slots[3] = None
    gpu = read(source)
    assert ([device.uuid for device in gpu.mig], gpu.faults) == (["MIG-a", "MIG-b"], ())
    slots[2] = FakeMig("MIG-d", 11)
    assert len(read(source).mig) == 2
    clock.advance(LAYOUT_INTERVAL_SECONDS)
    assert [device.uuid for device in read(source).mig] == ["MIG-a", "MIG-b", "MIG-d"]


@pytest.mark.parametrize("function", ["nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"])
def test_an_incomplete_list_of_devices_is_reported(first_reading, driver, slots, function):
    driver.fail(function, pynvml.NVML_ERROR_NO_PERMISSION)
    gpu = first_reading(mig=slots)
    assert gpu.mig == ()
    assert gpu.reason("mig") == "the driver does not let this user read its MIG devices"
    assert gpu.total_bytes


def test_an_old_driver_gives_the_memory_in_its_old_form(first_reading, driver, slots):
    driver.missing = {"nvmlDeviceGetMemoryInfo_v2"}
    gpu = first_reading(mig=slots)
    assert [device.free_bytes for device in gpu.mig] == [15 * GIB, 15 * GIB, 9 * GIB]
    assert gpu.reason("mig") is None


def test_refused_memory_is_unknown_with_a_fault(first_reading, driver, slots):
    driver.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_NO_PERMISSION)
    gpu = first_reading(mig=slots)
    assert {device.free_bytes for device in gpu.mig} == {None}
    assert gpu.reason("mig") == "the driver does not let this user read the memory of its MIG devices"


def test_a_lost_gpu_stays_one_reading(first_reading, driver, source, slots):
    assert first_reading(mig=slots).mig
    driver.fail("nvmlDeviceGetMigMode", pynvml.NVML_ERROR_GPU_IS_LOST)
    driver.lose(0)
    gpu = read(source)
    assert (gpu.mig, gpu.faults[0].code) == (None, "GPU_IS_LOST")


def test_processes_are_read_per_device_if_those_of_the_gpu_are_refused(first_reading, driver, source):
    held = [FakeProcess(ME, GIB, gpu_instance=9), FakeProcess(1, 2 * GIB, gpu_instance=3)]
    forbidden = "nvmlDeviceGetComputeRunningProcesses_v3"
    driver.fail_for_whole_gpus(forbidden, pynvml.NVML_ERROR_NO_PERMISSION)
    gpu = first_reading(mig=[FakeMig("MIG-a", 3), FakeMig("MIG-c", 9)], processes=held)
    assert [(row.pid, row.used_bytes, row.gpu_instance) for row in gpu.processes] == [(1, 2 * GIB, 3), (ME, GIB, 9)]
    assert gpu.reason("processes") is None
    driver.fail(forbidden, pynvml.NVML_ERROR_NO_PERMISSION)
    gpu = read(source)
    assert (gpu.processes, gpu.faults[-1].code) == (None, "NO_PERMISSION")


def test_a_process_is_in_its_compute_instance_even_if_only_the_devices_list_it(first_reading, driver, source, slots):
    held = [FakeProcess(ME, 2 * GIB, gpu_instance=3, compute_instance=1), FakeProcess(1, GIB, gpu_instance=3)]
    gpu = first_reading(mig=slots, processes=held)
    assert [(row.pid, row.gpu_instance, row.compute_instance) for row in gpu.processes] == [
        (ME, 3, 1),
        (1, 3, None),
    ]
    for call in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMemoryInfo_v2"):
        driver.fail_for_whole_gpus(call, pynvml.NVML_ERROR_NO_PERMISSION)
    gpu = read(source)
    assert (gpu.total_bytes, gpu.reason("processes")) == (None, None)
    assert [(row.pid, row.used_bytes, row.gpu_instance, row.compute_instance) for row in gpu.processes] == [
        (ME, 2 * GIB, 3, 1),
        (1, GIB, 3, 0),  # listed by both compute instances, and counted once
    ]
    assert gpu.read_at  # the time of the devices' memory figures


def test_lists_are_merged_within_an_instance_and_not_across(first_reading, slots):
    held = [
        FakeProcess(ME, 2 * GIB, gpu_instance=3),
        FakeProcess(ME, 3 * GIB, lists=("Graphics",), gpu_instance=3),
        FakeProcess(ME, GIB, lists=("MPSCompute",), gpu_instance=9),
    ]
    gpu = first_reading(mig=slots, processes=held)
    assert [(row.gpu_instance, row.used_bytes, row.kinds) for row in gpu.processes] == [
        (3, 3 * GIB, ("compute", "graphics")),
        (9, GIB, ("mps",)),
    ]


def test_an_entry_without_an_instance_is_the_same_process(first_reading, slots):
    held = [FakeProcess(ME, 2 * GIB), FakeProcess(ME, GIB, lists=("Graphics",), gpu_instance=9)]
    (row,) = first_reading(mig=slots, processes=held).processes
    assert (row.gpu_instance, row.used_bytes) == (9, 2 * GIB)


def test_no_process_holds_more_than_its_instance(first_reading, slots):
    (row,) = first_reading(mig=slots, processes=[FakeProcess(ME, 30 * GIB, gpu_instance=3)]).processes
    assert (row.used_bytes, row.note) == (None, "reported memory exceeds the GPU's")


def test_a_reused_device_handle_is_detected_by_its_memory(first_reading, source, slots):
    first_reading(mig=slots)
    slots[3] = FakeMig("MIG-z", 9, total_bytes=20 * GIB, name="NVIDIA A100-SXM4-80GB MIG 2g.20gb")
    device = read(source).mig[-1]
    assert (device.uuid, device.profile, device.total_bytes) == ("MIG-z", "2g.20gb", 20 * GIB)


def test_mig_mode_switched_off_leaves_no_devices(first_reading, driver, source, slots):
    assert first_reading(mig=slots).mig
    driver.gpus[0].mig = []
    driver.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_INVALID_ARGUMENT)
    driver.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_INVALID_ARGUMENT)
    assert read(source).mig is None


def test_names_of_mig_devices_have_no_control_characters(first_reading):
    (device,) = first_reading(mig=[FakeMig("MIG-\x1b]0;x\x07a", 3, name="A MIG 1g\x1b[31m.10gb\u202e")]).mig
    assert (device.uuid, device.profile) == ("MIG-a", "1g.10gb")
