"""One process as vramtop may read it: command line, environment, folder, interpreter and parent."""

import math
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Literal

import msgspec
import psutil

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.limits import LimitError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.secrets import displayed_arguments
from vramtop.estimator.common.trust import find_program
from vramtop.estimator.readers.program.program import Launch
from vramtop.estimator.readers.tools.tool_registry import find_program_index, find_tool_by_launch, parse_launch

from .kinds import has_server_title, identify
from .known_programs import KnownProgram
from .processes import is_same_start, open_files, processes_by_parent, read_command_line, read_environ

UnreadableReason = Literal["no access", "ended", "starting", "unreadable", "not training", "server", "too long"]
_LOCAL_RANK_OPTION = re.compile(r"--local[-_]rank=\d+$")
_MAX_COMMAND_CHARACTERS = 120
_SHELLS = ("sh", "bash", "zsh", "dash", "fish", "ksh")
_CONTAINER_INITS = ("tini", "tini-static", "dumb-init", "docker-init", "catatonit", "timeout", "env", "nohup")
_MULTIPROCESSING_MODULES = (
    "multiprocessing.spawn",
    "multiprocessing.forkserver",
    "multiprocessing.resource_tracker",
)


class UnreadableProcessError(CannotTellError):
    """A process cannot be read, or runs nothing that could be a training job.

    Args:
        message: one sentence about it.
        reason: the same in a word or two.
    """

    def __init__(self, message: str, *, reason: UnreadableReason) -> None:
        super().__init__(message)
        self.reason = reason


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One process as far as this user may read it; None: hidden."""

    pid: int
    parent: int | None
    start_time: float
    """Unix seconds; with the pid it identifies the process."""
    argv: tuple[str, ...]
    environ: Mapping[str, str] | None
    """Environment as it was when the program started."""
    cwd: Path | None
    exe: Path | None
    user: str | None
    hidden: tuple[str, ...] = ()
    """What could not be read: ``its environment``, ``its folder``."""

    @property
    def launch(self) -> Launch:
        """Its parsed command line, without a launcher's ``--local-rank`` option, which differs between ranks."""
        launch = parse_launch(self.argv)
        return replace(launch, arguments=tuple(each for each in launch.arguments if not _LOCAL_RANK_OPTION.match(each)))

    @property
    def is_helper(self) -> bool:
        """True if multiprocessing started it: its command line says nothing about the job."""
        return any(name in argument for argument in self.argv for name in _MULTIPROCESSING_MODULES)

    @property
    def is_titled(self) -> bool:
        """True if a server has put a title in place of its command line: that of the server says what it runs."""
        return has_server_title(self.argv)

    @property
    def known_program(self) -> KnownProgram:
        """The program that its command line names, by the tables of programs."""
        return identify(None, " ".join(self.argv))

    @property
    def is_rank(self) -> bool:
        """True if a launcher started it as one of the ranks of a job."""
        return self.environ is not None and ("RANK" in self.environ or "LOCAL_RANK" in self.environ)

    @property
    def rank_order(self) -> tuple[int, int]:
        """Global and local rank, by which the ranks of a job are sorted; 0 where they are unknown."""
        environ = self.environ or {}
        return parse_rank(environ.get("RANK")) or 0, parse_rank(environ.get("LOCAL_RANK")) or 0

    @property
    def is_spawned(self) -> bool:
        """True if multiprocessing's spawn method started it."""
        return "spawn_main" in " ".join(self.argv)

    @property
    def runs_program(self) -> bool:
        """True if it runs a Python program itself, rather than launching one."""
        launch = self.launch
        return launch.program_name is not None and not (launch.only_launches or self.is_helper or self._is_shell)

    @property
    def is_init(self) -> bool:
        """True for the process that starts a machine's services; a container's may start its only program."""
        name = PurePath(self.argv[0]).name if self.argv else ""
        return self.pid == 1 and not self.launch.launchers and not self._is_shell and name not in _CONTAINER_INITS

    @property
    def _is_shell(self) -> bool:
        return bool(self.argv) and PurePath(self.argv[0].lstrip("-")).name in _SHELLS

    @property
    def command_line(self) -> str:
        """Its command line in one line, without secrets, cut where it is long."""
        line = " ".join(" ".join(displayed_arguments(self.argv)).replace("\0", " ").split())
        return line if len(line) <= _MAX_COMMAND_CHARACTERS else f"{line[:_MAX_COMMAND_CHARACTERS]}..."


