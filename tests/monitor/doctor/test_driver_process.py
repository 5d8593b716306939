"""The driver is queried in a child process: facts, refusals, hangs and crashes."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import msgspec
import psutil
import pynvml
import pytest
from waiting import until

from vramtop.monitor.doctor import driver_facts
from vramtop.monitor.doctor.driver_facts import DriverFacts, DriverProcess

NO_SUCH_PID = 2**22 - 1
SECONDS = 60.0


def ask(seconds: float = SECONDS) -> DriverFacts:
    return DriverProcess().facts(seconds)


@pytest.fixture
def end_when(monkeypatch):
    """Return a function that ends the time limit once the child's messages meet a condition, without waiting."""

    def arm(condition):
        messages = []
        add = driver_facts._CollectedFacts.add

        def record(self, message):
            messages.append(dict(message))
            add(self, message)

        def clock():
            return time.monotonic() + (2 * SECONDS if condition(messages) else 0)

        monkeypatch.setattr(driver_facts._CollectedFacts, "add", record)
        monkeypatch.setattr(driver_facts, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))

    return arm


def test_a_healthy_gpu_is_reported_completely_without_secrets(driver, fake_gpu, fake_process):
    with subprocess.Popen([sys.executable, "-c", "input()", "--api-key=hunter2"], stdin=subprocess.PIPE) as process:
        uuid = "GPU-12345678-aaaa-bbbb-cccc-1234567890ab"
        driver.gpus = [fake_gpu(uuid=uuid, processes=[fake_process(process.pid, 2**30), fake_process(os.getpid(), 1)])]
        facts = ask()
        process.stdin.close()
    (gpu,) = facts.gpus
    assert (facts.driver_version, facts.nvml_version, facts.cuda_version) == ("580.65.06", "13.580.65.06", "13.0")
    assert facts.problem is None
    assert not facts.hangs
    assert (gpu.name, gpu.uuid, gpu.memory_info) == ("NVIDIA A100-SXM4-80GB", "GPU-12345678...", "v2")
    assert gpu.total_bytes == gpu.used_bytes + gpu.free_bytes + gpu.reserved_bytes
    assert (gpu.processes, gpu.processes_seen, gpu.processes_of_others, gpu.processes_without_memory) == (2, 2, 0, 0)
    assert gpu.abilities["process_memory"] == "yes"
    assert gpu.abilities["accounting"] == "off"
    assert gpu.abilities["mig"] == "NOT_SUPPORTED"
    assert b"hunter2" not in msgspec.json.encode(facts)


def test_each_refusal_keeps_the_error_name_of_the_driver(driver, fake_gpu, fake_process, make_page, issue_sentences):
    driver.gpus = [fake_gpu(processes=[fake_process(NO_SUCH_PID, None)]), fake_gpu(compute_mode=2)]
    driver.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_UNKNOWN, 0)
    driver.fail("nvmlDeviceGetPowerUsage", pynvml.NVML_ERROR_NOT_SUPPORTED, 0)
    driver.fail("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_NO_PERMISSION, 1)
    driver.missing.add("nvmlDeviceGetMPSComputeRunningProcesses_v3")
    facts = ask()
    first, second = facts.gpus
    assert (first.memory_info, first.abilities["memory_v2"], first.abilities["memory_v1"]) == ("v1", "UNKNOWN", "yes")
    assert first.reserved_bytes is None
    assert first.abilities["power"] == "NOT_SUPPORTED"
    assert first.abilities["process_memory"] == "not available"
    assert first.abilities["mps_processes"] == "yes"
    assert (second.abilities["processes"], second.processes, second.compute_mode) == (
        "NO_PERMISSION",
        None,
        "prohibited",
    )
    words = issue_sentences(make_page(facts))
    assert "GPU 0: memory info v2 is refused (UNKNOWN)" in words
    assert "GPU 0: the driver does not report what 1 of its processes hold" in words
    assert "GPU 0: 1 of its 1 processes cannot be seen from here" in words
    assert "GPU 1: the driver lists no processes (NO_PERMISSION)" in words
    assert "GPU 1: its compute mode lets no CUDA program run" in words


def test_impossible_memory_is_reported(driver, fake_gpu, make_page, issue_sentences):
    driver.gpus = [fake_gpu(free_bytes=0, used_bytes=2**30), fake_gpu()]
    driver.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_NOT_SUPPORTED, 1)
    driver.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_NOT_SUPPORTED, 1)
    words = issue_sentences(make_page(ask()), "warning")
    assert "GPU 0: the driver's memory figures" in words
    assert "GPU 1: the driver reports no memory figures (NOT_SUPPORTED, NOT_SUPPORTED)" in words


