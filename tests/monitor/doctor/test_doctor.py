"""The doctor's page: a scripted driver under pynvml's own calling code, real processes, files and folders."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import psutil
import pynvml
import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.monitor.doctor.data_folder import collect_data_folder_facts
from vramtop.monitor.doctor.driver_process import DriverFacts, DriverProcess
from vramtop.monitor.doctor.issues import find_issues
from vramtop.monitor.doctor.permissions import DeviceFile, PermissionFacts, collect_permission_facts
from vramtop.monitor.doctor.redact import Redactor
from vramtop.monitor.doctor.report import DoctorReport, collect_report
from vramtop.monitor.doctor.system import collect_system_facts

NO_SUCH_PID = 2**22 - 1
SECONDS = 20.0


def ask(seconds: float = SECONDS) -> DriverFacts:
    return DriverProcess().facts(seconds)


@pytest.fixture
def make_page():
    """A page of this machine with this driver."""

    def make(driver: DriverFacts, **changes) -> DoctorReport:
        facts = {
            "system": collect_system_facts({}),
            "driver": driver,
            "access": collect_permission_facts(),
            "files": collect_data_folder_facts(Path("/nowhere/vramtop")),
            "pythons": (),
        }
        return DoctorReport(**(facts | changes))

    return make


def said(page: DoctorReport, severity: str | None = None) -> str:
    return " | ".join(each.sentence for each in find_issues(page) if severity in (None, each.severity))


def test_a_healthy_gpu_tells_everything_and_no_secret(driver, fake_gpu, fake_process):
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


def test_each_refusal_keeps_the_drivers_word(driver, fake_gpu, fake_process, make_page):
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
    words = said(make_page(facts))
    assert "GPU 0: memory info v2 is refused (UNKNOWN)" in words
    assert "GPU 0: the driver does not tell what 1 of its processes hold" in words
    assert "GPU 0: 1 of its 1 processes cannot be seen from here" in words
    assert "GPU 1: the driver lists no processes (NO_PERMISSION)" in words
    assert "GPU 1: its compute mode lets no CUDA program run" in words


def test_memory_that_cannot_be_is_said(driver, fake_gpu, make_page):
    driver.gpus = [fake_gpu(free_bytes=0, used_bytes=2**30), fake_gpu()]
    driver.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_NOT_SUPPORTED, 1)
    driver.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_NOT_SUPPORTED, 1)
    words = said(make_page(ask()), "warning")
    assert "GPU 0: the driver's memory figures" in words
    assert "GPU 1: the driver tells no memory figures (NOT_SUPPORTED, NOT_SUPPORTED)" in words


def test_a_lost_gpu_does_not_keep_the_others_from_telling(driver, fake_gpu, make_page):
    driver.gpus = [fake_gpu(), fake_gpu()]
    driver.lose(0)
    facts = ask()
    assert (facts.gpus[0].lost, facts.gpus[1].memory_info) == ("GPU_IS_LOST", "v2")
    assert said(make_page(facts), "error") == "GPU 0 does not answer: GPU_IS_LOST"


def test_mig_is_told(driver, fake_gpu, fake_mig):
    driver.gpus = [fake_gpu(mig=[fake_mig(uuid="MIG-1", gpu_instance=1), None])]
    (gpu,) = ask().gpus
    assert (gpu.abilities["mig"], gpu.mig_slots) == ("on", 2)


def test_a_call_that_hangs_is_named_and_the_other_gpus_still_tell(driver, fake_gpu, make_page, monkeypatch):
    driver.gpus = [fake_gpu(), fake_gpu()]
    plain = type(driver)._nvmlDeviceGetPowerUsage

    def hang(self, name, handle, number):
        if ctypes.cast(handle, ctypes.c_void_p).value == 1:
            time.sleep(60)
        return plain(self, name, handle, number)

    monkeypatch.setattr(type(driver), "_nvmlDeviceGetPowerUsage", hang)
    begun = time.monotonic()
    facts = ask(2.0)
    assert time.monotonic() - begun < 10
    assert facts.hangs
    assert [gpu.unanswered for gpu in facts.gpus] == ["nvmlDeviceGetPowerUsage", None]
    assert facts.gpus[0].memory_info == "v2"
    assert facts.gpus[1].processes == 0
    assert said(make_page(facts), "error") == "GPU 0: the driver has not answered nvmlDeviceGetPowerUsage in time"
    assert not psutil.Process().children()


def test_a_driver_that_hangs_from_the_start_is_said(driver, make_page, monkeypatch):
    monkeypatch.setattr(type(driver), "_nvmlInitWithFlags", lambda *_: time.sleep(60))
    facts = ask(1.0)
    assert facts.hangs
    assert "the NVIDIA driver has not answered nvmlInit within 1 seconds" in said(make_page(facts), "error")


def test_a_library_that_crashes_takes_only_the_child_with_it(driver, fake_gpu, make_page, monkeypatch):
    def crash(*_: object) -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGSEGV)

    driver.gpus = [fake_gpu()]
    monkeypatch.setattr(type(driver), "_nvmlDeviceGetPowerUsage", crash)
    facts = ask()
    assert not facts.hangs
    assert "ends the process that asks it (SIGSEGV, in nvmlDeviceGetPowerUsage)" in said(make_page(facts), "error")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "libnvidia-ml.so.1 was not found"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "its kernel module is not loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "library 580.65.06, kernel module"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "may not open the NVIDIA devices"),
    ],
)
def test_a_driver_that_does_not_start_is_one_sentence(driver, make_page, code, words):
    driver.fail("nvmlInitWithFlags", code)
    assert words in said(make_page(ask()), "error")


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
def test_the_kernel_module_is_told_by_kind_and_version(driver, tmp_path, monkeypatch, line, shown):
    (tmp_path / "version").write_text(f"{line}\nGCC version:  gcc 12.2.0\n")
    monkeypatch.setattr("vramtop.monitor.doctor.driver_process.DRIVER_VERSION_FILE", tmp_path / "version")
    assert ask().kernel_module == shown


def test_no_gpu_is_said(driver, make_page):
    assert said(make_page(ask()), "error") == "the NVIDIA driver lists no GPU"


def test_slow_calls_are_said(driver, fake_gpu, make_page, monkeypatch):
    driver.gpus = [fake_gpu()]
    plain = type(driver)._nvmlDeviceGetUtilizationRates
    monkeypatch.setattr(
        type(driver), "_nvmlDeviceGetUtilizationRates", lambda self, *args: time.sleep(0.3) or plain(self, *args)
    )
    assert "GPU 0: nvmlDeviceGetUtilizationRates took 0." in said(make_page(ask()), "warning")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/zaphod/projects/secret/venv/bin/python3.11", "~/.../bin/python3.11"),
        ("/home/zaphod/.local/share/vramtop", "~/.local/share/vramtop"),
        ("/home/zaphod", "~"),
        ("/scratch/zaphod/bin/python", "/.../bin/python"),
        ("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15"),
        ("/usr/local/zaphod/lib/libnvidia-ml.so.1", "/usr/local/.../lib/libnvidia-ml.so.1"),
    ],
)
def test_paths_tell_what_they_are_and_not_whose(path, shown):
    assert Redactor(Path("/home/zaphod"), ["zaphod", "heart-of-gold"]).path(path) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/trillian/x and /home/zaphod/y, /home/zaphod2", "/home/.../x and ~/y, /home/..."),
        ("on heart-of-gold.example, ZAPHOD's", "on ....example, ...'s"),
        ("bob bobsled sue", "... bobsled sue"),
        ("root in Ubuntu on nvidia", "root in Ubuntu on nvidia"),
    ],
)
def test_names_are_taken_out_of_texts(text, shown):
    hide = Redactor(Path("/home/zaphod"), ["zaphod", "heart-of-gold", "bob", "root", "ubuntu", "nvidia", ""])
    assert hide.everything({"a": [text]}) == {"a": [shown]}


def test_only_settings_of_a_known_shape_are_shown():
    shown = collect_system_facts({
        "TERM": "xterm-256color",
        "TERM_PROGRAM": "token with blanks",
        "CUDA_VISIBLE_DEVICES": "0, GPU-12345678-aaaa-bbbb-cccc-1234567890ab,-1",
        "NVIDIA_VISIBLE_DEVICES": "hunter2",
        "LD_LIBRARY_PATH": "/secret/place",
        "WANDB_API_KEY": "hunter2",
        "HF_TOKEN": "hf_hunter2",
    }).environment  # fmt: skip
    assert shown == {
        "TERM": "xterm-256color",
        "TERM_PROGRAM": "set",
        "CUDA_VISIBLE_DEVICES": "0,GPU-12345678...,-1",
        "NVIDIA_VISIBLE_DEVICES": "set to something that names no device",
        "LD_LIBRARY_PATH": "set",
    }


def test_container_limits_and_wsl_are_read(tmp_path, monkeypatch):
    for name, text in {
        "sys/fs/cgroup/memory.max": "8589934592\n",
        "etc/os-release": 'NAME="x"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"\n',
        "proc/self/cgroup": "0::/kubepods/besteffort/pod12\n",
        "run/.containerenv": "",
        "dev/dxg": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    facts = collect_system_facts({"TMUX": "/run/x,1,0", "SSH_CONNECTION": "10.1.2.3 4 5 6"}, root=tmp_path)
    assert facts.memory_limit_bytes == 8 * 2**30
    assert facts.distribution == "Ubuntu 22.04.4 LTS"
    assert facts.container == ("Podman", "Kubernetes")
    assert facts.wsl
    assert {"tmux", "ssh"} <= set(facts.session)
    assert "10.1.2.3" not in str(facts)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert collect_system_facts({}, root=tmp_path).memory_limit_bytes is None


def test_rights_are_read(tmp_path, make_page):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mounts").write_text("proc /proc proc rw,nosuid,hidepid=invisible 0 0\n")
    (tmp_path / "nvidiactl").write_text("")
    (tmp_path / "nvidiactl").chmod(0o600)
    (tmp_path / "null").write_text("")
    facts = collect_permission_facts(proc=tmp_path, dev=tmp_path)
    assert facts.hidepid == "invisible"
    assert facts.devices == (DeviceFile(path="/dev/nvidiactl", mode="0600", usable=True),)
    page = make_page(
        DriverFacts(problem="no driver"),
        access=PermissionFacts(
            root=False, devices=(DeviceFile(path="/dev/nvidia0", mode="0600", usable=False),), hidepid="invisible",
            sees_others=False, pidfd=False,
        ),
    )  # fmt: skip
    words = said(page)
    assert "this user may not open /dev/nvidia0 (mode 0600)" in words
    assert "hidepid=invisible" in words
    assert "no pidfds" in words


def test_own_files_are_looked_at(tmp_path, make_page):
    (tmp_path / "pending.json").write_text(json.dumps({"version": 1, "content": []}))
    (tmp_path / "pending.json").chmod(0o600)
    (tmp_path / "answers.json").write_text('{"version": 1, "cont')
    (tmp_path / "answers.json").chmod(0o644)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "answers.json.damaged-20260101-000000").write_text("x")
    facts = collect_data_folder_facts(tmp_path)
    states = {file.name: (file.state, file.sound) for file in facts.files}
    assert states["pending.json"] == ("version 1", True)
    assert states["answers.json"] == ("damaged", False)
    assert states["deep.json"] == ("damaged", False)
    assert facts.set_aside == 1
    words = said(make_page(DriverFacts(), files=facts))
    assert "answers.json: damaged" in words
    assert "pending.json" not in words
    (tmp_path / "pending.json").chmod(0o644)
    assert "pending.json can be read by others (mode 0644)" in said(
        make_page(DriverFacts(), files=collect_data_folder_facts(tmp_path))
    )


def test_a_folder_that_is_not_there_yet_is_no_fault(tmp_path, make_page):
    facts = collect_data_folder_facts(tmp_path / "new" / "vramtop")
    assert (facts.there, facts.writable, facts.files) == (False, True, ())


def test_the_page_names_neither_user_nor_host_nor_secret(driver, fake_gpu, fake_process, tmp_path, monkeypatch):
    home = tmp_path / "zaphod"
    venv = home / "moonshot" / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setattr("socket.gethostname", lambda: "heartofgold.example.org")
    secrets = ("zaphod", "moonshot", "heartofgold", "hunter2")
    environ = {
        "HOME": str(home), "USER": "zaphod", "VIRTUAL_ENV": str(venv), "WANDB_API_KEY": "hunter2",
        "PATH": f"{venv}/bin", "TERM": "zaphod-term", "COLORTERM": "heartofgold",
    }  # fmt: skip
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "moonshot"))
    (home / "moonshot" / "vramtop").mkdir()
    (home / "moonshot" / "vramtop" / "pending.json").write_text("{ hunter2")
    driver.gpus = [fake_gpu(name="NVIDIA of zaphod", processes=[fake_process(os.getpid(), 1)])]
    page = collect_report(environ)
    text = str(msgspec.to_builtins(page)) + said(page)
    assert [secret for secret in secrets if secret in text.lower()] == []
    assert page.pythons[0].named_by == "VIRTUAL_ENV"
    assert page.pythons[0].path == "~/.../bin/python"
    assert page.files.folder == "~/.../vramtop"
    assert page.files.files[0].state == "damaged"


def test_an_interpreter_that_is_not_there_is_wrong_input_without_its_path(driver):
    with pytest.raises(InputError) as error:
        collect_report({}, python="/home/zaphod/none")
    assert "zaphod" not in error.value.message


def test_an_interpreter_that_hangs_does_not_hang_the_page(driver, tmp_path):
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    begun = time.monotonic()
    page = collect_report({}, python=str(slow), seconds=1.0)
    assert time.monotonic() - begun < 10
    assert not page.pythons[0].answered
    assert "has answered in time" in said(page)
