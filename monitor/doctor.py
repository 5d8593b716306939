"""The doctor's page: facts about this machine for a bug report, without names and secrets, and the issues in them."""

import os
import platform
import pwd
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec
import psutil

from vramtop.estimator.common.errors import CannotTellError, InputError, ProcessLimitError, start_thread
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.version import DISTRIBUTION
from vramtop.estimator.trace.interpreters import find_interpreters, probe_interpreter

from .host.processes import HOST_PID_NAMESPACE, ProcessDirectory
from .preflight.facts import DRIVER_TIMEOUT_SECONDS
from .snapshot.faults import ASLEEP, NO_ANSWER, Fault
from .snapshot.snapshot import GpuReading
from .sources.nvml.device_calls import DRIVER_VERSION_FILE
from .sources.nvml.nvml_source import NvmlSource
from .storage.user_file import data_folder

# The facts. The names of the fields are the keys of ``vramtop doctor --json``.


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one GPU; None: not reported."""

    index: int
    """NVML index."""
    name: str | None = None
    """Name of the card."""
    uuid: str | None = None
    """First characters of the UUID."""
    total_bytes: int | None = None
    """Its memory."""
    used_bytes: int | None = None
    """Used memory; with that of the driver where ``reserved_bytes`` is unknown."""
    free_bytes: int | None = None
    """Free memory."""
    reserved_bytes: int | None = None
    """Memory that the driver reserves."""
    compute_mode: str | None = None
    """Which processes may start CUDA programs on it."""
    mig_devices: int | None = None
    """Its MIG devices; None: MIG is off, or unknown."""
    processes: int | None = None
    """Number of processes on it."""
    processes_seen: int | None = None
    """Processes that can be identified from here."""
    processes_of_others: int | None = None
    """Processes of other users."""
    processes_without_memory: int | None = None
    """Processes whose memory the driver does not report."""
    faults: tuple[Fault, ...] = ()
    """What could not be read, with the driver's error codes."""


class DriverFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the driver; None: not reported."""

    problem: str | None = None
    """Why the driver cannot be used, in a sentence."""
    driver_version: str | None = None
    """Its version."""
    cuda_version: str | None = None
    """Latest CUDA version that it supports."""
    kernel_module: str | None = None
    """Kind and version of the kernel module, from /proc."""
    library: str | None = None
    """Path of the library that was loaded."""
    init_seconds: float | None = None
    """Time that NVML took to start."""
    read_seconds: float | None = None
    """Time that one reading of all GPUs took."""
    faults: tuple[Fault, ...] = ()
    """What could not be read of the machine as a whole."""
    gpus: tuple[GpuFacts, ...] = ()

    @property
    def hangs(self) -> bool:
        """True if the driver does not answer for a GPU."""
        return any(fault.code == NO_ANSWER for gpu in self.gpus for fault in gpu.faults)


class SystemFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the system; None: unknown."""

    packages: Mapping[str, str]
    """Versions of the installed packages, by name."""
    python: str
    """Version of the Python that runs vramtop."""
    kernel: str
    """Name and release of the kernel."""
    machine: str
    """Processor architecture."""
    distribution: str | None
    """Name and version of the distribution."""
    libc: str | None
    """Name and version of the C library."""
    processors: int | None
    """Number of logical processors."""
    memory_bytes: int
    """RAM of the machine."""
    memory_limit_bytes: int | None
    """Limit of the control group; None: no limit, or it cannot be read."""
    container: tuple[str, ...]
    """Kinds of container that were detected."""
    own_pid_namespace: bool | None
    """True if pids here differ from the machine's."""
    wsl: bool
    """It is the Windows Subsystem for Linux."""
    environment: Mapping[str, str]
    """Relevant variables, from a list of those that may be shown; values of others are never read."""


class DeviceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A device file of the driver."""

    path: str
    """Path of the file."""
    mode: str
    """Permission bits in octal: ``0666``."""
    usable: bool
    """True if this user may read and write it."""


class PermissionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Permissions of this user."""

    root: bool
    """vramtop runs as root."""
    devices: tuple[DeviceFile, ...]
    """Device files of the driver."""
    hidepid: str | None
    """Mount option with which /proc hides other users' processes; None: it does not."""
    sees_others: bool
    """True if processes of another user can be seen."""
    pidfd: bool
    """True if a signal can be sent through a pidfd, which never reaches a later process with the same pid."""


class DataFolderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The folder in which vramtop keeps files for the user between runs."""

    folder: str
    """Its path."""
    there: bool
    """It exists."""
    writable: bool
    """This user may write to it."""
    set_aside: int
    """Number of damaged files that were set aside."""


class InterpreterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An interpreter that could run vramtop's workers."""

    path: str
    """Path of the program."""
    named_by: str
    """Why it is considered: ``--python``, a variable, or that it runs vramtop."""
    torch: str | None = None
    """Version; None: it has torch and transformers not both installed, or it does not run."""
    transformers: str | None = None
    """Version; None: likewise."""
    peft: str | None = None
    """Version; None: not installed."""
    answered: bool = True
    """True if it answered within the time limit."""
    problem: str | None = None
    """Why it could not be asked; None: it was."""


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """All facts about this machine."""

    system: SystemFacts
    driver: DriverFacts
    access: PermissionFacts
    files: DataFolderFacts
    pythons: tuple[InterpreterFacts, ...]


def collect_report(
    environ: Mapping[str, str], *, python: str | None = None, seconds: float = DRIVER_TIMEOUT_SECONDS
) -> DoctorReport:
    """Collect the facts about this machine.

    Args:
        environ: the environment.
        python: value of ``--python``, which is then the only interpreter that is examined.
        seconds: time limit for the driver and the interpreters together.

    Raises:
        InputError: ``python`` does not exist.
    """
    deadline = time.monotonic() + seconds
    try:
        paths = find_interpreters(python, environ)
    except InputError:
        raise InputError("--python: no such program; give the path of a Python with torch") from None
    redactor = make_redactor(environ)
    interpreters = _start_probes(paths, environ, python, redactor)
    system, permissions, files = collect_system_facts(environ), collect_permission_facts(), collect_data_folder_facts()
    driver = collect_driver_facts(seconds)
    report = DoctorReport(
        system=system,
        driver=replace(driver, library=None if driver.library is None else redactor.path(driver.library)),
        access=permissions,
        files=replace(files, folder=redactor.path(files.folder)),
        pythons=interpreters(deadline),
    )
    return msgspec.convert(redactor.redact_json(msgspec.to_builtins(report)), DoctorReport)


# The driver, as the dashboard reads it.


_LIBRARY = "libnvidia-ml.so"
_MAX_UUID_CHARACTERS = 12
"""``GPU-`` and eight digits: enough to distinguish the GPUs of a machine, too little to identify one."""


def collect_driver_facts(seconds: float = DRIVER_TIMEOUT_SECONDS) -> DriverFacts:
    """Return one reading of the GPUs without the names of processes and users.

    Args:
        seconds: after which a driver that starts, or a GPU, counts as hanging.
    """
    source = NvmlSource(first_timeout=seconds)
    start = time.monotonic()
    facts = DriverFacts(kernel_module=_kernel_module())
    try:
        source.open()
        opened = time.monotonic()
        snapshot = source.read()
    except CannotTellError as error:
        return replace(facts, problem=error.message, library=_loaded_library())
    except ImportError as error:
        return replace(facts, problem=f"nvidia-ml-py cannot be imported: {error}")
    finally:
        source.close()
    mine = ProcessDirectory().describe(os.getpid()).user
    return replace(
        facts,
        driver_version=snapshot.source.driver_version,
        cuda_version=snapshot.source.cuda_version,
        library=_loaded_library(),
        init_seconds=round(opened - start, 4),
        read_seconds=round(time.monotonic() - opened, 4),
        faults=snapshot.faults,
        gpus=tuple(_gpu_facts(gpu, mine) for gpu in snapshot.gpus),
    )


def _gpu_facts(gpu: GpuReading, mine: str | None) -> GpuFacts:
    processes = gpu.processes
    seen = [each for each in processes or () if each.start_time is not None]
    sizes = ("total_bytes", "used_bytes", "free_bytes", "reserved_bytes")
    counts = {
        "processes": len(processes),
        "processes_seen": len(seen),
        "processes_of_others": sum(each.user != mine for each in seen),
        "processes_without_memory": sum(each.used_bytes is None for each in processes),
    } if processes is not None else {}  # fmt: skip
    return GpuFacts(
        index=gpu.index,
        name=gpu.name,
        uuid=gpu.uuid and f"{gpu.uuid[:_MAX_UUID_CHARACTERS]}...",
        compute_mode=gpu.compute_mode,
        mig_devices=None if gpu.mig is None else len(gpu.mig),
        faults=gpu.faults,
        **{name: getattr(gpu, name) for name in sizes},
        **counts,
    )


