"""Processes of a training job: from any pid of it to its launcher, the program that trains, and all ranks here."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

import psutil

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.readers.program.launchers import Launch, find_program_index, parse_launch
from vramtop.estimator.readers.tools.registry import find_tool_by_launch

_OWN_RANK = re.compile(r"--local[-_]rank=\d+$")
_MAX_SHOWN_CHARACTERS = 120
_GPU_FILE = re.compile(r"/dev/(nvidia\d+|dxg)")
_SHELLS = ("sh", "bash", "zsh", "dash", "fish", "ksh")
_MULTIPROCESSING_MODULES = ("multiprocessing.spawn", "multiprocessing.forkserver", "multiprocessing.resource_tracker")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """What this user may see of a process; None for what is hidden."""

    pid: int
    parent: int | None
    start_time: float
    """Unix seconds; with the pid it identifies the process."""
    argv: tuple[str, ...]
    environ: Mapping[str, str] | None
    """As it was when the program started."""
    cwd: Path | None
    exe: Path | None
    user: str | None
    hidden: tuple[str, ...] = ()
    """What could not be read: ``its environment``, ``its folder``."""

    @property
    def launch(self) -> Launch:
        """Its command line, taken apart; without the rank that a launcher writes on it, which differs for each."""
        launch = parse_launch(self.argv)
        return replace(launch, arguments=tuple(word for word in launch.arguments if not _OWN_RANK.match(word)))

    @property
    def is_helper(self) -> bool:
        """A child that multiprocessing started: its command line says nothing about the job."""
        return any(name in argument for argument in self.argv for name in _MULTIPROCESSING_MODULES)

    @property
    def is_rank(self) -> bool:
        """One of several processes that a launcher started to train."""
        return self.environ is not None and ("RANK" in self.environ or "LOCAL_RANK" in self.environ)

    @property
    def runs_program(self) -> bool:
        """Whether it runs a Python program itself, rather than launching one."""
        launch = self.launch
        return launch.program_name is not None and not (launch.only_launches or self.is_helper or self._is_shell)

    @property
    def _is_shell(self) -> bool:
        return bool(self.argv) and PurePath(self.argv[0].lstrip("-")).name in _SHELLS

    @property
    def command_line(self) -> str:
        """Its command line in one line, for people, cut where it is long."""
        line = " ".join(" ".join(self.argv).replace("\0", " ").split())
        return line if len(line) <= _MAX_SHOWN_CHARACTERS else f"{line[:_MAX_SHOWN_CHARACTERS]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProcesses:
    """The processes of one job."""

    requested: ProcessInfo
    program: ProcessInfo
    """The process whose command line names the training script."""
    launcher: ProcessInfo | None
    ranks: tuple[ProcessInfo, ...]
    """The processes that hold GPU memory, as far as can be told; by rank."""
    self_started: bool = False
    """The program has started its ranks itself (``torch.multiprocessing.spawn``), and holds no GPU memory."""

    @property
    def reporting_process(self) -> ProcessInfo:
        """The process that writes down what all of them do."""
        return self.ranks[0] if self.self_started else self.program


def read_process(pid: int, *, start_time: float | None = None) -> ProcessInfo:
    """One process.

    Args:
        pid: of the process.
        start_time: when it started, where it was seen before: pids are reused.

    Raises:
        InputError: there is no such process.
        CannotTellError: it is a zombie, hidden, or another one than before.
    """
    try:
        process = psutil.Process(pid)
        started = process.create_time()
        argv = process.cmdline()
    except psutil.ZombieProcess:
        raise CannotTellError(f"Process {pid} has ended already (a zombie that its parent has not reaped).") from None
    except psutil.NoSuchProcess:
        raise InputError(f"There is no process {pid} here; it has ended, or lives in another container.") from None
    except (ValueError, OverflowError):
        raise InputError(f"There is no process {pid}; a pid is a positive number.") from None
    except psutil.AccessDenied:
        raise CannotTellError(f"Process {pid} is hidden from this user; run vramtop as its owner or as root.") from None
    if start_time is not None and abs(started - start_time) > 0.05:
        raise CannotTellError(f"Process {pid} is another one by now: the one that was meant has ended.")
    return _see(process, started, argv)


def find_run_processes(asked: ProcessInfo, *, on_gpu: Collection[int] | None = None) -> RunProcesses:
    """The job that a process belongs to, whichever of its processes it is.

    Args:
        asked: the process.
        on_gpu: pids that hold GPU memory, where the driver says; else those with a GPU's device file open count.

    Raises:
        CannotTellError: it runs no Python program, nor do its children or its parents; or its children run several.
    """
    program = _program_of(asked)
    if program is None:
        raise CannotTellError(_no_program(asked))
    launcher = _launcher_of(program)
    copies = _copies(program)
    ranks = copies or _ranks(program, launcher)
    workers = _workers(program, on_gpu) if ranks == (program,) else ()
    if workers:
        return RunProcesses(requested=asked, program=program, launcher=launcher, ranks=workers, self_started=True)
    if copies:
        program = _told_by(copies)
    elif launcher is not None and any(rank.pid == program.pid for rank in ranks):
        program = ranks[0]  # the first one writes down what they all do
    elif asked.is_helper and _is_spawned(asked) and not _holds(program.pid, on_gpu):
        ranks = (asked,)
    return RunProcesses(requested=asked, program=program, launcher=launcher, ranks=ranks)


def _workers(program: ProcessInfo, on_gpu: Collection[int] | None) -> tuple[ProcessInfo, ...]:
    """The processes that a program has started to train for it, while it holds no GPU memory itself."""
    if _holds(program.pid, on_gpu):
        return ()
    children = [child for child in _descendants(program) if child.parent == program.pid]
    alike = [child for child in children if _is_spawned(child) or child.argv == program.argv]
    return tuple(child for child in alike if _holds(child.pid, on_gpu))


def _holds(pid: int, on_gpu: Collection[int] | None) -> bool:
    return pid in on_gpu if on_gpu is not None else _has_gpu_open(pid)


def _is_spawned(seen: ProcessInfo) -> bool:
    return "spawn_main" in " ".join(seen.argv)


def _has_gpu_open(pid: int) -> bool:
    """A process with a CUDA context has the device file of its GPU open (Linux driver; ``/dev/dxg`` in WSL)."""
    folder = f"/proc/{pid}/fd"
    try:
        links = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]  # noqa: PTH115, PTH208 - cheaper
    except OSError:
        return False
    return any(_GPU_FILE.fullmatch(link) for link in links)


def _see(process: psutil.Process, started: float, argv: list[str]) -> ProcessInfo:
    hidden: list[str] = []

    def read(what: str, name: str) -> object | None:
        try:
            value: object = getattr(process, name)()
        except (psutil.Error, OSError):
            hidden.append(what)
            return None
        return value

    environ, cwd = read("its environment", "environ"), read("its folder", "cwd")
    exe, user, parent = read("its interpreter", "exe"), read("its user", "username"), read("its parent", "ppid")
    return ProcessInfo(
        pid=process.pid,
        parent=parent if isinstance(parent, int) else None,
        start_time=started,
        argv=tuple(_text(word) for word in argv),
        environ=_texts(environ) if isinstance(environ, dict) and (environ or not hidden) else None,
        cwd=_folder(process.pid, cwd) if isinstance(cwd, str) and cwd else None,
        exe=Path(exe) if isinstance(exe, str) and exe else None,
        user=user if isinstance(user, str) else None,
        hidden=tuple(hidden),
    )


def _no_program(asked: ProcessInfo) -> str:
    """Why a process's job cannot be told, in a sentence."""
    unread = f"Process {asked.pid} ({asked.command_line or 'no command line'})"
    if not asked.argv:
        return (
            f"{unread} runs no Python program that can be read: it is part of the kernel, or just starting or ending."
        )
    is_python = asked.exe is not None and asked.exe.name.startswith("python")
    if is_python and not PurePath(asked.argv[0]).name.startswith("python"):
        return f"{unread} has overwritten its own command line, so its job cannot be told; describe it in a job file."
    if is_python:
        return f"{unread} runs Python code that no file holds, so its job cannot be told; describe it in a job file."
    return f"{unread} runs no Python script or module that can be read, so its job cannot be told."


