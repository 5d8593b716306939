"""Issues that the doctor finds: everything wrong or unusual, the most severe first."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .data_folder import DataFolderFacts
from .driver_facts import DriverFacts, GpuFacts
from .interpreters import InterpreterFacts
from .permissions import PermissionFacts
from .report import DoctorReport
from .system import SystemFacts

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
_SLOW_CALL_SECONDS = 0.1
"""A slower call is noticeable: the screen is drawn once a second, with about ten calls per GPU."""
_SYSTEM_FOLDERS = ("/usr/", "/lib", "/run/opengl-driver", "/nix/")


@dataclass(frozen=True, slots=True)
class Issue:
    """Something that is wrong or unusual."""

    severity: Severity
    """How bad it is."""
    sentence: str
    """What it is, and what to do about it."""


def find_issues(report: DoctorReport) -> tuple[Issue, ...]:
    """Return the issues of a report, the most severe first."""
    issues = [
        *_driver_issues(report.driver, report.access),
        *(issue for gpu in report.driver.gpus for issue in _gpu_issues(gpu)),
        *_permission_issues(report.access, report.system),
        *_system_issues(report.system),
        *_file_issues(report.files),
        *_interpreter_issues(report.pythons),
    ]
    return tuple(sorted(issues, key=lambda issue: SEVERITIES.index(issue.severity)))


def _driver_issues(driver: DriverFacts, access: PermissionFacts) -> Iterator[Issue]:
    if driver.problem:
        yield Issue("error", driver.problem)
    elif not driver.gpus:
        yield Issue("error", "the NVIDIA driver lists no GPU")
    for device in access.devices:
        if not device.usable:
            sentence = f"this user may not open {device.path} (mode {device.mode})"
            yield Issue("error" if driver.problem else "note", sentence)
    if driver.library and not driver.library.startswith(_SYSTEM_FOLDERS):
        sentence = f"the driver's library comes from outside of the system's folders: {driver.library}"
        yield Issue("note", sentence)


def _gpu_issues(gpu: GpuFacts) -> Iterator[Issue]:
    name, abilities = f"GPU {gpu.index}", gpu.abilities
    if gpu.unanswered:
        yield Issue("error", f"{name}: the driver has not answered {gpu.unanswered} in time")
    if gpu.lost:
        yield Issue("error", f"{name} does not answer: {gpu.lost}")
    if gpu.lost or gpu.unanswered:
        return
    if gpu.implausible:
        yield Issue("warning", f"{name}: {gpu.implausible}")
    elif gpu.memory_info is None:
        codes = f"{abilities.get('memory_v2')}, {abilities.get('memory_v1')}"
        sentence = f"{name}: the driver reports no memory figures ({codes}), as on a GPU that shares the host's memory"
        yield Issue("warning", sentence)
    elif gpu.memory_info == "v1":
        sentence = (
            f"{name}: memory info v2 is refused ({abilities['memory_v2']}): used memory includes the driver's own part"
        )
        yield Issue("note", sentence)
    yield from _process_issues(gpu, name)
    if gpu.compute_mode == "prohibited":
        yield Issue("warning", f"{name}: its compute mode lets no CUDA program run")
    if (gpu.slowest_seconds or 0.0) >= _SLOW_CALL_SECONDS:
        sentence = f"{name}: {gpu.slowest_call} took {gpu.slowest_seconds:.2f} s; the figures will lag"
        yield Issue("warning", sentence)


def _process_issues(gpu: GpuFacts, name: str) -> Iterator[Issue]:
    if gpu.processes is None:
        sentence = f"{name}: the driver lists no processes ({gpu.abilities.get('processes')})"
        yield Issue("warning", sentence)
        return
    if gpu.processes_without_memory:
        sentence = f"{name}: the driver does not report what {gpu.processes_without_memory} of its processes hold"
        yield Issue("warning", sentence)
    hidden = gpu.processes - (gpu.processes_seen or 0)
    if hidden:
        sentence = (
            f"{name}: {hidden} of its {gpu.processes} processes cannot be seen from here (ended, or in another "
            "container, or hidden by /proc)"
        )
        yield Issue("warning", sentence)


def _permission_issues(access: PermissionFacts, system: SystemFacts) -> Iterator[Issue]:
    if access.hidepid and not access.root:
        sentence = f"/proc hides other users' processes (hidepid={access.hidepid}): theirs have no names here"
        yield Issue("warning", sentence)
    if not access.pidfd:
        sentence = "this system or Python has no pidfds: a process's start time is checked before it is ended instead"
        yield Issue("note", sentence)
    if system.own_pid_namespace:
        sentence = "this container has its own pid namespace: the driver may report other pids than those visible here"
        yield Issue("note", sentence)


def _system_issues(system: SystemFacts) -> Iterator[Issue]:
    if "pynvml" in system.packages:
        sentence = "the retired package pynvml is installed beside nvidia-ml-py, whose module has the same name"
        yield Issue("warning", f"{sentence}: pip uninstall pynvml, then reinstall nvidia-ml-py")
    if system.wsl:
        sentence = "this is WSL: the driver reports less here, often no memory of processes"
        yield Issue("note", sentence)
    visible = system.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        sentence = f"CUDA_VISIBLE_DEVICES is set ({visible}): programs see these GPUs, vramtop shows all"
        yield Issue("note", sentence)


def _file_issues(files: DataFolderFacts) -> Iterator[Issue]:
    for file in files.files:
        if not file.sound:
            yield Issue("warning", f"{files.folder}/{file.name}: {file.state}")
        elif not file.private:
            sentence = f"{files.folder}/{file.name} can be read by others (mode {file.mode})"
            yield Issue("warning", sentence)
    if files.set_aside:
        sentence = f"{files.set_aside} damaged files of vramtop's were set aside in {files.folder}"
        yield Issue("note", sentence)
    if not files.writable:
        yield Issue("warning", f"{files.folder} cannot be written to: nothing is saved")


def _interpreter_issues(pythons: tuple[InterpreterFacts, ...]) -> Iterator[Issue]:
    if any(python.torch for python in pythons):
        return
    problem = next((python.problem for python in pythons if python.problem), None)
    if problem is not None:
        yield Issue("error", problem)
        return
    late = any(not python.answered for python in pythons)
    sentence = "no Python with torch and transformers " + ("has answered in time" if late else "was found")
    advice = "counts come from the model's config alone; --python PATH names one"
    yield Issue("note", f"{sentence}: {advice}")