def _loaded_library() -> str | None:
    """Return the path of the driver's library that this process has loaded; None: none is loaded."""
    lines = _text(Path("/proc/self/maps")).splitlines()
    return next((line.split(None, 5)[5] for line in lines if _LIBRARY in line), None)


def _kernel_module() -> str | None:
    """Return kind and version of the module: ``NVIDIA UNIX Open Kernel Module for x86_64 580.95.05``."""
    found = re.search(r"^NVRM version:\s*(.*?\d+\.\d+(?:\.\d+)?)", _text(DRIVER_VERSION_FILE), re.MULTILINE)
    return " ".join(found[1].split()) if found else None


# The system: versions, kernel, container and limits.


REPORTED_PACKAGES = (
    *(DISTRIBUTION, "textual", "nvidia-ml-py", "pynvml", "psutil", "msgspec", "platformdirs", "PyYAML"),
)
"""vramtop, its dependencies, and the retired package whose module replaces nvidia-ml-py's."""
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9._+,:=@-]{1,60}")
"""Form of the values that are shown; any other value is reported as set."""
_SHOWN_VARIABLES = (
    *("LANG", "LC_ALL", "LC_CTYPE", "TERM", "COLORTERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "VTE_VERSION"),
    *("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TEXTUAL_COLOR_SYSTEM"),
    *("PYTHONUTF8", "PYTHONIOENCODING"),
    *("CUDA_DEVICE_ORDER", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    "NVIDIA_DRIVER_CAPABILITIES",
)
_PRESENCE_VARIABLES = (
    *("TMUX", "STY", "SSH_CONNECTION", "SSH_TTY", "WT_SESSION", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH"),
    *("VIRTUAL_ENV", "CONDA_PREFIX", "XDG_DATA_HOME", "CUDA_MPS_PIPE_DIRECTORY", "KUBERNETES_SERVICE_HOST"),
    *("SLURM_JOB_ID", "CUDA_INJECTION64_PATH", "WSL_DISTRO_NAME"),
)
_DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_DEVICE_ENTRY = re.compile(r"-?\d{1,3}|all|none|void|((?:GPU|MIG)-[0-9a-fA-F]{1,8})[0-9a-fA-F/-]*")
_CONTAINER_FILES = {".dockerenv": "Docker", "run/.containerenv": "Podman", "singularity.d": "Apptainer"}
_CONTAINER_GROUPS = {"kubepods": "Kubernetes", "/lxc": "LXC", "/docker": "Docker"}
"""Kinds of container by words in the names of control groups."""
_UNLIMITED_BYTES = 1 << 60
"""Control groups of version 1 report a number near 2^63 for no limit."""


def collect_system_facts(environ: Mapping[str, str], *, root: Path = Path("/")) -> SystemFacts:
    """Return the facts about this system.

    Args:
        environ: the environment.
        root: folder with proc, sys, dev and etc.
    """
    name, version = platform.libc_ver()
    release = platform.release()
    about = re.search(r'^PRETTY_NAME="?([^"\n]+)', _text(root / "etc/os-release"), re.MULTILINE)
    pid_namespace = None
    with suppress(OSError):
        pid_namespace = (root / "proc/self/ns/pid").stat().st_ino != HOST_PID_NAMESPACE
    return SystemFacts(
        packages=_packages(),
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        kernel=f"{platform.system()} {release}",
        machine=platform.machine(),
        distribution=about[1] if about else None,
        libc=f"{name} {version}" if name else None,
        processors=os.cpu_count(),
        memory_bytes=int(psutil.virtual_memory().total),
        memory_limit_bytes=_memory_limit(root / "sys/fs/cgroup"),
        container=tuple(dict.fromkeys(_container(environ, root))),
        own_pid_namespace=pid_namespace,
        wsl="microsoft" in release.lower() or (root / "dev/dxg").exists(),
        environment=_environment(environ),
    )


def _packages() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in REPORTED_PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _memory_limit(cgroup: Path) -> int | None:
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        words = _text(cgroup / name).strip()
        if words.isdecimal() and int(words) < _UNLIMITED_BYTES:
            return int(words)
    return None


def _container(environ: Mapping[str, str], root: Path) -> Iterator[str]:
    yield from (word for file, word in _CONTAINER_FILES.items() if (root / file).exists())
    groups = _text(root / "proc/1/cgroup") + _text(root / "proc/self/cgroup")
    yield from (word for sign, word in _CONTAINER_GROUPS.items() if sign in groups)
    if "KUBERNETES_SERVICE_HOST" in environ:
        yield "Kubernetes"
    if environ.get("container") in ("lxc", "systemd-nspawn", "podman", "oci"):
        yield environ["container"]


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    shown = {name: environ[name] for name in _SHOWN_VARIABLES if name in environ}
    found = {name: value if _PLAIN_VALUE.fullmatch(value) else "set" for name, value in shown.items()}
    found |= {name: _device_list(environ[name]) for name in _DEVICE_VARIABLES if name in environ}
    return found | {name: "set" for name in _PRESENCE_VARIABLES if environ.get(name)}


def _device_list(value: str) -> str:
    """Return the indices and the beginnings of UUIDs; an empty value hides all GPUs."""
    if not value.strip():
        return "(empty: no GPU)"
    matches = [_DEVICE_ENTRY.fullmatch(word.strip()) for word in value.split(",")]
    if not all(matches):
        return "set, but names no device"
    return ",".join(f"{match[1]}..." if match[1] else match[0] for match in matches if match)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# The folder in which vramtop keeps files for the user between runs.


def collect_data_folder_facts(folder: Path | None = None) -> DataFolderFacts:
    """Return the state of the user's data folder, or of another one."""
    folder = folder or data_folder()
    try:
        names = sorted(each.name for each in os.scandir(folder) if each.is_file())
    except OSError:
        names = []
    existing = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    return DataFolderFacts(
        folder=str(folder),
        there=folder.is_dir(),
        writable=os.access(existing, os.W_OK),
        set_aside=sum(".damaged-" in name for name in names),
    )


# Permissions of this user: the driver's device files, other users' processes, and pidfds.


_DEVICE_FILE = re.compile(r"nvidia(\d+|ctl|-uvm|-modeset)|dxg|nvhost-gpu|nvmap")
_HIDEPID = re.compile(r"^\S+ /proc proc \S*?hidepid=(?!0\b|off\b)(\w+)", re.MULTILINE)


def collect_permission_facts(*, proc: Path = Path("/proc"), dev: Path = Path("/dev")) -> PermissionFacts:
    """Return the permissions of this user on this machine.

    Args:
        proc: folder of the processes.
        dev: folder of the device files.
    """
    hidepid = _HIDEPID.search(_text(proc / "self/mounts"))
    pidfd = False
    with suppress(OSError, AttributeError):
        os.close(os.pidfd_open(os.getpid()))
        pidfd = True
    return PermissionFacts(
        root=os.geteuid() == 0,
        devices=tuple(_device_files(dev)),
        hidepid=hidepid[1] if hidepid else None,
        sees_others=_sees_others(proc),
        pidfd=pidfd,
    )


def _device_files(dev: Path) -> Iterator[DeviceFile]:
    for path in sorted(dev.iterdir()) if dev.is_dir() else ():
        if _DEVICE_FILE.fullmatch(path.name):
            with suppress(OSError):
                usable = os.access(path, os.R_OK | os.W_OK)
                yield DeviceFile(path=f"/dev/{path.name}", mode=f"{path.stat().st_mode & 0o7777:04o}", usable=usable)


def _sees_others(proc: Path) -> bool:
    mine = os.getuid()
    for name in os.listdir(proc):  # noqa: PTH208 - hundreds of processes
        with suppress(OSError):
            if name.isdecimal() and (proc / name).stat().st_uid != mine:
                return True
    return False


# The Python interpreters that could run vramtop's workers, and the frameworks that each of them has.


def _start_probes(
    paths: Sequence[Path], environ: Mapping[str, str], python: str | None, redactor: "Redactor"
) -> Callable[[float], tuple[InterpreterFacts, ...]]:
    """Probe each interpreter on a thread of its own; return what gives the facts at a deadline (``time.monotonic``)."""
    found = {
        path: InterpreterFacts(path=redactor.path(path), named_by=_named_by(path, python, environ), answered=False)
        for path in paths
    }

    def probe(path: Path) -> None:
        try:
            facts = probe_interpreter(path)
        except ProcessLimitError as error:
            found[path] = replace(found[path], answered=True, problem=error.message)
            return
        frameworks = {} if facts is None else {name: getattr(facts, name) for name in ("torch", "transformers", "peft")}
        found[path] = replace(found[path], answered=True, **frameworks)

    threads = [threading.Thread(target=probe, args=(path,), daemon=True) for path in paths]
    for path, thread in zip(paths, threads, strict=True):
        try:
            start_thread(thread)
        except ProcessLimitError as error:
            found[path] = replace(found[path], problem=error.message)

    def facts(deadline: float) -> tuple[InterpreterFacts, ...]:
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        return tuple(found.values())

    return facts


def _named_by(path: Path, python: str | None, environ: Mapping[str, str]) -> str:
    if python is not None:
        return "--python"
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(name) and path == Path(environ[name]) / "bin" / "python":
            return name
    return "runs vramtop"


# Removes from a bug report the names of users and hosts, and the folders in which users keep their work.


_SAME_EVERYWHERE = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/dev", "/nix/store", "/run/opengl-driver", "/opt/conda"),
)
"""Folders whose contents have the same names on every machine; a folder elsewhere may be named after anything."""
_GENERIC_PATH_PART = re.compile(
    r"bin|\.local|share|lib\d*|site-packages|dist-packages|python[0-9.]*|vramtop|.*\.so[0-9.]*|.*\.json"
)
_GENERIC_NAMES = frozenset({
    "root", "user", "admin", "nobody", "ubuntu", "debian", "fedora", "centos", "ec2-user", "jovyan", "nvidia", "linux",
    "localhost", "localdomain", "home", "python", "torch", "vramtop", "docker", "conda", "container", "none", "runner",
})  # fmt: skip
"""Accounts of images and words of the report itself, which identify no user or host."""
_MIN_DISTINCT_CHARACTERS = 5
"""A name of this length is not a part of another word by chance."""
_MIN_NAME_CHARACTERS = 2
_HOMES = re.compile(r"(/(?:home|Users|homes)/)[^/\s:]+")


class Redactor:
    """Removes names and home folders.

    Args:
        home: home folder of the user.
        names: names of the user and of the host.
    """

    def __init__(self, home: Path, names: Iterable[str]) -> None:
        self._home = PurePosixPath(home)
        wanted = {name.lower() for name in names if len(name) >= _MIN_NAME_CHARACTERS} - _GENERIC_NAMES
        parts = [
            re.escape(name)
            if len(name) >= _MIN_DISTINCT_CHARACTERS
            else rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
            for name in sorted(wanted, key=len, reverse=True)
        ]
        self._names = re.compile("|".join(parts), re.IGNORECASE) if parts else None

    def path(self, path: str | Path) -> str:
        """Return a path without the parts that may name a user: ``~/.../bin/python3``, ``/usr/lib/x.so``."""
        pure = PurePosixPath(path)
        if any(pure.is_relative_to(folder) for folder in _SAME_EVERYWHERE):
            return self.text(str(pure))
        at_home = pure.is_relative_to(self._home)
        start = "~" if at_home else ""
        parts = pure.relative_to(self._home).parts if at_home else pure.parts[1 if pure.is_absolute() else 0 :]
        kept: list[str] = []
        for part in reversed(parts):
            if not _GENERIC_PATH_PART.fullmatch(part):
                break
            kept.insert(0, part)
        hidden = ["..."] if len(kept) < len(parts) else []
        return self.text("/".join([start, *hidden, *kept]) or "/")

    def text(self, text: str) -> str:
        """Return the text without names and home folders."""
        home = str(self._home)
        if len(home) > 1:
            text = re.sub(rf"{re.escape(home)}(?![^/\s:])", "~", text)
        text = _HOMES.sub(r"\1...", text)
        return self._names.sub("...", text) if self._names else text

    def redact_json(self, value: Any) -> Any:
        """Return a JSON value with all of its texts redacted."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.redact_json(each) for key, each in value.items()}
        return [self.redact_json(each) for each in value] if isinstance(value, list | tuple) else value


def make_redactor(environ: Mapping[str, str]) -> Redactor:
    """Return a redactor for this user and this host."""
    names = [environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER", "HOSTNAME", "HOST")]
    names += [socket.gethostname(), socket.gethostname().partition(".")[0]]
    home = environ.get("HOME")
    with suppress(KeyError):  # the user of a container, without a name
        entry = pwd.getpwuid(os.getuid())
        names += [entry.pw_name, *entry.pw_gecos.split(",")[0].split()]
        home = home or entry.pw_dir
    folder = Path(home or "/")
    return Redactor(folder, [*names, folder.name])


# What is wrong or unusual in the facts, the most severe first.


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
    found = "was found" if all(python.answered for python in pythons) else "has answered in time"
    advice = "counts come from the model's config alone; --python PATH names one"
    yield Issue("note", f"no Python with torch and transformers {found}: {advice}")
