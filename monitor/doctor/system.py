"""Facts about the system: versions, kernel, container, limits, and the session of the terminal."""

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from vramtop.estimator.common import DISTRIBUTION

from ..host import HOST_PID_NAMESPACE, ancestor_pids

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
