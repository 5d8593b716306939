"""What is wrong, or will surprise, said before everything else."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .data_folder import DataFolderFacts
from .driver_process import DriverFacts, GpuFacts
from .permissions import PermissionFacts
from .report import DoctorReport, InterpreterFacts
from .system import SystemFacts

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
_SLOW_SECONDS = 0.1
"""A call that takes so long is felt: the screen is drawn once a second, with some ten calls for each GPU."""
_SYSTEM = ("/usr/", "/lib", "/run/opengl-driver", "/nix/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """Something that is wrong or odd."""

    severity: Severity
    sentence: str


def find_issues(page: DoctorReport) -> tuple[Issue, ...]:
    """Of the whole page, the worst first."""
    found = [
        *_of_driver(page.driver, page.access),
        *(finding for gpu in page.driver.gpus for finding in _of_gpu(gpu)),
        *_of_access(page.access, page.system),
        *_of_system(page.system),
        *_of_files(page.files),
        *_of_pythons(page.pythons),
    ]
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def _of_driver(driver: DriverFacts, access: PermissionFacts) -> Iterator[Issue]:
    if driver.problem:
        yield Issue(severity="error", sentence=driver.problem)
    elif not driver.gpus:
        yield Issue(severity="error", sentence="the NVIDIA driver lists no GPU")
    for device in access.devices:
        if not device.usable:
            sentence = f"this user may not open {device.path} (mode {device.mode})"
            yield Issue(severity="error" if driver.problem else "note", sentence=sentence)
    if driver.library and not driver.library.startswith(_SYSTEM):
        sentence = f"the driver's library comes from outside of the system's folders: {driver.library}"
        yield Issue(severity="note", sentence=sentence)


def _of_gpu(gpu: GpuFacts) -> Iterator[Issue]:
    name, can = f"GPU {gpu.index}", gpu.abilities
    if gpu.unanswered:
        yield Issue(severity="error", sentence=f"{name}: the driver has not answered {gpu.unanswered} in time")
    if gpu.lost:
        yield Issue(severity="error", sentence=f"{name} does not answer: {gpu.lost}")
    if gpu.lost or gpu.unanswered:
        return
    if gpu.implausible:
        yield Issue(severity="warning", sentence=f"{name}: {gpu.implausible}")
    elif gpu.memory_info is None:
        words = f"{can.get('memory_v2')}, {can.get('memory_v1')}"
        sentence = f"{name}: the driver tells no memory figures ({words}), as on a GPU that shares the host's memory"
        yield Issue(severity="warning", sentence=sentence)
    elif gpu.memory_info == "v1":
        sentence = f"{name}: memory info v2 is refused ({can['memory_v2']}): used memory includes the driver's own part"
        yield Issue(severity="note", sentence=sentence)
    yield from _of_processes(gpu, name)
    if gpu.compute_mode == "prohibited":
        yield Issue(severity="warning", sentence=f"{name}: its compute mode lets no CUDA program run")
    if (gpu.slowest_seconds or 0.0) >= _SLOW_SECONDS:
        sentence = f"{name}: {gpu.slowest_call} took {gpu.slowest_seconds:.2f} s; the figures will lag behind"
        yield Issue(severity="warning", sentence=sentence)


def _of_processes(gpu: GpuFacts, name: str) -> Iterator[Issue]:
    if gpu.processes is None:
        sentence = f"{name}: the driver lists no processes ({gpu.abilities.get('processes')})"
        yield Issue(severity="warning", sentence=sentence)
        return
    if gpu.processes_without_memory:
        sentence = f"{name}: the driver does not tell what {gpu.processes_without_memory} of its processes hold"
        yield Issue(severity="warning", sentence=sentence)
    hidden = gpu.processes - (gpu.processes_seen or 0)
    if hidden:
        sentence = f"{name}: {hidden} of its {gpu.processes} processes cannot be seen from here (ended, or in another "
        yield Issue(severity="warning", sentence=f"{sentence}container, or hidden by /proc)")


def _of_access(access: PermissionFacts, system: SystemFacts) -> Iterator[Issue]:
    if access.hidepid and not access.root:
        sentence = f"/proc hides other users' processes (hidepid={access.hidepid}): theirs have no names here"
        yield Issue(severity="warning", sentence=sentence)
    if not access.pidfd:
        sentence = "this system or Python has no pidfds: a process's start time is checked before it is ended instead"
        yield Issue(severity="note", sentence=sentence)
    if system.own_pid_namespace:
        sentence = "this is a container with pids of its own: the driver may tell other pids than those seen here"
        yield Issue(severity="note", sentence=sentence)


def _of_system(system: SystemFacts) -> Iterator[Issue]:
    if "pynvml" in system.packages:
        sentence = "the retired package pynvml is installed beside nvidia-ml-py, whose module has the same name"
        yield Issue(severity="warning", sentence=f"{sentence}: pip uninstall pynvml, then reinstall nvidia-ml-py")
    if system.wsl:
        sentence = "this is WSL: the driver tells less here, often no memory of processes"
        yield Issue(severity="note", sentence=sentence)
    visible = system.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        sentence = f"CUDA_VISIBLE_DEVICES is set ({visible}): programs see these GPUs, vramtop shows all"
        yield Issue(severity="note", sentence=sentence)


def _of_files(files: DataFolderFacts) -> Iterator[Issue]:
    for file in files.files:
        if not file.sound:
            yield Issue(severity="warning", sentence=f"{files.folder}/{file.name}: {file.state}")
        elif not file.private:
            sentence = f"{files.folder}/{file.name} can be read by others (mode {file.mode})"
            yield Issue(severity="warning", sentence=sentence)
    if files.set_aside:
        sentence = f"{files.set_aside} damaged files of vramtop's were set aside in {files.folder}"
        yield Issue(severity="note", sentence=sentence)
    if not files.writable:
        yield Issue(severity="warning", sentence=f"{files.folder} cannot be written: nothing is remembered")


def _of_pythons(pythons: tuple[InterpreterFacts, ...]) -> Iterator[Issue]:
    if any(python.torch for python in pythons):
        return
    late = any(not python.answered for python in pythons)
    sentence = "no Python with torch and transformers " + ("has answered in time" if late else "was found")
    advice = "counts come from the model's config alone; --python PATH names one"
    yield Issue(severity="note", sentence=f"{sentence}: {advice}")
