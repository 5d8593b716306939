"""NVML through the real pynvml with a scripted driver."""

import os
import shutil

import pynvml
import pytest
from fake_driver import FakeGpu, FakeMig, FakeProcess

from vramtop.monitor.sources.nvml import device_calls, memory
from vramtop.monitor.sources.nvml.device import MODE_INTERVAL_SECONDS, RETRY_LOST_SECONDS
from vramtop.monitor.sources.nvml.device_calls import RETRY_REFUSED_SECONDS, NoDriverError
from vramtop.monitor.sources.nvml.nvml_source import COUNT_INTERVAL_SECONDS, NvmlSource

SUCCESS = pynvml.NVML_SUCCESS
GIB = 2**30
ME = os.getpid()


def test_a_healthy_gpu_is_read_completely(driver, source):
    driver.gpus = [FakeGpu(processes=[FakeProcess(ME, 12 * GIB)])]
    source.open()
    snapshot = source.read()
    (gpu,) = snapshot.gpus
    assert (gpu.index, gpu.uuid, gpu.name) == (0, "GPU-0", "NVIDIA A100-SXM4-80GB")
    assert (gpu.total_bytes, gpu.reserved_bytes, gpu.used_bytes) == (80 * GIB, GIB // 2, 20 * GIB)
    assert gpu.free_bytes == 80 * GIB - GIB // 2 - 20 * GIB
    assert (gpu.utilisation_percent, gpu.temperature_c, gpu.power_w, gpu.power_limit_w) == (70, 55, 300.0, 400.0)
    assert gpu.faults == snapshot.faults == ()
    assert gpu.read_at == snapshot.time == 1_800_000_000.0
    assert gpu.unattributed_bytes == 8 * GIB
    assert (snapshot.source.driver_version, snapshot.source.cuda_version) == ("580.65.06", "13.0")
    (process,) = gpu.processes
    assert (process.pid, process.used_bytes, process.kinds, process.note) == (ME, 12 * GIB, ("compute",), None)
    assert process.user
    assert "python" in process.command


@pytest.mark.parametrize("missing", [True, False], ids=["old driver", "WSL"])
def test_memory_falls_back_to_v1_which_counts_reserved_memory_as_used(first_reading, driver, missing):
    if missing:
        driver.missing = {"nvmlDeviceGetMemoryInfo_v2"}
    else:
        driver.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_UNKNOWN)
    gpu = first_reading()
    assert gpu.reserved_bytes is None
    assert gpu.used_bytes == 20 * GIB + GIB // 2
    assert gpu.used_bytes + gpu.free_bytes == gpu.total_bytes
    (fault,) = gpu.faults
    assert (fault.field, fault.code) == ("reserved_bytes", "FUNCTION_NOT_FOUND" if missing else "UNKNOWN")


def test_old_process_lists_and_new_temperature_call_are_used_where_the_others_are_missing(first_reading, driver):
    lists = ("Compute", "Graphics", "MPSCompute")
    driver.missing = {f"nvmlDeviceGet{name}RunningProcesses_v3" for name in lists} | {"nvmlDeviceGetTemperature"}
    gpu = first_reading(processes=[FakeProcess(ME, GIB)])
    assert [process.used_bytes for process in gpu.processes] == [GIB]
    assert gpu.temperature_c == 55
    assert gpu.faults == ()


@pytest.fixture
def host(monkeypatch):
    """A host with 128 GB of RAM, 30 GiB of them available."""
    monkeypatch.setattr(memory, "host_total_bytes", lambda: 128_501_256_192)
    monkeypatch.setattr(memory, "available_host_memory", lambda: 30 * GIB)


