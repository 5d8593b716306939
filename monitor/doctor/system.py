"""Facts about the system: versions, kernel, container, limits, and the session of the terminal."""

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.limits import LimitError, decode_json
from vramtop.estimator.common.untrusted_files import read_file
from vramtop.estimator.common.version import DISTRIBUTION

from ..history.history import History
from ..host.processes import HOST_PID_NAMESPACE, ancestor_pids
from ..storage.user_file import data_folder

REPORTED_PACKAGES = (
    DISTRIBUTION,
    "textual",
    "nvidia-ml-py",
    "pynvml",
    "psutil",
    "msgspec",
    "platformdirs",
    "PyYAML",
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
_UNLIMITED_BYTES = 1 << 60
"""Control groups of version 1 report a number near 2^63 for no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemFacts:
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
    session: tuple[str, ...]
    """Programs between vramtop and the terminal: ``tmux``, ``screen``, ``mosh``, ``ssh``."""
    environment: Mapping[str, str]
    """Relevant variables, from a list of those that may be shown; values of others are never read."""


def collect_system_facts(environ: Mapping[str, str], *, root: Path = Path("/")) -> SystemFacts:
    """Return the facts about this system.

    Args:
        environ: the environment.
        root: folder with proc, sys, dev and etc.
    """
    name, version = platform.libc_ver()
    release = platform.release()
    return SystemFacts(
        packages=_packages(),
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        kernel=f"{platform.system()} {release}",
        machine=platform.machine(),
        distribution=_distribution(root),
        libc=f"{name} {version}" if name else None,
        processors=os.cpu_count(),
        memory_bytes=int(psutil.virtual_memory().total),
        memory_limit_bytes=_memory_limit(root / "sys/fs/cgroup"),
        container=tuple(_container(environ, root)),
        own_pid_namespace=_own_pid_namespace(root),
        wsl="microsoft" in release.lower() or (root / "dev/dxg").exists(),
        session=tuple(_session(environ)),
        environment=_environment(environ),
    )


def _packages() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in REPORTED_PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _distribution(root: Path) -> str | None:
    lines = _text(root / "etc/os-release").splitlines()
    found = next((line.partition("=")[2].strip('"') for line in lines if line.startswith("PRETTY_NAME=")), "")
    return found or None


def _memory_limit(cgroup: Path) -> int | None:
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        words = _text(cgroup / name).strip()
        if words.isdecimal() and int(words) < _UNLIMITED_BYTES:
            return int(words)
    return None


def _container(environ: Mapping[str, str], root: Path) -> list[str]:
    signs = {".dockerenv": "Docker", "run/.containerenv": "Podman", "singularity.d": "Apptainer"}
    found = [word for file, word in signs.items() if (root / file).exists()]
    cgroup = _text(root / "proc/1/cgroup") + _text(root / "proc/self/cgroup")
    found += [
        word for sign, word in {"kubepods": "Kubernetes", "/lxc": "LXC", "/docker": "Docker"}.items() if sign in cgroup
    ]
    if "KUBERNETES_SERVICE_HOST" in environ:
        found.append("Kubernetes")
    if environ.get("container") in ("lxc", "systemd-nspawn", "podman", "oci"):
        found.append(environ["container"])
    return list(dict.fromkeys(found))


def _own_pid_namespace(root: Path) -> bool | None:
    try:
        return (root / "proc/self/ns/pid").stat().st_ino != HOST_PID_NAMESPACE
    except OSError:
        return None


def _session(environ: Mapping[str, str]) -> list[str]:
    names = set()
    for pid in ancestor_pids(os.getpid()):
        try:
            names.add(psutil.Process(pid).name())
        except psutil.Error:
            continue
    found = {
        "tmux": bool(environ.get("TMUX")) or any(name.startswith("tmux") for name in names),
        "screen": bool(environ.get("STY")) or "screen" in names,
        "mosh": "mosh-server" in names,
        "ssh": bool(environ.get("SSH_CONNECTION") or environ.get("SSH_TTY")) or "sshd" in names,
    }
    return [word for word, there in found.items() if there]


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    found = {
        name: environ[name] if _PLAIN_VALUE.fullmatch(environ[name]) else "set"
        for name in _SHOWN_VARIABLES
        if name in environ
    }
    found |= {name: _devices(environ[name]) for name in _DEVICE_VARIABLES if name in environ}
    return found | {name: "set" for name in _PRESENCE_VARIABLES if environ.get(name)}


def _devices(value: str) -> str:
    """Return the indices and the beginnings of UUIDs; an empty value hides all GPUs."""
    words = [word.strip() for word in value.split(",")] if value.strip() else []
    matches = [_DEVICE_ENTRY.fullmatch(word) for word in words]
    if not all(matches):
        return "set to something that names no device"
    return ",".join(f"{match[1]}..." if match[1] else match[0] for match in matches if match) or "(empty: no GPU)"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# State of the files that vramtop keeps for the user between runs.


_MAX_FILE_BYTES = 16 << 20
"""vramtop's own files stay far below this size; a larger one is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One of vramtop's files."""

    name: str
    """Its name."""
    size_bytes: int
    """Its size in bytes."""
    mode: str
    """Its permission bits in octal: ``0600``."""
    state: str
    """``version 1``, the number of runs in a history, or what is wrong with it."""
    sound: bool
    """It can be read."""
    private: bool
    """True if only its owner may read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFolderFacts:
    """The data folder and its files."""

    folder: str
    """Its path."""
    there: bool
    """It exists."""
    writable: bool
    """This user may write to it."""
    files: tuple[DataFile, ...]
    """vramtop's own files in it."""
    set_aside: int
    """Number of damaged files that were set aside."""


def collect_data_folder_facts(folder: Path | None = None) -> DataFolderFacts:
    """Return the state of the user's data folder.

    Args:
        folder: another folder.
    """
    folder = folder or data_folder()
    try:
        names = sorted(each.name for each in os.scandir(folder) if each.is_file())
    except OSError:
        names = []
    return DataFolderFacts(
        folder=str(folder),
        there=folder.is_dir(),
        writable=os.access(folder if folder.exists() else _nearest_parent(folder), os.W_OK),
        files=tuple(_inspect(folder / name) for name in names if name.endswith((".json", ".sqlite3"))),
        set_aside=sum(".damaged-" in name for name in names),
    )


def _nearest_parent(folder: Path) -> Path:
    """Return the nearest existing folder above this one."""
    return next((parent for parent in folder.parents if parent.exists()), Path("/"))


def _inspect(file: Path) -> DataFile:
    try:
        stat = file.stat()
        size, mode = stat.st_size, stat.st_mode & 0o7777
    except OSError:
        size, mode = 0, 0
    sound, state = _history_state(file) if file.suffix == ".sqlite3" else _state(file, size)
    return DataFile(
        name=file.name, size_bytes=size, mode=f"{mode:04o}", state=state, sound=sound, private=not mode & 0o077
    )


def _history_state(file: Path) -> tuple[bool, str]:
    try:
        return True, f"{History(file).count():,} measured runs"
    except CannotTellError as error:
        return False, "damaged" if "is damaged" in error.message else error.message.removeprefix(f"{file}").lstrip(", ")


def _state(file: Path, size: int) -> tuple[bool, str]:
    """Return whether a file is sound, and its version or what is wrong with it."""
    if size > _MAX_FILE_BYTES:
        return False, "larger than vramtop ever writes it"
    try:
        content = decode_json(read_file(file, _MAX_FILE_BYTES))
    except OSError as error:
        return False, f"cannot be read: {error.strerror or 'an error of the system'}"
    except LimitError:
        return False, "damaged"
    version = content.get("version") if isinstance(content, dict) else None
    return (True, f"version {version}") if isinstance(version, int) else (False, "of no known format")


# Permissions of this user: the driver's device files, other users' processes, and pidfds.


_DEVICE_FILE = re.compile(r"nvidia(\d+|ctl|-uvm|-modeset)|dxg|nvhost-gpu|nvmap")
_HIDEPID = re.compile(r"hidepid=(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFile:
    """A device file of the driver."""

    path: str
    """Path of the file."""
    mode: str
    """Permission bits in octal: ``0666``."""
    usable: bool
    """True if this user may read and write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionFacts:
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


def collect_permission_facts(*, proc: Path = Path("/proc"), dev: Path = Path("/dev")) -> PermissionFacts:
    """Return the permissions of this user on this machine.

    Args:
        proc: folder of the processes.
        dev: folder of the device files.
    """
    return PermissionFacts(
        root=os.geteuid() == 0,
        devices=tuple(_device_files(dev)),
        hidepid=_hidepid(proc),
        sees_others=_sees_others(proc),
        pidfd=_has_pidfd(),
    )


def _device_files(dev: Path) -> list[DeviceFile]:
    try:
        names = sorted(name for name in os.listdir(dev) if _DEVICE_FILE.fullmatch(name))  # noqa: PTH208 - names are enough
    except OSError:
        return []
    found = []
    for name in names:
        try:
            mode = (dev / name).stat().st_mode
        except OSError:
            continue
        usable = os.access(dev / name, os.R_OK | os.W_OK)
        found.append(DeviceFile(path=f"/dev/{name}", mode=f"{mode & 0o7777:04o}", usable=usable))
    return found


def _hidepid(proc: Path) -> str | None:
    try:
        lines = (proc / "self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    options = (words[3] for words in map(str.split, lines) if len(words) > 3 and words[1:3] == ["/proc", "proc"])
    found = (match[1] for each in options if (match := _HIDEPID.search(each)))
    return next((word for word in found if word not in ("0", "off")), None)


def _sees_others(proc: Path) -> bool:
    mine = os.getuid()
    for name in os.listdir(proc):  # noqa: PTH208 - hundreds of processes
        if name.isdecimal():
            try:
                if (proc / name).stat().st_uid != mine:
                    return True
            except OSError:
                continue
    return False


def _has_pidfd() -> bool:
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True
