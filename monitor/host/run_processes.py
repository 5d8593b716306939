"""Processes of a run: from any of its pids to the launcher, the program that trains, and all ranks on this machine."""

import re
from collections.abc import Collection
from pathlib import PurePath

import msgspec

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.records import replace
from vramtop.estimator.readers.tools.tool_registry import find_program_index, find_tool_by_launch

from .process_info import ProcessInfo, UnreadableProcessError, UnreadableReason, ancestors, descendants
from .process_stat import open_files


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
        others = copies[-1].environ or {}  # rank 0 has the world size of the other ranks
        world = {name: others[name] for name in ("WORLD_SIZE",) if name in others}
        program = replace(copies[0], environ={**(copies[0].environ or {}), **world})
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
    pids = {each.pid for each in programs}  # a program's compilers and loggers are Python programs too
    children = [each for each in programs if not any(parent.pid in pids for parent in ancestors(each))]
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
    is_python = requested.exe is not None and requested.exe.name.startswith("python")
    reason: UnreadableReason = "not training"
    if not requested.argv:
        reason = "starting"
        sentence = f"{process} runs no readable Python program: it is part of the kernel, or is starting or ending."
    elif is_python and not PurePath(requested.argv[0]).name.startswith("python"):
        reason = "unreadable"
        sentence = f"{process} has overwritten its own command line, so its job is unknown; describe it in a job file."
    elif is_python:
        reason = "unreadable"
        sentence = (
            f"{process} runs Python code that is not in a file, so its job is unknown; describe it in a job file."
        )
    elif requested.is_init:
        sentence = f"{process} is not a training process; vramtop --once lists those on this machine's GPUs."
    else:
        sentence = f"{process} runs no readable Python script or module, so its job is unknown."
    return UnreadableProcessError(sentence, reason=reason)


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


_RENDEZVOUS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
"""The ranks of one job have the same values of these."""


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


_WORKING_ROLES = (re.compile(r"::Worker"), re.compile(r"::(EngineCore|scheduler)"))
"""Titles of the processes of a server that hold GPU memory: vLLM's workers, or its engine without any; SGLang's
schedulers."""
_NUMBER = re.compile(r"\d+")


def _server_workers(program: ProcessInfo) -> tuple[ProcessInfo, ...]:
    """Return the processes of a server that hold GPU memory, which their titles tell: ``VLLM::Worker_TP1``.

    An engine of one GPU has no workers and holds the memory itself: ``VLLM::EngineCore``.
    """
    titled = [child for child in descendants(program) if child.is_titled]
    for role in _WORKING_ROLES:
        if found := [child for child in titled if role.search(child.argv[0])]:
            return tuple(sorted(found, key=lambda child: [int(number) for number in _NUMBER.findall(child.argv[0])]))
    return ()


_GPU_FILE = re.compile(r"/dev/(nvidia\d+|dxg)")
"""Of the Linux driver, and of WSL."""


def _holds_gpu_memory(pid: int, on_gpu: Collection[int] | None) -> bool:
    """Return True if it is on a GPU; if unknown, if it has a GPU's device file open, as with a CUDA context."""
    if on_gpu is not None:
        return pid in on_gpu
    try:
        return any(_GPU_FILE.fullmatch(target) for _, target in open_files(pid))
    except OSError:
        return False