def _text(word: str) -> str:
    """Text that can be written down again; bytes that are no UTF-8 become question marks."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _texts(environ: Mapping[str, str]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in environ.items()}


def _folder(pid: int, cwd: str) -> Path:
    """A working folder; by way of ``/proc`` where its name is no text."""
    return Path(cwd if _text(cwd) == cwd else f"/proc/{pid}/cwd")


def _program_of(asked: ProcessInfo) -> ProcessInfo | None:
    """The process with the training script: this one, the one that forked or spawned it, or one that it launched."""
    for seen in (asked, *_ancestors(asked)):
        if not seen.is_helper and seen.argv:
            break
    else:
        return None
    if seen.runs_program:
        return _started_by(seen) or _original(seen)
    if not seen.launch.launchers and seen is not asked:
        return None
    return _started_by(seen)


def _started_by(seen: ProcessInfo) -> ProcessInfo | None:
    """The program that a launcher, a shell or a wrapper (``timeout 1h python train.py``) started and waits for."""
    tool = bool(seen.launch.launchers)
    if seen.runs_program and find_program_index(seen.argv) == 0 and not tool:
        return None  # it is the program; its children are its helpers
    children = _outermost([child for child in _descendants(seen) if child.runs_program and child.argv != seen.argv])
    if tool:  # it may train itself, with loggers for children
        own = find_tool_by_launch(seen.launch)
        children = [child for child in children if find_tool_by_launch(child.launch) is own] if own else children
    elif seen.runs_program:
        children = [child for child in children if child.launch.program_name == seen.launch.program_name]
    numbered = [child for child in children if child.is_rank]
    different = {child.argv: child for child in reversed(children)}
    if len(different) > 1 and not numbered and not seen.launch.launchers:
        named = ", ".join(f"{child.pid} ({child.launch.program_name})" for child in reversed(different.values()))
        raise CannotTellError(f"Process {seen.pid} has started several programs: {named}; give the pid of one of them.")
    chosen = sorted(numbered or children[:1], key=_rank_key)
    return chosen[0] if chosen else None


def _outermost(programs: Sequence[ProcessInfo]) -> list[ProcessInfo]:
    """Those that none of the others started: a program's compilers and loggers are Python programs too."""
    pids = {program.pid for program in programs}
    return [program for program in programs if not any(parent.pid in pids for parent in _ancestors(program))]