@pytest.mark.parametrize("old", [False, True], ids=["v2", "v1"])
def test_a_gpu_without_its_own_memory_uses_host_memory(first_reading, driver, host, old):
    driver.fail("nvmlDeviceGetMemoryInfo" if old else "nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_NOT_SUPPORTED)
    if old:
        driver.missing = {"nvmlDeviceGetMemoryInfo_v2"}
    gpu = first_reading(name="NVIDIA GB10", processes=[FakeProcess(ME, 20 * GIB), FakeProcess(4_000_000, 3 * GIB)])
    assert (gpu.total_bytes, gpu.used_bytes, gpu.free_bytes) == (128_501_256_192, 23 * GIB, 30 * GIB)
    assert gpu.unattributed_bytes == 0
    assert gpu.reserved_bytes is None
    assert gpu.read_at == 1_800_000_000.0
    assert [(fault.field, fault.code) for fault in gpu.faults] == [("reserved_bytes", "HOST_MEMORY")]
    assert "shares the host's memory" in gpu.faults[0].message
    assert driver.calls["nvmlDeviceGetMemoryInfo"] == old


@pytest.mark.parametrize(
    "memory",
    [
        {"total_bytes": 0, "reserved_bytes": 0, "used_bytes": 0, "free_bytes": 0},
        {"total_bytes": 128501256192, "reserved_bytes": 0, "used_bytes": 6910320640, "free_bytes": 7976902656},
    ],
    ids=["total 0", "a real GB10"],
)
@pytest.mark.parametrize("name", ["NVIDIA GB10", "NVIDIA GB99"], ids=["in the catalogue", "in none"])
def test_figures_of_a_gpu_with_shared_memory_are_those_of_the_host(first_reading, driver, host, memory, name):
    gpu = first_reading(name=name, **memory)
    if name == "NVIDIA GB99" and not memory["total_bytes"]:  # any GPU's driver may answer so
        assert gpu.total_bytes is gpu.used_bytes is gpu.free_bytes is None
        assert {fault.code for fault in gpu.faults} == {"IMPLAUSIBLE"}
        return
    assert (gpu.total_bytes, gpu.used_bytes, gpu.free_bytes) == (128_501_256_192, 0, 30 * GIB)
    assert [fault.code for fault in gpu.faults] == ["HOST_MEMORY"]


@pytest.mark.parametrize("code", [SUCCESS, pynvml.NVML_ERROR_NOT_SUPPORTED])
def test_a_gpu_with_its_own_memory_never_uses_host_figures(first_reading, driver, host, code):
    driver.fail("nvmlDeviceGetMemoryInfo_v2", code)
    gpu = first_reading(total_bytes=0, reserved_bytes=0, used_bytes=0, free_bytes=0)
    assert gpu.total_bytes is gpu.used_bytes is gpu.free_bytes is None
    assert {fault.code for fault in gpu.faults} == {"IMPLAUSIBLE" if code == SUCCESS else "NOT_SUPPORTED"}


def test_used_shared_memory_is_unknown_if_the_memory_of_a_process_is(first_reading, driver, host):
    rows = [FakeProcess(ME, 20 * GIB), FakeProcess(4_000_000, None)]
    driver.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_NOT_SUPPORTED)
    gpu = first_reading(name="NVIDIA GB10", processes=rows)
    assert gpu.used_bytes is None
    assert "not all of its processes' memory is known" in gpu.reason("used_bytes")
    assert gpu.free_bytes == 30 * GIB