def read_process(pid: int, *, start_time: float | None = None, cut: bool = False) -> ProcessInfo:
    """Read one process.

    Args:
        pid: of the process.
        start_time: Unix seconds, if it was seen before: pids are reused.
        cut: read the beginning of a command line and an environment that are too long, for display.

    Raises:
        InputError: there is no such process.
        CannotTellError: it is a zombie, hidden, another process than before, or too long.
    """
    try:
        process = psutil.Process(pid)
        started = process.create_time()
        argv = read_command_line(pid, cut=cut)
        environ = _environ(pid, cut=cut)
        if not argv and process.status() == psutil.STATUS_ZOMBIE:
            sentence = f"Process {pid} has ended already (a zombie that its parent has not reaped)."
            raise UnreadableProcessError(sentence, reason="ended")
    except LimitError as error:
        sentence = f"Process {pid} is not read: {error}. Describe its job in a job file."
        raise UnreadableProcessError(sentence, reason="too long") from None
    except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
        raise InputError(f"There is no process {pid} here; it has ended, or lives in another container.") from None
    except (ValueError, OverflowError):
        raise InputError(f"There is no process {pid}; a pid is a positive number.") from None
    except (psutil.AccessDenied, PermissionError):
        sentence = f"Process {pid} is hidden from this user; run vramtop as its owner or as root."
        raise UnreadableProcessError(sentence, reason="no access") from None
    if start_time is not None and not is_same_start(started, start_time):
        sentence = f"Process {pid} is now a different process: the one you meant has ended."
        raise UnreadableProcessError(sentence, reason="ended")
    return _process_info(process, started, argv, environ)


def ancestors(process: ProcessInfo) -> Iterator[ProcessInfo]:
    """Yield its parent, its parent's parent and so on, up to vramtop itself.

    The first process is one of them: in a container it runs the program.
    """
    pid = process.parent
    while pid and pid != os.getpid():
        try:
            parent = read_process(pid)
        except (InputError, CannotTellError):
            return
        yield parent
        pid = parent.parent


def descendants(process: ProcessInfo) -> Iterator[ProcessInfo]:
    """Yield its children and their children, in the order of their pids; not this process and what it has started."""
    children = _TREE.children()
    found, waiting = set[int](), [process.pid]
    while waiting:
        new = set(children.get(waiting.pop(), ())) - found - {os.getpid()}
        found |= new
        waiting += new
    for pid in sorted(found - {process.pid}):
        try:
            yield read_process(pid)
        except (InputError, CannotTellError):  # it has just ended
            continue


def remember_process_tree(seconds: float) -> None:
    """Look for children in a tree of processes that may be so old: with thousands of them, reading it takes long."""
    _TREE.max_age_seconds = seconds


class _ProcessTree(msgspec.Struct):
    """The children of all processes, remembered for a while."""

    max_age_seconds: float = 0.0
    _children: Mapping[int, Sequence[int]] = msgspec.field(default_factory=dict)
    _read_at: float = -math.inf

    def children(self) -> Mapping[int, Sequence[int]]:
        if time.monotonic() - self._read_at >= self.max_age_seconds:
            self._children, self._read_at = processes_by_parent(), time.monotonic()
        return self._children


_TREE = _ProcessTree()