def _original(seen: ProcessInfo) -> ProcessInfo:
    """A process forked by the program (a data loader's worker) has its parent's command line and environment."""
    for parent in _ancestors(seen):
        if parent.argv != seen.argv or parent.environ != seen.environ:
            break
        seen = parent
    return seen


def _launcher_of(program: ProcessInfo) -> ProcessInfo | None:
    """The nearest ancestor that launched this very program."""
    mine = program.launch
    for parent in _ancestors(program):
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
    if launcher is not None and program.environ is None:  # whose ranks are hidden: those that the launcher started
        children = [child for child in _descendants(launcher) if child.launch == program.launch]
        return tuple(child for child in children if child.parent == launcher.pid) or (program,)
    if launcher is None or not program.is_rank:
        return (program,)
    children = [child for child in _descendants(launcher) if child.is_rank and child.launch == program.launch]
    numbers = {_rank_key(child): child for child in reversed(children)}  # a forked worker repeats its parent's rank
    return tuple(numbers[key] for key in sorted(numbers)) or (program,)


def _copies(program: ProcessInfo) -> tuple[ProcessInfo, ...]:
    """The ranks of a program that starts itself again for each further GPU, as Lightning does; rank 0 is the first.

    That one is told no rank by its environment, the others only their place on this machine.
    """
    environ = program.environ or {}
    first = program
    if "LOCAL_RANK" in environ and "RANK" not in environ:
        first = next(_ancestors(program), program)
    if first.argv != program.argv or "LOCAL_RANK" in (first.environ or {}):
        return ()
    copies = [child for child in _descendants(first) if child.parent == first.pid and child.argv == first.argv]
    others = [copy for copy in copies if "LOCAL_RANK" in (copy.environ or {})]
    return (first, *sorted(others, key=_rank_key)) if others else ()


def _told_by(copies: Sequence[ProcessInfo]) -> ProcessInfo:
    """The first rank, with what the others' environments say of how many there are."""
    first, told = copies[0], copies[-1].environ or {}
    world = {name: told[name] for name in ("WORLD_SIZE",) if name in told}
    return replace(first, environ={**(first.environ or {}), **world})


def _rank_key(seen: ProcessInfo) -> tuple[int, int]:
    environ = seen.environ or {}
    return parse_rank(environ.get("RANK")) or 0, parse_rank(environ.get("LOCAL_RANK")) or 0


def parse_rank(text: str | None) -> int | None:
    """A rank's number, or None."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else None


def _ancestors(seen: ProcessInfo) -> Iterator[ProcessInfo]:
    pid = seen.parent
    while pid and pid != os.getpid() and pid > 1:
        try:
            parent = read_process(pid)
        except (InputError, CannotTellError):
            return
        yield parent
        pid = parent.parent


def _descendants(seen: ProcessInfo) -> Iterator[ProcessInfo]:
    """Children and theirs, in the order in which they started."""
    try:
        children = psutil.Process(seen.pid).children(recursive=True)
    except psutil.Error:
        return
    for child in sorted(children, key=lambda process: process.pid):
        try:
            yield read_process(child.pid)
        except (InputError, CannotTellError):  # ended meanwhile
            continue
