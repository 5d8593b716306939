"""Attach to a running training process: from a pid to its job, its ranks, and where each value was read.

Only what the operating system shows of a process is used (command line, environment, folders, files that these
name); nothing is injected, traced or executed.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.job.job import ModelSpec
from vramtop.estimator.job.job_file import names_user_code
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.program.launchers import Launch
from vramtop.estimator.readers.source.evidence import Finding, JobReading
from vramtop.estimator.readers.source.filesystem_view import follow_links

from ..host.container_info import container_info
from ..host.interpreter import find_interpreter, installed_versions
from ..host.process_identity import namespace_pids
from ..host.process_info import ProcessInfo, parse_rank, read_process
from ..host.run_processes import RunProcesses, find_run_processes
from ..probe.probe_reader import ProbeReader, ProbeSample
from ..probe.probe_settings import settings_from_probe
from ..snapshot.snapshot import GpuReading
from .gpu_assignment import GpuAssignment, GpuEnvironment, assign_gpu, has_own_gpu_numbering, nvml_mig_parent

_HF = (
    *("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "XDG_CACHE_HOME", "HOME"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),  # no folders, but they count for an estimate as well
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """One process of the job on this machine."""

    pid: int
    start_time: float
    """Unix seconds; with the pid it identifies the process."""
    rank: int | None
    """Over all machines; None for a single process."""
    local_rank: int | None
    gpu_hint: str | None
    """What its environment says of its GPU: an index or a UUID, as CUDA_VISIBLE_DEVICES has it. NVML knows better."""
    gpu_environment: GpuEnvironment
    """All that its environment says of GPUs."""
    gpu_assignment: GpuAssignment
    """Its GPU, as far as it was known when the ranks were placed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A running job."""

    pid: int
    """The process that was asked about."""
    start_time: float
    ranks: tuple[RankProcess, ...]
    reading: JobReading
    launcher: str | None
    """``torchrun``, ``accelerate``, ``deepspeed``, ``trl``; None: started directly."""
    cwd: Path | None
    """The working folder, as it is reached from here."""
    command: str
    """The command line of the training program."""
    interpreter: Path | None
    worker_python: str | None
    """The interpreter, where running it is harmless: the process is this user's own and not in a container."""
    versions: Mapping[str, str]
    """Installed frameworks, by name."""
    estimate_environ: Mapping[str, str]
    """Variables that count for an estimate: the folders of its Hugging Face cache and its HOME, as reached from here,
    and the allocator's settings."""
    inside: tuple[str, ...]
    """What it runs in, in words: ``Slurm job 4711 (sft)``, ``Docker container 0123456789ab``."""
    probe: ProbeSample | None
    """What the program says of itself, where it runs with the probe."""
    warnings: tuple[str, ...]
    """What could not be seen, and what was seen and not understood; one sentence each."""

    def with_gpu_assignments(self, gpus: Sequence[GpuReading] | None) -> "Attachment":
        """The same with every rank on its GPU: where NVML lists it, else where its environment puts it.

        Args:
            gpus: this machine's GPUs as they are now; None where they cannot be read.
        """
        ranks = (
            replace(
                rank,
                gpu_assignment=assign_gpu(rank.gpu_environment, gpus, pid=rank.pid, start_time=rank.start_time),
            )
            for rank in self.ranks
        )
        return replace(self, ranks=tuple(ranks))

    def to_json(self) -> dict[str, Any]:
        """What can be said without an estimate: pid, ranks, evidence, missing, warnings."""
        return {
            "pid": self.pid,
            "ranks": [_rank_json(each) for each in self.ranks],
            "launcher": self.launcher,
            "inside": list(self.inside),
            "probe": self.probe is not None,
            "command": self.command,
            "versions": dict(self.versions),
            "evidence": self.reading.evidence(),
            "missing": list(self.reading.missing),
            "warnings": list(self.warnings),
        }