def parse_rank(text: str | None) -> int | None:
    """Return the number in a rank or world size variable; None if it is missing or no number."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else None


def _environ(pid: int, *, cut: bool) -> dict[str, str] | None:
    try:
        return read_environ(pid, cut=cut)
    except OSError:
        return None


def _process_info(
    process: psutil.Process, started: float, argv: list[str], environ: dict[str, str] | None
) -> ProcessInfo:
    hidden = [] if environ is not None else ["its environment"]

    def read(what: str, name: str) -> object | None:
        try:
            value: object = getattr(process, name)()
        except (psutil.Error, OSError):
            hidden.append(what)
            return None
        return value

    cwd = read("its folder", "cwd")
    exe, user, parent = read("its interpreter", "exe"), read("its user", "username"), read("its parent", "ppid")
    return ProcessInfo(
        pid=process.pid,
        parent=parent if isinstance(parent, int) else None,
        start_time=started,
        argv=tuple(argv),
        environ=environ,
        cwd=_folder(process.pid, cwd) if isinstance(cwd, str) and cwd else None,
        exe=Path(exe) if isinstance(exe, str) and exe else None,
        user=user if isinstance(user, str) else None,
        hidden=tuple(hidden),
    )


def _encodable(text: str) -> str:
    """Return text that can be encoded as UTF-8; bytes that are not UTF-8 become replacement characters."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _folder(pid: int, cwd: str) -> Path:
    """Return a working folder; by way of ``/proc`` if its name is not UTF-8."""
    return Path(cwd if _encodable(cwd) == cwd else f"/proc/{pid}/cwd")


# The Python interpreter of a running process and the versions installed with it; nothing is executed.


FRAMEWORKS = (
    *("torch", "transformers", "trl", "accelerate", "peft", "deepspeed", "bitsandbytes", "liger_kernel"),
    *("litgpt", "torchtitan", "megatron_fsdp", "vllm", "sglang"),
)
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_MAX_MAPS_BYTES = 2**22
"""Read of ``/proc/PID/maps``, whose length is up to the process."""
_PYTHON = re.compile(r"python[0-9.]*")


def find_interpreter(process: ProcessInfo, *, root: Path | None = None) -> Path | None:
    """Find the interpreter by the path with which the process was started, which names its virtual environment.

    Args:
        process: the process.
        root: path of its root folder as seen from here; None: it shares ours.
    """
    environ = process.environ or {}
    command = process.argv[0] if process.argv else ""
    candidates: list[Path | None] = []
    if _PYTHON.fullmatch(Path(command).name):
        on_path = find_program(command, environ.get("PATH")) if "/" not in command and root is None else None
        candidates.append(on_path if on_path else (process.cwd or Path()) / command if "/" in command else None)
    candidates += [
        Path(environ[variable]) / "bin" / "python"
        for variable in ("VIRTUAL_ENV", "CONDA_PREFIX")
        if variable in environ
    ]
    candidates.append(process.exe)
    rooted = [_under(root, path) for path in candidates if path is not None]
    return next((path for path in rooted if os.access(path, os.F_OK)), None)


def installed_versions(process: ProcessInfo, interpreter: Path | None, *, root: Path | None = None) -> dict[str, str]:
    """Return the frameworks' versions by name, from the names of their ``*.dist-info`` folders.

    A package with loaded libraries counts where these were loaded from; others where Python looks for them: first in
    PYTHONPATH, then in the interpreter's package folders.

    Args:
        process: the process.
        interpreter: its interpreter, if known.
        root: path of its root folder as seen from here; None: it shares ours.
    """
    loaded = _loaded_packages(process.pid)
    python_path = (process.environ or {}).get("PYTHONPATH", "").split(":")
    others = [*(_under(root, Path(each)) for each in python_path if each[:1] == "/"), *_package_folders(interpreter)]
    versions: dict[str, str] = {}
    for framework in FRAMEWORKS:
        own = [_under(root, Path(folder)) for folder, package in loaded if package == framework]
        rest = [_under(root, Path(folder)) for folder, package in loaded if package != framework]
        for folder in dict.fromkeys((*own, *others, *rest)):
            found = sorted(folder.glob(f"{framework}-*.dist-info"))
            if found:
                versions[framework] = found[-1].name.removesuffix(".dist-info").partition("-")[2]
                break
    return versions


def _package_folders(interpreter: Path | None) -> Iterator[Path]:
    """Yield the package folders of an interpreter, its virtual environment's first."""
    if interpreter is None:
        return
    for prefix in dict.fromkeys((interpreter.parent.parent, interpreter.resolve().parent.parent)):
        for library in ("lib", "lib64", "local/lib"):
            for name in _PACKAGE_FOLDERS:
                yield from sorted((prefix / library).glob(f"python3*/{name}"))