def test_a_gpu_in_mig_mode_without_memory_figures_does_not_use_host_memory(first_reading, driver, host):
    driver.fail_for_whole_gpus("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_NOT_SUPPORTED)
    gpu = first_reading(name="NVIDIA GB99", mig=[FakeMig("MIG-0", 3)])
    assert gpu.total_bytes is None
    assert gpu.reason("total_bytes") == "this GPU does not report its total memory"


@pytest.mark.parametrize(
    "memory",
    [
        {"total_bytes": 8 * GIB, "used_bytes": 9 * GIB, "free_bytes": 0},
        {"total_bytes": 8 * GIB, "used_bytes": GIB, "free_bytes": 9 * GIB},
        {"total_bytes": 80 * GIB, "used_bytes": 10 * GIB, "free_bytes": 20 * GIB},
        {"total_bytes": 2**64 - 1, "used_bytes": 2**64 - 1, "free_bytes": 2**64 - 1},
        {"total_bytes": 2**63, "reserved_bytes": 0, "used_bytes": 2**63, "free_bytes": 0},
    ],
    ids=["used > total", "free > total", "parts missing", "all bits set", "beyond any address"],
)
def test_impossible_figures_are_not_shown(first_reading, host, memory):
    gpu = first_reading(**memory)
    assert gpu.total_bytes is gpu.reserved_bytes is gpu.used_bytes is gpu.free_bytes is None
    assert {fault.field for fault in gpu.faults} == {"total_bytes", "reserved_bytes", "used_bytes", "free_bytes"}
    assert {fault.code for fault in gpu.faults} == {"IMPLAUSIBLE"}
    assert "memory figures are implausible (" in gpu.reason("used_bytes")


def test_a_process_in_several_lists_is_one_row_with_the_larger_figure(first_reading):
    rows = [
        FakeProcess(ME, 3 * GIB),
        FakeProcess(ME, 4 * GIB, lists=("Graphics",)),
        FakeProcess(4_000_000, None, lists=("Compute", "MPSCompute")),
        FakeProcess(4_000_001, None),
        FakeProcess(4_000_001, 5 * GIB, lists=("MPSCompute",)),
    ]
    gpu = first_reading(processes=rows)
    assert [(row.pid, row.used_bytes, row.kinds) for row in gpu.processes] == [
        (4_000_001, 5 * GIB, ("compute", "mps")),
        (ME, 4 * GIB, ("compute", "graphics")),
        (4_000_000, None, ("compute", "mps")),
    ]
    assert "memory not reported" in gpu.processes[2].note
    assert gpu.attributed_bytes is None
    assert gpu.unattributed_bytes is None  # some of it may be held by the process of unknown memory
    assert gpu.remaining_bytes == 20 * GIB - 9 * GIB


@pytest.mark.parametrize(
    ("size", "note"),
    [(0, "memory not reported by the driver"), (2**63, "reported memory exceeds the GPU's")],  # 0 as in a container
)
def test_a_process_of_impossible_size_has_unknown_memory(first_reading, size, note):
    gpu = first_reading(processes=[FakeProcess(ME, size)])
    assert [(p.used_bytes, p.note) for p in gpu.processes] == [(None, note)]
    assert gpu.unattributed_bytes is None


def test_a_garbled_process_list_is_discarded(first_reading):
    gpu = first_reading(processes=[FakeProcess(2**31, GIB)])
    assert gpu.processes is None
    assert [(fault.field, fault.code) for fault in gpu.faults] == [("processes", "IMPLAUSIBLE")]


def test_a_refused_field_leaves_the_others_and_is_queried_again_after_a_minute(first_reading, driver, source, clock):
    driver.fail("nvmlDeviceGetPowerUsage", pynvml.NVML_ERROR_NOT_SUPPORTED)
    gpu = first_reading()
    assert gpu.power_w is None
    assert (gpu.temperature_c, gpu.power_limit_w) == (55, 400.0)
    assert gpu.reason("power_w") == "this GPU does not report its power draw"
    clock.advance(1)
    assert source.read().gpus[0].faults == gpu.faults
    assert driver.calls["nvmlDeviceGetPowerUsage"] == 1
    driver.errors.clear()
    clock.advance(RETRY_REFUSED_SECONDS)
    assert source.read().gpus[0].power_w == 300.0


def test_a_temporary_failure_is_retried_at_once(first_reading, driver, source):
    driver.fail("nvmlDeviceGetTemperature", pynvml.NVML_ERROR_TIMEOUT)
    gpu = first_reading()
    assert gpu.reason("temperature_c") == "the driver could not read its temperature (TIMEOUT)"
    driver.errors.clear()
    assert source.read().gpus[0].temperature_c == 55


def test_a_lost_gpu_keeps_its_reading_and_recovers(driver, source, clock):
    driver.gpus = [FakeGpu(uuid=f"GPU-{number}") for number in range(3)]
    source.open()
    source.read()
    driver.lose(1)
    clock.advance(1)
    before, lost, after = source.read().gpus
    assert before.used_bytes == after.used_bytes == 20 * GIB
    assert (lost.index, lost.uuid, lost.name) == (1, "GPU-1", "NVIDIA A100-SXM4-80GB")
    assert lost.total_bytes is lost.used_bytes is lost.free_bytes is lost.processes is None
    assert [(fault.field, fault.code) for fault in lost.faults] == [(None, "GPU_IS_LOST")]
    assert lost.reason("used_bytes") == lost.faults[0].message

    clock.advance(1)
    driver.calls.clear()
    assert source.read().gpus[1].faults == lost.faults
    assert driver.calls["nvmlDeviceGetUtilizationRates"] == 2  # the lost one is queried rarely
    driver.errors.clear()
    clock.advance(RETRY_LOST_SECONDS)
    assert source.read().gpus[1].used_bytes == 20 * GIB


def test_a_gpu_that_cannot_be_opened_has_a_reading(driver, source):
    driver.gpus = [FakeGpu(uuid="GPU-0"), FakeGpu(uuid="GPU-1")]
    driver.lose(0, pynvml.NVML_ERROR_NO_PERMISSION)
    source.open()
    refused, other = source.read().gpus
    assert (refused.index, refused.uuid) == (0, None)
    assert refused.reason("used_bytes") == "this user may not open this GPU"
    assert other.used_bytes == 20 * GIB


def test_gpus_that_appear_or_disappear_are_noticed(driver, source, clock):
    driver.gpus = [FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b")]
    source.open()
    source.read()
    driver.gpus.append(FakeGpu(uuid="GPU-c"))
    assert len(source.read().gpus) == 2
    clock.advance(COUNT_INTERVAL_SECONDS)
    assert [gpu.uuid for gpu in source.read().gpus] == ["GPU-a", "GPU-b", "GPU-c"]

    driver.gpus.pop()
    clock.advance(COUNT_INTERVAL_SECONDS)
    gone = source.read().gpus[2]
    assert (gone.index, gone.uuid, gone.used_bytes) == (2, "GPU-c", None)
    assert [fault.code for fault in gone.faults] == ["NOT_LISTED"]

    del driver.gpus[0]  # its number now means another GPU
    clock.advance(COUNT_INTERVAL_SECONDS)
    snapshot = source.read()
    assert [(gpu.index, gpu.uuid, gpu.used_bytes is None) for gpu in snapshot.gpus] == [
        (0, "GPU-b", False),
        (2, "GPU-c", True),
    ]
    assert "(GPU-a), which was GPU 0" in snapshot.faults[0].message


def test_a_machine_without_gpus_has_a_fault(driver, source):
    source.open()
    snapshot = source.read()
    assert snapshot.gpus == ()
    assert [fault.code for fault in snapshot.faults] == ["NO_GPU"]


def test_nvml_is_started_again_when_it_was_shut_down_under_us(driver, source):
    driver.gpus = [FakeGpu()]
    source.open()
    driver.initialised = 0
    assert source.read().gpus[0].used_bytes == 20 * GIB
    assert driver.initialised == 1


def test_a_driver_that_disappears_is_one_error(driver, source):
    driver.gpus = [FakeGpu()]
    source.open()
    driver.initialised = 0
    driver.fail("nvmlInitWithFlags", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(NoDriverError, match="kernel module is not loaded"):
        source.read()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "kernel module is not loaded"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "may not open the NVIDIA devices"),
        (pynvml.NVML_ERROR_UNKNOWN, r"could not be started \(UNKNOWN\); the kernel log"),
    ],
)
def test_each_initialisation_failure_has_its_own_message(driver, source, code, sentence):
    driver.fail("nvmlInitWithFlags", code)
    with pytest.raises(NoDriverError, match=sentence):
        source.open()


