"""The facts about the system: versions, kernel, container, limits and variables."""

import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from vramtop.estimator.common.version import DISTRIBUTION

from ..host.cgroup import read_number
from ..host.file_text import file_text
from ..host.process_stat import HOST_PID_NAMESPACE
from .facts import SystemFacts

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


def collect_system_facts(environ: Mapping[str, str], *, root: Path = Path("/")) -> SystemFacts:
    """Return the facts about this system.

    Args:
        environ: the environment.
        root: folder with proc, sys, dev and etc.
    """
    name, version = platform.libc_ver()
    release = platform.release()
    about = re.search(r'^PRETTY_NAME="?([^"\n]+)', file_text(root / "etc/os-release"), re.MULTILINE)
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
        memory_limit_bytes=read_number(root / "sys/fs/cgroup/memory.max"),
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


def _container(environ: Mapping[str, str], root: Path) -> Iterator[str]:
    yield from (word for file, word in _CONTAINER_FILES.items() if (root / file).exists())
    groups = file_text(root / "proc/1/cgroup") + file_text(root / "proc/self/cgroup")
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