def test_a_lost_gpu_does_not_stop_the_report_of_the_others(driver, fake_gpu, make_page, issue_sentences):
    driver.gpus = [fake_gpu(), fake_gpu()]
    driver.lose(0)
    facts = ask()
    assert (facts.gpus[0].lost, facts.gpus[1].memory_info) == ("GPU_IS_LOST", "v2")
    assert issue_sentences(make_page(facts), "error") == "GPU 0 does not answer: GPU_IS_LOST"


def test_mig_slots_are_reported(driver, fake_gpu, fake_mig):
    driver.gpus = [fake_gpu(mig=[fake_mig(uuid="MIG-1", gpu_instance=1), None])]
    (gpu,) = ask().gpus
    assert (gpu.abilities["mig"], gpu.mig_slots) == ("on", 2)


def test_a_hanging_call_is_named_and_the_other_gpus_are_reported(
    driver, fake_gpu, make_page, monkeypatch, end_when, issue_sentences
):
    driver.gpus = [fake_gpu(), fake_gpu()]
    plain = type(driver)._nvmlDeviceGetPowerUsage

    def hang(self, name, handle, number):
        if ctypes.cast(handle, ctypes.c_void_p).value == 1:
            time.sleep(600)
        return plain(self, name, handle, number)

    monkeypatch.setattr(type(driver), "_nvmlDeviceGetPowerUsage", hang)
    hung, done = {"gpu": 0, "asks": "nvmlDeviceGetPowerUsage"}, {"gpu": 1, "asks": None}
    end_when(lambda messages: hung in messages and done in messages)
    before = psutil.Process().children()
    facts = ask()
    assert facts.hangs
    assert [gpu.unanswered for gpu in facts.gpus] == ["nvmlDeviceGetPowerUsage", None]
    assert facts.gpus[0].memory_info == "v2"
    assert facts.gpus[1].processes == 0
    assert (
        issue_sentences(make_page(facts), "error")
        == "GPU 0: the driver has not answered nvmlDeviceGetPowerUsage in time"
    )
    until(lambda: set(psutil.Process().children()) <= set(before))


def test_a_driver_that_hangs_from_the_start_is_reported(driver, make_page, monkeypatch, end_when, issue_sentences):
    monkeypatch.setattr(type(driver), "_nvmlInitWithFlags", lambda *_: time.sleep(600))
    end_when(lambda messages: {"asks": "nvmlInit"} in messages)
    facts = ask()
    assert facts.hangs
    assert "the NVIDIA driver has not answered nvmlInit within 60 seconds" in issue_sentences(make_page(facts), "error")


def test_a_crash_of_the_library_ends_only_the_child_process(driver, fake_gpu, make_page, monkeypatch, issue_sentences):
    def crash(*_: object) -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGSEGV)

    driver.gpus = [fake_gpu()]
    monkeypatch.setattr(type(driver), "_nvmlDeviceGetPowerUsage", crash)
    facts = ask()
    assert not facts.hangs
    assert "ends the process that asks it (SIGSEGV, in nvmlDeviceGetPowerUsage)" in issue_sentences(
        make_page(facts), "error"
    )


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "libnvidia-ml.so.1 was not found"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "its kernel module is not loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "library 580.65.06, kernel module"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "may not open the NVIDIA devices"),
    ],
)
def test_a_driver_that_does_not_start_is_reported_in_one_sentence(driver, make_page, code, words, issue_sentences):
    driver.fail("nvmlInitWithFlags", code)
    assert words in issue_sentences(make_page(ask()), "error")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023",
            "NVIDIA UNIX x86_64 Kernel Module 535.104.05",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22-I3)",
            "NVIDIA UNIX Open Kernel Module for x86_64 580.95.05",
        ),
    ],
)
def test_the_kernel_module_is_reported_with_kind_and_version(driver, tmp_path, monkeypatch, line, shown):
    (tmp_path / "version").write_text(f"{line}\nGCC version:  gcc 12.2.0\n")
    monkeypatch.setattr("vramtop.monitor.doctor.driver_facts.DRIVER_VERSION_FILE", tmp_path / "version")
    assert ask().kernel_module == shown


def test_a_driver_without_gpus_is_reported(driver, make_page, issue_sentences):
    assert issue_sentences(make_page(ask()), "error") == "the NVIDIA driver lists no GPU"


def test_slow_calls_are_reported(driver, fake_gpu, make_page, monkeypatch, issue_sentences):
    driver.gpus = [fake_gpu()]
    plain = type(driver)._nvmlDeviceGetUtilizationRates
    monkeypatch.setattr(
        type(driver), "_nvmlDeviceGetUtilizationRates", lambda self, *args: time.sleep(0.3) or plain(self, *args)
    )
    assert "GPU 0: nvmlDeviceGetUtilizationRates took " in issue_sentences(make_page(ask()), "warning")