KERNEL = "NVRM version: NVIDIA UNIX {}  Sat Aug 19 01:15:15 UTC 2023\nGCC version:  gcc version 12.3.0 (Ubuntu)\n"
OLDER, NEWER = "Open Kernel Module for x86_64  575.57.08  Release Build", "x86_64 Kernel Module  580.95.05"


@pytest.fixture
def mismatch(driver, monkeypatch, tmp_path):
    """Return a function that makes NVML fail with library 580.65.06 and the given kernel module version."""

    def make(kernel):
        (tmp_path / "version").write_text(KERNEL.format(kernel))
        monkeypatch.setattr(device_calls, "DRIVER_VERSION_FILE", tmp_path / "version")
        driver.fail("nvmlInitWithFlags", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)

    return make


@pytest.mark.parametrize(
    ("kernel", "sentence"), [(OLDER, r"575\.57\.08\); reboot"), (NEWER, r"580\.95\.05\); start the container again")]
)
def test_a_version_mismatch_names_both_versions_and_the_remedy(mismatch, source, kernel, sentence):
    mismatch(kernel)
    with pytest.raises(NoDriverError, match=rf"library 580\.65\.06, kernel module {sentence}"):
        source.open()


def test_a_driver_updated_under_a_running_program_asks_to_restart_the_program(mismatch, driver, source):
    """This process keeps using the library that it has loaded."""
    driver.gpus = [FakeGpu()]
    source.open()
    source.read()
    driver.initialised = 0
    mismatch(NEWER)
    sentence = r"updated while vramtop ran.* \(library 580\.65\.06, kernel module 580\.95\.05\); quit vramtop and start"
    with pytest.raises(NoDriverError, match=sentence):
        source.read()
    source.close()
    with pytest.raises(NoDriverError, match=sentence):
        source.open()


