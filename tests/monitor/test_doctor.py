"""The doctor's facts and issues: what the driver answers, the system, own files, and no names of users or hosts."""

import os
import sys
import time
from pathlib import Path

import msgspec
import pynvml
import pytest
from fake_driver import FakeGpu, FakeMig, FakeProcess

from vramtop.estimator.common.errors import InputError
from vramtop.monitor.doctor.facts import DeviceFile, DoctorReport, DriverFacts, PermissionFacts
from vramtop.monitor.doctor.issues import find_issues
from vramtop.monitor.doctor.redactor import Redactor
from vramtop.monitor.doctor.report import (
    collect_data_folder_facts,
    collect_driver_facts,
    collect_permission_facts,
    collect_report,
    collect_system_facts,
)

NO_SUCH_PID = 2**22 - 1


def issues_of(driver: DriverFacts, severity: str | None = None, **changes) -> str:
    """The sentences of the issues of this machine with this driver, optionally of one severity."""
    facts = {
        "system": collect_system_facts({}),
        "driver": driver,
        "access": collect_permission_facts(),
        "files": collect_data_folder_facts(Path("/nowhere/vramtop")),
        "pythons": (),
    }
    found = find_issues(DoctorReport(**(facts | changes)))
    return " | ".join(each.sentence for each in found if severity in (None, each.severity))


def test_a_healthy_gpu_is_reported_completely_without_secrets(driver, start_python):
    pid = start_python("input()", "--api-key=hunter2").pid
    uuid = "GPU-12345678-aaaa-bbbb-cccc-1234567890ab"
    driver.gpus = [FakeGpu(uuid=uuid, processes=[FakeProcess(pid, 2**30), FakeProcess(os.getpid(), 1)])]
    facts = collect_driver_facts()
    (gpu,) = facts.gpus
    assert (facts.driver_version, facts.cuda_version) == ("580.65.06", "13.0")
    assert facts.problem is None
    assert not facts.hangs
    assert (gpu.name, gpu.uuid) == ("NVIDIA A100-SXM4-80GB", "GPU-12345678...")
    assert gpu.total_bytes == gpu.used_bytes + gpu.free_bytes + gpu.reserved_bytes
    assert (gpu.processes, gpu.processes_seen, gpu.processes_of_others, gpu.processes_without_memory) == (2, 2, 0, 0)
    assert b"hunter2" not in msgspec.json.encode(facts)


def test_what_the_driver_refuses_and_what_is_unusual_is_reported(driver):
    slices = [FakeMig(uuid="MIG-1", gpu_instance=1), None]
    driver.gpus = [
        FakeGpu(processes=[FakeProcess(NO_SUCH_PID, None)]),
        FakeGpu(compute_mode=2),
        FakeGpu(),
        FakeGpu(mig=slices),
        FakeGpu(used_bytes=8 << 30),
    ]
    driver.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_UNKNOWN, 0)
    driver.fail("nvmlDeviceGetPowerUsage", pynvml.NVML_ERROR_NOT_SUPPORTED, 0)
    driver.fail("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_NO_PERMISSION, 1)
    driver.lose(2)
    facts = collect_driver_facts()
    assert facts.gpus[0].reserved_bytes is None
    assert ("power_w", "NOT_SUPPORTED") in [(fault.field, fault.code) for fault in facts.gpus[0].faults]
    assert facts.gpus[1].processes is None
    assert facts.gpus[3].mig_devices == 1
    errors, warnings = issues_of(facts, "error"), issues_of(facts, "warning")
    assert errors.startswith("GPU 2: the GPU no longer answers")
    assert "GPU 0: the driver does not report the memory of 1 of its processes" in warnings
    assert "GPU 0: 1 of its 1 processes are not visible here" in warnings
    assert "GPU 1: its compute mode does not allow CUDA programs" in warnings
    assert "GPU 1: " in warnings.partition("compute mode")[0]  # and that its processes cannot be read
    assert "GPU 4: 8.0 GiB are in use, and the driver shows no process here" in warnings
    assert "power" not in errors + warnings
    assert "GPU 0: " in issues_of(facts, "note")  # memory info v1


@pytest.mark.parametrize("call", ["nvmlDeviceGetPowerUsage", "nvmlInitWithFlags"])
def test_a_hanging_call_is_named(driver, call):
    driver.gpus = [FakeGpu()]
    driver.hang(call)
    facts = collect_driver_facts(0.3)
    assert facts.hangs or facts.problem
    assert call.removesuffix("WithFlags") in issues_of(facts, "error")


def test_a_driver_that_does_not_start_or_has_no_gpu_or_is_slow_is_reported(driver):
    driver.fail("nvmlInitWithFlags", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert "libnvidia-ml.so.1 was not found" in issues_of(collect_driver_facts(), "error")
    driver.errors.clear()
    assert issues_of(collect_driver_facts(), "error") == "the NVIDIA driver lists no GPU"
    driver.gpus = [FakeGpu()]
    driver.figures["UtilizationRates"] = lambda *_: time.sleep(0.3) or {"gpu": 70, "memory": 40}
    assert "the figures will lag" in issues_of(collect_driver_facts(), "warning")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19", "NVIDIA UNIX x86_64 Kernel Module 535.104.05"),
        (
            "NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22-I3)",
            "NVIDIA UNIX Open Kernel Module for x86_64 580.95.05",
        ),
    ],
)
def test_the_kernel_module_is_reported_with_kind_and_version(driver, tmp_path, monkeypatch, line, shown):
    (tmp_path / "version").write_text(f"NVRM version: {line}\nGCC version:  gcc 12.2.0\n")
    monkeypatch.setattr("vramtop.monitor.doctor.report.DRIVER_VERSION_FILE", tmp_path / "version")
    assert collect_driver_facts().kernel_module == shown


