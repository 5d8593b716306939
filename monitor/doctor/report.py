"""Collects the facts about this machine: system, driver, data folder, permissions, and Python interpreters."""

import os
import platform
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.library_versions import find_interpreters
from vramtop.estimator.common.process_limit import ProcessLimitError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.version import DISTRIBUTION
from vramtop.estimator.trace.interpreters import probe_interpreter

from ..host.kernel_files import file_text, read_number
from ..host.process_directory import ProcessDirectory
from ..host.process_stat import HOST_PID_NAMESPACE
from ..preflight.job_launch import active_variable
from ..preflight.machine import DRIVER_TIMEOUT_SECONDS
from ..snapshot.snapshot import GpuReading
from ..sources.nvml.device_calls import DRIVER_VERSION_FILE
from ..sources.nvml.nvml_source import NvmlSource
from ..storage.user_file import data_folder
from .facts import (
    DataFolderFacts,
    DeviceFile,
    DoctorReport,
    DriverFacts,
    GpuFacts,
    InterpreterFacts,
    PermissionFacts,
    SystemFacts,
)
from .redactor import Redactor, make_redactor


def collect_report(environ: Mapping[str, str], *, python: str | None = None) -> DoctorReport:
    """Collect the facts about this machine.

    Args:
        environ: the environment.
        python: value of ``--python``, which is then the only interpreter that is examined.

    Raises:
        InputError: ``python`` does not exist.
    """
    try:
        paths = find_interpreters(python, environ)
    except InputError:
        raise InputError("--python: no such program; give the path of a Python with torch") from None
    redactor = make_redactor(environ)
    system, permissions, files = collect_system_facts(environ), collect_permission_facts(), collect_data_folder_facts()
    driver, named = collect_driver_facts(), None if python is None else "--python"
    report = DoctorReport(
        system=system,
        driver=replace(driver, library=None if driver.library is None else redactor.path(driver.library)),
        access=permissions,
        files=replace(files, folder=redactor.path(files.folder)),
        pythons=tuple(
            _interpreter_facts(path, named or active_variable(path, environ) or "runs vramtop", redactor)
            for path in paths
        ),
    )
    return msgspec.convert(redactor.redact_json(msgspec.to_builtins(report)), DoctorReport)


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
    # NVIDIA UNIX Open Kernel Module for x86_64 580.95.05
    module = re.search(r"^NVRM version:\s*(.*?\d+\.\d+(?:\.\d+)?)", file_text(DRIVER_VERSION_FILE), re.MULTILINE)
    facts = DriverFacts(kernel_module=" ".join(module[1].split()) if module else None)
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
    lines = file_text(Path("/proc/self/maps")).splitlines()
    return next((line.split(None, 5)[5] for line in lines if _LIBRARY in line), None)


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


_DEVICE_FILE = re.compile(r"nvidia(\d+|ctl|-uvm|-modeset)|dxg|nvhost-gpu|nvmap")
_HIDEPID = re.compile(r"^\S+ /proc proc \S*?hidepid=(?!0\b|off\b)(\w+)", re.MULTILINE)


def collect_permission_facts(*, proc: Path = Path("/proc"), dev: Path = Path("/dev")) -> PermissionFacts:
    """Return the permissions of this user on this machine.

    Args:
        proc: folder of the processes.
        dev: folder of the device files.
    """
    hidepid = _HIDEPID.search(file_text(proc / "self/mounts"))
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


def _interpreter_facts(path: Path, named_by: str, redactor: Redactor) -> InterpreterFacts:
    facts = InterpreterFacts(path=redactor.path(path), named_by=named_by)
    try:
        found = probe_interpreter(path)
    except ProcessLimitError as error:
        return replace(facts, problem=error.message)
    if found is None:
        return facts
    return replace(facts, torch=found.torch, transformers=found.transformers, peft=found.peft)


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