def test_the_version_of_a_library_is_read_from_its_file_name(mismatch, driver, source, tmp_path, monkeypatch):
    (tmp_path / "maps").write_text(
        "7f2c r-xp 08:01 42  /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.65.06 (deleted)\n"
    )
    monkeypatch.setattr(device_calls, "OWN_MAPS_FILE", tmp_path / "maps")
    mismatch(OLDER)
    driver.fail("nvmlSystemGetNVMLVersion", pynvml.NVML_ERROR_UNINITIALIZED)
    with pytest.raises(NoDriverError, match=r"library 580\.65\.06, kernel module 575\.57\.08\); reboot"):
        source.open()


def test_a_missing_library_is_reported(monkeypatch):
    def no_library(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", no_library)
    with pytest.raises(NoDriverError, match=r"libnvidia-ml\.so\.1 was not found") as caught:
        NvmlSource().open()
    assert caught.value.exit_code == 3


def test_a_temporary_failure_of_memory_v2_leaves_a_gap_and_no_jump(driver, source):
    """v1 counts the driver's reserve as used: one reading with it would look like growth."""
    driver.gpus = [FakeGpu()]
    source.open()
    before = source.read().gpus[0].used_bytes
    driver.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_UNKNOWN)
    gpu = source.read().gpus[0]
    assert before is not None
    assert gpu.used_bytes is None
    assert gpu.reason("used_bytes")
    assert driver.calls["nvmlDeviceGetMemoryInfo"] == 0


