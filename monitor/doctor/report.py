"""The doctor's report: all facts, collected in parallel within a time limit and without names of users and hosts."""

import os
import pwd
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from vramtop.estimator.common.errors import InputError, ProcessLimitError, start_thread
from vramtop.estimator.trace.interpreters import find_interpreters, probe_interpreter

from ..preflight.facts import DRIVER_TIMEOUT_SECONDS
from .driver_facts import DriverFacts, DriverProcess, GpuFacts
from .system import (
    DataFolderFacts,
    PermissionFacts,
    SystemFacts,
    collect_data_folder_facts,
    collect_permission_facts,
    collect_system_facts,
)

# Removes from a bug report the names of users and hosts, and the folders in which users keep their work.


_REDACT_SYSTEM_FOLDERS = (
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/sbin",
    "/dev",
    "/nix/store",
    "/run/opengl-driver",
    "/opt/conda",
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
        if any(pure.is_relative_to(folder) for folder in _REDACT_SYSTEM_FOLDERS):
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
    try:
        entry = pwd.getpwuid(os.getuid())
        names += [entry.pw_name, *entry.pw_gecos.split(",")[0].split()]
        home = environ.get("HOME") or entry.pw_dir
    except KeyError:  # the user of a container, without a name
        home = environ.get("HOME") or "/"
    return Redactor(Path(home), [*names, Path(home).name])


# The Python interpreters that could run vramtop's workers, and the frameworks that each of them has.


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpreterFacts:
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


class InterpreterProbes:
    """Probes each interpreter on a thread of its own.

    Args:
        paths: interpreters.
        environ: the environment.
        python: value of ``--python``.
        redactor: removes names from the paths.
    """

    def __init__(self, paths: list[Path], environ: Mapping[str, str], python: str | None, redactor: Redactor) -> None:
        self._facts = {
            path: InterpreterFacts(path=redactor.path(path), named_by=_named_by(path, python, environ), answered=False)
            for path in paths
        }
        self._threads = [threading.Thread(target=self._probe, args=(path,), daemon=True) for path in paths]
        for path, thread in zip(paths, self._threads, strict=True):
            try:
                start_thread(thread)
            except ProcessLimitError as error:
                self._facts[path] = replace(self._facts[path], problem=error.message)

    def facts(self, deadline: float) -> tuple[InterpreterFacts, ...]:
        """Return the facts that are known at the deadline (``time.monotonic``)."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        return tuple(self._facts.values())

    def _probe(self, path: Path) -> None:
        facts = replace(self._facts[path], answered=True)
        try:
            found = probe_interpreter(path)
        except ProcessLimitError as error:
            self._facts[path] = replace(facts, problem=error.message)
            return
        if found is not None:
            facts = replace(facts, torch=found.torch, transformers=found.transformers, peft=found.peft)
        self._facts[path] = facts


def _named_by(path: Path, python: str | None, environ: Mapping[str, str]) -> str:
    if python is not None:
        return "--python"
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(name) and path == Path(environ[name]) / "bin" / "python":
            return name
    return "runs vramtop"


TIMEOUT_SECONDS = DRIVER_TIMEOUT_SECONDS
"""Time limit for the driver and the interpreters together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """All facts about this machine."""

    system: SystemFacts
    driver: DriverFacts
    access: PermissionFacts
    files: DataFolderFacts
    pythons: tuple[InterpreterFacts, ...]


def collect_report(
    environ: Mapping[str, str], *, python: str | None = None, seconds: float = TIMEOUT_SECONDS
) -> DoctorReport:
    """Collect the facts about this machine.

    Args:
        environ: the environment.
        python: value of ``--python``, which is then the only interpreter that is examined.
        seconds: time limit for the driver and the interpreters.

    Raises:
        InputError: ``python`` does not exist.
    """
    deadline = time.monotonic() + seconds
    try:
        paths = find_interpreters(python, environ)
    except InputError:
        raise InputError("--python: no such program; give the path of a Python with torch") from None
    driver_process = DriverProcess()  # forks, so it must start before any thread
    redactor = make_redactor(environ)
    interpreters = InterpreterProbes(paths, environ, python, redactor)
    system, permissions, files = collect_system_facts(environ), collect_permission_facts(), collect_data_folder_facts()
    driver = driver_process.facts(max(0.0, deadline - time.monotonic()))
    report = DoctorReport(
        system=system,
        driver=replace(driver, library=None if driver.library is None else redactor.path(driver.library)),
        access=permissions,
        files=replace(files, folder=redactor.path(files.folder)),
        pythons=interpreters.facts(deadline),
    )
    return msgspec.convert(redactor.redact_json(msgspec.to_builtins(report)), DoctorReport)


# Issues that the doctor finds: everything wrong or unusual, the most severe first.


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