def _loaded_packages(pid: int) -> Iterable[tuple[str, str]]:
    """Return (package folder, package) for each package of which the process has a library loaded."""
    try:
        with Path(f"/proc/{pid}/maps").open("rb") as file:
            maps = file.read(_MAX_MAPS_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ()
    found: dict[tuple[str, str], None] = {}
    for line in maps.splitlines():
        _, slash, path = line.partition("/")
        for kind in _PACKAGE_FOLDERS:
            folder, mark, package = f"{slash}{path}".partition(f"/{kind}/")
            if mark:
                found[f"{folder}/{kind}", package.partition("/")[0]] = None
                break
    return tuple(found)


def _under(root: Path | None, path: Path) -> Path:
    return path if root is None or not path.is_absolute() or path.is_relative_to(root) else root / path.relative_to("/")


# Processes of a run: from any of its pids to the launcher, the program that trains, and all ranks on this machine.


_WORKING_ROLES = (re.compile(r"::Worker"), re.compile(r"::(EngineCore|scheduler)"))
"""Titles of the processes of a server that hold GPU memory: vLLM's workers, or its engine without any; SGLang's
schedulers."""
_NUMBER = re.compile(r"\d+")
_RENDEZVOUS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
"""The ranks of one job have the same values of these."""
_GPU_FILE = re.compile(r"/dev/(nvidia\d+|dxg)")


class RunProcesses(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of one run."""

    requested: ProcessInfo
    """The process that was asked for."""
    program: ProcessInfo
    """The process whose command line names the training script."""
    launcher: ProcessInfo | None
    ranks: tuple[ProcessInfo, ...]
    """The processes that hold GPU memory, as far as known; by rank."""
    self_started: bool = False
    """The program has started its ranks itself (``torch.multiprocessing.spawn``), and holds no GPU memory."""

    @property
    def reporting_process(self) -> ProcessInfo:
        """The process that writes the logs and checkpoints of all ranks."""
        return self.ranks[0] if self.self_started else self.program


def find_run_processes(requested: ProcessInfo, *, on_gpu: Collection[int] | None = None) -> RunProcesses:
    """Find the run that a process belongs to, whichever of its processes it is.

    Args:
        requested: any process of the run.
        on_gpu: pids that hold GPU memory; None: unknown, so processes with a GPU's device file open count instead.

    Raises:
        CannotTellError: neither it nor its children or parents run a Python program, its children run several, or it is
            of a server whose memory is not known.
    """
    program = _program_of(requested)
    if program is None:
        raise _no_program_error(requested)
    known = program.known_program
    serves = known.kind == "server"
    if serves and not known.has_job:
        raise _server_error(requested, f"belongs to {known.name}, a server")
    if requested.is_titled and not serves:
        what = f"is an engine that process {program.pid} ({program.launch.program_name}) has started"
        raise _server_error(requested, what)
    launcher = _launcher_of(program)
    copies = _self_launched_ranks(program)
    ranks = copies or _ranks(program, launcher)
    workers = _server_workers(program) if serves else ()
    if not workers and ranks == (program,):
        workers = _spawned_ranks(program, on_gpu, any_depth=serves)
    if workers:
        return RunProcesses(requested=requested, program=program, launcher=launcher, ranks=workers, self_started=True)
    if copies:
        program = _with_world_size(copies)
    elif (launcher is not None or len(ranks) > 1) and any(rank.pid == program.pid for rank in ranks):
        program = ranks[0]  # rank 0 writes logs and checkpoints for all
    elif requested.is_helper and requested.is_spawned and not _holds_gpu_memory(program.pid, on_gpu):
        ranks = (requested,)
    return RunProcesses(requested=requested, program=program, launcher=launcher, ranks=ranks)


def _program_of(requested: ProcessInfo) -> ProcessInfo | None:
    """Return the process with the training script: this one, the one that forked it, or one that it launched."""
    for process in (requested, *ancestors(requested)):
        if not process.is_helper and not process.is_titled and process.argv:
            break
    else:
        return None
    if process.runs_program:
        return _started_by(process) or _original(process)
    if process.is_init:
        return None
    if not process.launch.launchers and process is not requested:
        return None
    return _started_by(process)


def _started_by(process: ProcessInfo) -> ProcessInfo | None:
    """Return the program that a launcher, shell or wrapper (``timeout 1h python train.py``) started and waits for."""
    is_tool = bool(process.launch.launchers)
    if process.runs_program and find_program_index(process.argv) == 0 and not is_tool:
        return None  # it is the program; its children are its helpers
    programs = [each for each in descendants(process) if each.runs_program and each.argv != process.argv]
    children = _outermost(programs)
    if is_tool:  # it may train itself, with loggers as children
        tool = find_tool_by_launch(process.launch)
        children = [child for child in children if find_tool_by_launch(child.launch) is tool] if tool else children
    elif process.runs_program:
        children = [child for child in children if child.launch.program_name == process.launch.program_name]
    ranks = [child for child in children if child.is_rank]
    different = {child.argv: child for child in reversed(children)}
    if len(different) > 1 and not ranks and not process.launch.launchers:
        named = ", ".join(f"{child.pid} ({child.launch.program_name})" for child in reversed(different.values()))
        raise CannotTellError(
            f"Process {process.pid} has started several programs: {named}; give the pid of one of them."
        )
    chosen = sorted(ranks or children[:1], key=lambda child: child.rank_order)
    return chosen[0] if chosen else None


def _outermost(programs: Sequence[ProcessInfo]) -> list[ProcessInfo]:
    """Drop programs that another one started: a program's compilers and loggers are Python programs too."""
    pids = {program.pid for program in programs}
    return [program for program in programs if not any(parent.pid in pids for parent in ancestors(program))]


def _original(process: ProcessInfo) -> ProcessInfo:
    """Return the program that forked a process: a fork (a data loader worker) has its command line and environment."""
    for parent in ancestors(process):
        if parent.argv != process.argv or parent.environ != process.environ:
            break
        process = parent
    return process


def _server_error(requested: ProcessInfo, what: str) -> UnreadableProcessError:
    sentence = f"Process {requested.pid} {what}; no launch line tells vramtop how much memory it takes."
    return UnreadableProcessError(sentence, reason="server")


def _no_program_error(requested: ProcessInfo) -> UnreadableProcessError:
    """Return the error of a process whose job is unknown."""
    process = f"Process {requested.pid} ({requested.command_line or 'no command line'})"
    if not requested.argv:
        return UnreadableProcessError(
            f"{process} runs no readable Python program: it is part of the kernel, or is starting or ending.",
            reason="starting",
        )
    is_python = requested.exe is not None and requested.exe.name.startswith("python")
    if is_python and not PurePath(requested.argv[0]).name.startswith("python"):
        return UnreadableProcessError(
            f"{process} has overwritten its own command line, so its job is unknown; describe it in a job file.",
            reason="unreadable",
        )
    if is_python:
        return UnreadableProcessError(
            f"{process} runs Python code that is not in a file, so its job is unknown; describe it in a job file.",
            reason="unreadable",
        )
    if requested.is_init:
        sentence = f"{process} is not a training process; vramtop --once lists those on this machine's GPUs."
        return UnreadableProcessError(sentence, reason="not training")
    return UnreadableProcessError(
        f"{process} runs no readable Python script or module, so its job is unknown.", reason="not training"
    )


def _launcher_of(program: ProcessInfo) -> ProcessInfo | None:
    """Return the nearest ancestor that launched this program."""
    mine = program.launch
    for parent in ancestors(program):
        launch = parent.launch
        same_tool = (
            "tool" in launch.launchers
            and find_tool_by_launch(launch) is find_tool_by_launch(mine)
            and parent.argv != program.argv
        )
        same = mine.program_name == launch.program_name or mine.trl_command == (launch.trl_command or "") or same_tool
        if launch.launchers and same:
            return parent
    return None


def _ranks(program: ProcessInfo, launcher: ProcessInfo | None) -> tuple[ProcessInfo, ...]:
    """Return the ranks that a launcher started; the program alone if there is no launcher."""
    if launcher is not None and program.environ is None:  # ranks are hidden: the launcher's children count
        children = [child for child in descendants(launcher) if child.launch == program.launch]
        return tuple(child for child in children if child.parent == launcher.pid) or (program,)
    if not program.is_rank:
        return (program,)
    if launcher is None:
        return _ranks_of_any_starter(program)
    children = [child for child in descendants(launcher) if child.is_rank and child.launch == program.launch]
    by_rank = {child.rank_order: child for child in reversed(children)}  # a forked worker repeats its parent's rank
    return tuple(by_rank[rank] for rank in sorted(by_rank)) or (program,)


def _ranks_of_any_starter(program: ProcessInfo) -> tuple[ProcessInfo, ...]:
    """Return the ranks that a site's own script started side by side: one program, one rendezvous, different ranks."""
    starter = next(ancestors(program), None)
    if starter is None or starter.pid <= 1 or not (program.environ or {}).get("WORLD_SIZE"):
        return (program,)
    alike = [
        child
        for child in descendants(starter)
        if child.parent == starter.pid and child.is_rank and child.launch == program.launch
        if _rendezvous(child) == _rendezvous(program)
    ]
    by_rank = {child.rank_order: child for child in alike}
    return tuple(by_rank[rank] for rank in sorted(by_rank)) if len(alike) == len(by_rank) > 1 else (program,)


def _rendezvous(process: ProcessInfo) -> tuple[str | None, ...]:
    environ = process.environ or {}
    return tuple(environ.get(name) for name in _RENDEZVOUS_VARIABLES)


def _self_launched_ranks(program: ProcessInfo) -> tuple[ProcessInfo, ...]:
    """Return the ranks of a program that starts itself again for each further GPU, as Lightning does; rank 0 first.

    The environment of rank 0 names no rank; those of the others name only their local rank.
    """
    environ = program.environ or {}
    first = program
    if "LOCAL_RANK" in environ and "RANK" not in environ:
        first = next(ancestors(program), program)
    if first.argv != program.argv or "LOCAL_RANK" in (first.environ or {}):
        return ()
    copies = [child for child in descendants(first) if child.parent == first.pid and child.argv == first.argv]
    others = [copy for copy in copies if "LOCAL_RANK" in (copy.environ or {})]
    return (first, *sorted(others, key=lambda copy: copy.rank_order)) if others else ()


def _with_world_size(copies: Sequence[ProcessInfo]) -> ProcessInfo:
    """Return rank 0 with the world size from the environment of the other ranks."""
    first, others = copies[0], copies[-1].environ or {}
    world = {name: others[name] for name in ("WORLD_SIZE",) if name in others}
    return replace(first, environ={**(first.environ or {}), **world})


def _spawned_ranks(
    program: ProcessInfo, on_gpu: Collection[int] | None, *, any_depth: bool = False
) -> tuple[ProcessInfo, ...]:
    """Return the processes that a program has started to train for it, if it holds no GPU memory itself.

    Args:
        program: the program.
        on_gpu: pids that hold GPU memory; None: unknown.
        any_depth: processes that these have started count too, such as the workers of a server's engine.
    """
    if _holds_gpu_memory(program.pid, on_gpu):
        return ()
    children = [child for child in descendants(program) if any_depth or child.parent == program.pid]
    alike = [child for child in children if child.is_spawned or child.argv == program.argv]
    return tuple(child for child in alike if _holds_gpu_memory(child.pid, on_gpu))


def _server_workers(program: ProcessInfo) -> tuple[ProcessInfo, ...]:
    """Return the processes of a server that hold GPU memory, which their titles tell: ``VLLM::Worker_TP1``.

    An engine of one GPU has no workers and holds the memory itself: ``VLLM::EngineCore``.
    """
    titled = [child for child in descendants(program) if child.is_titled]
    for role in _WORKING_ROLES:
        if found := [child for child in titled if role.search(child.argv[0])]:
            return tuple(sorted(found, key=lambda child: [int(number) for number in _NUMBER.findall(child.argv[0])]))
    return ()


def _holds_gpu_memory(pid: int, on_gpu: Collection[int] | None) -> bool:
    return pid in on_gpu if on_gpu is not None else _has_gpu_open(pid)


def _has_gpu_open(pid: int) -> bool:
    """Return True if a GPU's device file is open, as with a CUDA context (Linux driver; ``/dev/dxg`` in WSL)."""
    try:
        return any(_GPU_FILE.fullmatch(target) for _, target in open_files(pid))
    except OSError:
        return False