def test_peaks_come_from_the_driver_if_accounting_is_on(first_reading):
    rows = [
        FakeProcess(ME, 12 * GIB, peak_bytes=30 * GIB),
        FakeProcess(4_000_000, 8 * GIB, peak_bytes=7 * GIB),
        FakeProcess(4_000_001, 6 * GIB, peak_bytes=40 * GIB, running=False),
        FakeProcess(4_000_002, 5 * GIB),
        FakeProcess(4_000_003, 4 * GIB, peak_bytes=81 * GIB),
    ]
    peaks = {row.pid: row.peak_bytes for row in first_reading(processes=rows, accounting=True).processes}
    assert peaks == {ME: 30 * GIB, 4_000_000: 8 * GIB, 4_000_001: None, 4_000_002: None, 4_000_003: None}


def test_processes_are_not_queried_if_accounting_is_off(first_reading, driver, source):
    gpu = first_reading(processes=[FakeProcess(ME, GIB, peak_bytes=GIB)])
    source.read()
    assert gpu.processes[0].peak_bytes is None
    assert gpu.faults == ()
    assert driver.calls["nvmlDeviceGetAccountingMode"] == 1
    assert driver.calls["nvmlDeviceGetAccountingStats"] == 0


@pytest.mark.parametrize("call", ["nvmlDeviceGetAccountingMode", "nvmlDeviceGetAccountingStats"])
@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION])
def test_refused_accounting_is_silent_and_not_queried_again(first_reading, driver, source, call, code):
    driver.fail(call, code)
    gpu = first_reading(processes=[FakeProcess(ME, GIB, peak_bytes=GIB)], accounting=True)
    source.read()
    assert gpu.processes[0].peak_bytes is None
    assert gpu.faults == ()
    assert driver.calls[call] == 1


def test_an_ended_process_that_is_not_accounted_for_does_not_end_accounting(driver, source):
    driver.gpus = [FakeGpu(processes=[FakeProcess(ME, GIB, peak_bytes=2 * GIB)], accounting=True)]
    driver.fail("nvmlDeviceGetAccountingStats", pynvml.NVML_ERROR_NOT_FOUND)
    source.open()
    assert source.read().gpus[0].processes[0].peak_bytes is None
    driver.errors.clear()
    assert source.read().gpus[0].processes[0].peak_bytes == 2 * GIB


@pytest.mark.parametrize(
    ("mode", "word"), [(0, "default"), (1, "exclusive_process"), (2, "prohibited"), (3, "exclusive_process"), (9, None)]
)
def test_the_compute_mode_is_read_at_intervals(first_reading, driver, source, clock, mode, word):
    assert first_reading(compute_mode=mode).compute_mode == word
    driver.gpus[0].compute_mode = 2
    assert source.read().gpus[0].compute_mode == word
    clock.time += MODE_INTERVAL_SECONDS
    assert source.read().gpus[0].compute_mode == "prohibited"
    driver.fail("nvmlDeviceGetComputeMode", pynvml.NVML_ERROR_NOT_SUPPORTED)
    clock.time += MODE_INTERVAL_SECONDS
    gpu = source.read().gpus[0]
    assert (gpu.compute_mode, gpu.faults) == (None, ())


def test_invalid_utf_8_in_a_name_is_replaced(first_reading, driver, source):
    driver.figures |= {"Name": b"NVIDIA \x1b]0;t\x07H100\xff80GB", "SystemGetDriverVersion": b"580\xff"}
    assert first_reading().name == "NVIDIA H100\ufffd80GB"
    assert source.read().source.driver_version == "580\ufffd"


def test_processes_under_mps_are_noted(first_reading, tmp_path, start_program):
    server = start_program([shutil.copy("/bin/sleep", tmp_path / "nvidia-cuda-mps-server"), "60"])
    held = [FakeProcess(server.pid, GIB), FakeProcess(ME, 2 * GIB, lists=("Compute", "MPSCompute"))]
    client, other = first_reading(processes=held).processes
    assert (client.pid, client.used_bytes, client.note) == (ME, 2 * GIB, "runs under MPS")
    assert other.note == "MPS server: may hold its clients' memory"