def read_run(pid: int, *, start_time: float | None = None, on_gpu: Collection[int] | None = None) -> Attachment:
    """The job of a running process, whichever of its processes the pid is: a rank, its launcher, a worker of its.

    Args:
        pid: of the process.
        start_time: when it started, where it was seen before: pids are reused.
        on_gpu: pids that hold GPU memory, where the driver says: a program may leave that to processes it starts.

    Raises:
        InputError: there is no such process.
        CannotTellError: it is hidden, has ended, or runs no program that can be read.
    """
    run = find_run_processes(read_process(pid, start_time=start_time), on_gpu=on_gpu)
    program = run.program
    root = container_root(program.pid)
    interpreter = find_interpreter(program, root=root)
    versions = installed_versions(program, interpreter, root=root)
    environ = _reachable(program.environ or {}, root)
    environ |= _cache_folders(environ)
    cwd = _inside(root, program.cwd)
    sample = ProbeReader(run.reporting_process.pid).read()
    reading = read_launch(
        _with_script(program),
        environ=environ,
        cwd=cwd or Path(f"/proc/{program.pid}/cwd"),
        root=root,
        versions=versions,
        launcher=run.launcher.argv if run.launcher else None,
        reported=settings_from_probe(sample),
        pid=pid_in_own_namespace(run.reporting_process.pid),
        started_at=program.start_time,
        self_started_ranks=len(run.ranks) if run.self_started else None,
    )
    reading = _with_model(reading, environ)
    require_running(pid, run.requested.start_time)
    return Attachment(
        pid=pid,
        start_time=run.requested.start_time,
        ranks=tuple(_rank(seen) for seen in run.ranks),
        reading=reading,
        launcher=_launcher_name(run.launcher.launch) if run.launcher else None,
        cwd=cwd,
        command=" ".join(program.argv),
        interpreter=interpreter,
        worker_python=str(interpreter) if interpreter and root is None and _is_ours(program.pid) else None,
        versions=versions,
        estimate_environ=_cache_folders(environ),
        inside=container_info(program.pid, program.environ),
        probe=sample,
        warnings=(*_unseen(run), *reading.warnings),
    )


def _with_script(program: ProcessInfo) -> tuple[str, ...]:
    """The command line; ``python - < train.py`` with the file that its standard input is."""
    if program.launch.script != "-":
        return program.argv
    try:
        file = os.readlink(f"/proc/{program.pid}/fd/0")  # noqa: PTH115 - a pipe's link is no path
    except OSError:
        return program.argv
    if not file.startswith("/") or file.startswith("/dev/"):
        return program.argv
    at = program.argv.index("-")
    return (*program.argv[:at], file, *program.argv[at + 1 :])


def _with_model(reading: JobReading, environ: Mapping[str, str]) -> JobReading:
    """The reading with its model looked up as the process would: not in our own folder, and asked for if not found."""
    found = next((finding for finding in reading.findings if finding.key == "model.id"), None)
    if found is None or reading.value("model.config") is not None:
        return reading
    name = str(found.value)
    if names_user_code(name):
        return _ask_for_model(reading, f"{name!r} is no model's name, and code that a process names is not run.")
    try:
        model = resolve_model(ModelSpec(id=name), environ=environ, folders=name.startswith("/"))
    except InputError as error:
        return _ask_for_model(reading, f"The model's config is not to be had: {error.message}")
    if name.startswith("/") or not os.access(name, os.F_OK):
        return reading
    config = Finding(key="model.config", value=dict(model.config), origin=found.origin, written=found.written)
    return replace(reading, findings=(*reading.findings, config))


def _ask_for_model(reading: JobReading, why: str) -> JobReading:
    return replace(reading, missing=("model.id", *reading.missing), warnings=(*reading.warnings, why))


def pid_in_own_namespace(pid: int) -> int:
    """A process's pid as it knows itself: the innermost of its pid namespaces."""
    return (namespace_pids(pid) or (pid,))[-1]


def _launcher_name(launch: Launch) -> str:
    """``torchrun``, ``accelerate``, ...; a tool that starts its own workers by its own name."""
    return next((name for name in launch.launchers if name != "tool"), launch.program_name or launch.launchers[0])