def test_only_settings_of_a_known_shape_are_shown():
    shown = collect_system_facts({
        "TERM": "xterm-256color",
        "TERM_PROGRAM": "token with blanks",
        "CUDA_VISIBLE_DEVICES": "0, GPU-12345678-aaaa-bbbb-cccc-1234567890ab,-1",
        "NVIDIA_VISIBLE_DEVICES": "hunter2",
        "LD_LIBRARY_PATH": "/secret/place",
        "WANDB_API_KEY": "hunter2",
    }).environment  # fmt: skip
    assert shown == {
        "TERM": "xterm-256color",
        "TERM_PROGRAM": "set",
        "CUDA_VISIBLE_DEVICES": "0,GPU-12345678...,-1",
        "NVIDIA_VISIBLE_DEVICES": "set, but names no device",
        "LD_LIBRARY_PATH": "set",
    }


def test_container_limits_and_wsl_are_read(tmp_path):
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
    assert {facts.environment["TMUX"], facts.environment["SSH_CONNECTION"]} == {"set"}
    assert "10.1.2.3" not in str(facts)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert collect_system_facts({}, root=tmp_path).memory_limit_bytes is None


def test_permissions_are_read(tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mounts").write_text("proc /proc proc rw,nosuid,hidepid=invisible 0 0\n")
    (tmp_path / "nvidiactl").write_text("")
    (tmp_path / "nvidiactl").chmod(0o600)
    (tmp_path / "null").write_text("")
    facts = collect_permission_facts(proc=tmp_path, dev=tmp_path)
    assert facts.hidepid == "invisible"
    assert facts.devices == (DeviceFile(path="/dev/nvidiactl", mode="0600", usable=True),)
    (tmp_path / "self/mounts").write_text("proc /proc proc rw,nosuid,hidepid=0 0 0\n")
    assert collect_permission_facts(proc=tmp_path, dev=tmp_path).hidepid is None
    refused = PermissionFacts(
        root=False, devices=(DeviceFile(path="/dev/nvidia0", mode="0600", usable=False),), hidepid="invisible",
        sees_others=False, pidfd=False,
    )  # fmt: skip
    words = issues_of(DriverFacts(problem="no driver"), access=refused)
    assert "this user may not open /dev/nvidia0 (mode 0600)" in words
    assert "hidepid=invisible" in words
    assert "no pidfds" in words


def test_the_data_folder_is_looked_at(tmp_path):
    (tmp_path / "answers.json.damaged-20260101-000000").write_text("x")
    facts = collect_data_folder_facts(tmp_path)
    assert (facts.there, facts.writable, facts.set_aside) == (True, True, 1)
    assert "1 damaged vramtop files were set aside" in issues_of(DriverFacts(), files=facts)
    facts = collect_data_folder_facts(tmp_path / "new" / "vramtop")
    assert (facts.there, facts.writable, facts.set_aside) == (False, True, 0)


def test_the_report_contains_no_user_host_or_secret(driver, tmp_path, monkeypatch):
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
    driver.gpus = [FakeGpu(name="NVIDIA of zaphod", processes=[FakeProcess(os.getpid(), 1)])]
    page = collect_report(environ)
    text = str(msgspec.to_builtins((page, find_issues(page))))
    assert [secret for secret in secrets if secret in text.lower()] == []
    assert page.pythons[0].named_by == "VIRTUAL_ENV"
    assert page.pythons[0].path == "~/.../bin/python"
    assert page.files.folder == "~/.../vramtop"
    with pytest.raises(InputError) as error:
        collect_report({}, python="/home/zaphod/none")
    assert "zaphod" not in error.value.message


def test_a_hanging_interpreter_does_not_block_the_report(driver, tmp_path, monkeypatch):
    monkeypatch.setattr("vramtop.estimator.trace.interpreters.PROBE_TIMEOUT_SECONDS", 1)
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    page = collect_report({}, python=str(slow))
    assert page.pythons[0].torch is None
    assert "no Python with torch and transformers was found" in " ".join(issue.sentence for issue in find_issues(page))


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
def test_paths_keep_their_meaning_without_the_owner(path, shown):
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
def test_names_are_removed_from_texts(text, shown):
    hide = Redactor(Path("/home/zaphod"), ["zaphod", "heart-of-gold", "bob", "root", "ubuntu", "nvidia", ""])
    assert hide.redact_json({"a": [text]}) == {"a": [shown]}
