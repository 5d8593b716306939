"""Issues: whatever is wrong or unusual in the facts, the most severe first."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from vramtop.estimator.common.sizes import GIB, format_gib

from ..snapshot.figures import ASLEEP
from .facts import DataFolderFacts, DoctorReport, DriverFacts, GpuFacts, InterpreterFacts, PermissionFacts, SystemFacts

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
_SEVERITY_OF_FIELDS: Mapping[str | None, Severity] = {
    None: "error",
    "used_bytes": "warning",
    "unattributed_bytes": "warning",
    "processes": "warning",
    "reserved_bytes": "note",
}
"""How bad it is that a field of a GPU, or the GPU as a whole, cannot be read; the others are only listed."""
_SLOW_SECONDS = 0.2
"""A GPU that takes longer to read is noticeable: the screen is drawn once a second."""
_LARGEST_UNSEEN = 2 * GIB
"""Most memory that the driver, a display and helper processes hold on a GPU that no program uses."""
_SYSTEM_FOLDERS = ("/usr/", "/lib", "/run/opengl-driver", "/nix/")


class Issue(msgspec.Struct, frozen=True):
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
        *_permission_issues(report.access),
        *_system_issues(report.system),
        *_file_issues(report.files),
        *_interpreter_issues(report.pythons),
    ]
    return tuple(sorted(issues, key=lambda issue: SEVERITIES.index(issue.severity)))


def _driver_issues(driver: DriverFacts, access: PermissionFacts) -> Iterator[Issue]:
    if driver.problem:
        yield Issue("error", driver.problem)
    severity: Severity = "error" if driver.problem else "note"
    for device in access.devices:
        if not device.usable:
            yield Issue(severity, f"this user may not open {device.path} (mode {device.mode})")
    if driver.library and not driver.library.startswith(_SYSTEM_FOLDERS):
        yield Issue("note", f"the driver's library is outside the system folders: {driver.library}")
    yield from (Issue("error", fault.message) for fault in driver.faults)
    if driver.gpus and (driver.read_seconds or 0) / len(driver.gpus) >= _SLOW_SECONDS and not driver.hangs:
        yield Issue("warning", f"reading the GPUs takes {driver.read_seconds:.2f} s; the figures will lag")


def _gpu_issues(gpu: GpuFacts) -> Iterator[Issue]:
    name = f"GPU {gpu.index}"
    for fault in gpu.faults:
        severity = _SEVERITY_OF_FIELDS.get(fault.field) if fault.code != ASLEEP else "note"
        if severity is not None:
            yield Issue(severity, f"{name}: {fault.message}")
    if gpu.processes_without_memory:
        sentence = f"{name}: the driver does not report the memory of {gpu.processes_without_memory} of its processes"
        yield Issue("warning", sentence)
    hidden = (gpu.processes or 0) - (gpu.processes_seen or 0)
    if hidden:
        sentence = (
            f"{name}: {hidden} of its {gpu.processes} processes are not visible here (ended, in another container, or "
            "hidden by /proc)"
        )
        yield Issue("warning", sentence)
    if not gpu.processes and gpu.processes is not None and (gpu.used_bytes or 0) > _LARGEST_UNSEEN:
        sentence = f"{name}: {format_gib(gpu.used_bytes)} GiB are in use, and the driver shows no process here"
        yield Issue("warning", f"{sentence} (in another container, or ended)")
    if gpu.compute_mode == "prohibited":
        yield Issue("warning", f"{name}: its compute mode does not allow CUDA programs")


def _permission_issues(access: PermissionFacts) -> Iterator[Issue]:
    if access.hidepid and not access.root:
        sentence = f"/proc hides other users' processes (hidepid={access.hidepid}), so they have no names here"
        yield Issue("warning", sentence)
    if not access.pidfd:
        sentence = "this system or Python has no pidfds: a process's start time is checked before it is ended instead"
        yield Issue("note", sentence)


def _system_issues(system: SystemFacts) -> Iterator[Issue]:
    if system.own_pid_namespace:
        sentence = (
            "this container has its own pid namespace: the driver may report pids that differ from those visible here"
        )
        yield Issue("note", sentence)
    if "pynvml" in system.packages:
        sentence = (
            "the retired package pynvml is installed beside nvidia-ml-py, and both have a module of the same name"
        )
        yield Issue("warning", f"{sentence}: pip uninstall pynvml, then reinstall nvidia-ml-py")
    if system.wsl:
        yield Issue("note", "this is WSL: the driver reports less, often no process memory")
    visible = system.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        yield Issue("note", f"CUDA_VISIBLE_DEVICES is set ({visible}): programs see only these GPUs, vramtop shows all")


def _file_issues(files: DataFolderFacts) -> Iterator[Issue]:
    if files.set_aside:
        yield Issue("note", f"{files.set_aside} damaged vramtop files were set aside in {files.folder}")
    if not files.writable:
        yield Issue("warning", f"{files.folder} cannot be written to: nothing is saved")


def _interpreter_issues(pythons: Sequence[InterpreterFacts]) -> Iterator[Issue]:
    if any(python.torch for python in pythons):
        return
    problem = next((python.problem for python in pythons if python.problem), None)
    if problem is not None:
        yield Issue("error", problem)
        return
    advice = "counts come from the model's config alone; --python PATH names one"
    yield Issue("note", f"no Python with torch and transformers was found: {advice}")