def _is_ours(pid: int) -> bool:
    """The process was started by this very user: another user's interpreter must never be run, least of all by root.

    All of its user ids count: a setuid program has its owner's, and command line and folder of whoever started it.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    uids = next((line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")), [])
    return set(uids) == {str(os.geteuid())}


def require_running(pid: int, start_time: float) -> None:
    """Make sure that a pid is still the process it was.

    Raises:
        CannotTellError: it has ended, or the pid belongs to another process now.
    """
    try:
        read_process(pid, start_time=start_time)
    except InputError:
        raise CannotTellError(f"Process {pid} ended while it was read.") from None


def container_root(pid: int) -> Path | None:
    """The root folder of a process in another mount namespace, as it is reached from here; None: it is ours."""
    try:
        theirs = Path(f"/proc/{pid}/ns/mnt").readlink()
        ours = Path("/proc/self/ns/mnt").readlink()
    except OSError:
        return None
    return None if theirs == ours else Path(f"/proc/{pid}/root")


def _reachable(environ: Mapping[str, str], root: Path | None) -> dict[str, str]:
    """The environment with the folders of Hugging Face's cache as they are reached from here."""
    if root is None:
        return dict(environ)
    named = {name: value for name, value in environ.items() if name in _HF and value.startswith("/")}
    folders = {name: str(follow_links(root, f"{root}{value}")) for name, value in named.items()}
    return {**environ, **folders}


def _cache_folders(environ: Mapping[str, str]) -> dict[str, str]:
    """Only the variables that lead to models; the folder that follows from HOME is written out."""
    folders = {name: value for name, value in environ.items() if name in _HF}
    if "HOME" in folders:
        folders.setdefault("XDG_CACHE_HOME", f"{folders['HOME']}/.cache")
    return folders


def _inside(root: Path | None, cwd: Path | None) -> Path | None:
    return cwd if root is None or cwd is None else root / cwd.relative_to("/")


def _rank_json(rank: RankProcess) -> dict[str, Any]:
    return {
        "pid": rank.pid,
        "rank": rank.rank,
        "local_rank": rank.local_rank,
        "gpu": rank.gpu_assignment.gpu,
        "gpu_from": rank.gpu_assignment.origin,
        "gpu_sure": rank.gpu_assignment.certainty,
        "gpu_hint": rank.gpu_hint,
    }


def _rank(seen: ProcessInfo) -> RankProcess:
    environ = seen.environ or {}
    local = parse_rank(environ.get("LOCAL_RANK"))
    own_numbering = has_own_gpu_numbering(container_root(seen.pid))
    choice = GpuEnvironment.from_environ(
        environ, local_rank=local, own_numbering=own_numbering, mig_parent=nvml_mig_parent
    )
    return RankProcess(
        gpu_environment=choice,
        gpu_assignment=assign_gpu(choice, None, pid=seen.pid),
        pid=seen.pid,
        start_time=seen.start_time,
        rank=parse_rank(environ.get("RANK")),
        local_rank=local,
        gpu_hint=_gpu_hint(environ, local),
    )


def _gpu_hint(environ: Mapping[str, str], local_rank: int | None) -> str | None:
    """The device that a rank takes by convention: the LOCAL_RANK-th of those it may see."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(local_rank) if local_rank is not None else None
    devices = [device.strip() for device in visible.split(",") if device.strip()]
    index = local_rank or 0
    return devices[index] if index < len(devices) else None


def _unseen(run: RunProcesses) -> list[str]:
    program, sentences = run.program, []
    if program.hidden:
        owner = f" (it belongs to {program.user})" if program.user else ""
        what = ", ".join(program.hidden)
        sentences.append(f"Of process {program.pid}{owner} this user may not see {what}; its owner or root may.")
    if run.requested.is_helper:
        sentences.append(
            f"Process {run.requested.pid} was started by multiprocessing; the settings are those of {program.pid}."
        )
    world = parse_rank((program.environ or {}).get("WORLD_SIZE"))
    if world is not None and world > len(run.ranks):
        sentences.append(f"{len(run.ranks)} of {world} ranks are seen on this machine.")
    return sentences
