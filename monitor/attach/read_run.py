"""Read a running training job: from a pid to its job, its ranks, and where each setting was read.

Only the operating system's view of a process is used (command line, environment, folders, and the files that these
name); nothing is injected, traced or executed.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.paths import note_job_folder
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.secrets import displayed_arguments
from vramtop.estimator.job.job_file.changes import replaces_model
from vramtop.estimator.job.job_file.load_and_save import names_user_code
from vramtop.estimator.job.settings import ModelSpec
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import Finding, JobReading
from vramtop.estimator.readers.source.filesystem_view import FilesystemView, follow_links

from ..host.containers import container_info, container_root
from ..host.interpreter import find_interpreter, installed_versions
from ..host.process_info import ProcessInfo, ancestors, parse_rank, read_process
from ..host.process_stat import is_own_process, namespace_pids
from ..host.run_processes import RunProcesses, find_run_processes
from ..probe.probe_reader import ProbeReader
from .attachment import Attachment, RankProcess
from .gpu_assignment import GpuEnvironment, assign_gpu, has_own_gpu_numbering
from .live_facts import settings_from_probe, with_live_facts
from .rehearse_run import kept_rehearsal


def read_run(
    pid: int,
    *,
    start_time: float | None = None,
    on_gpu: Collection[int] | None = None,
    given: Mapping[str, Any] | None = None,
) -> Attachment:
    """Return the job of a running process: a rank, its launcher, or a worker process that it started.

    Args:
        pid: pid of the process.
        start_time: its start time if it was seen before, because pids are reused.
        on_gpu: pids that hold GPU memory, from the driver: a program may leave that to processes that it starts.
        given: values that the user gives by dotted job key; another model decides what is read.

    Raises:
        InputError: there is no such process.
        CannotTellError: it is hidden, has ended, or runs no program that can be read.
    """
    run = find_run_processes(read_process(pid, start_time=start_time), on_gpu=on_gpu)
    program = run.program
    root = container_root(program.pid)
    interpreter = find_interpreter(program, root=root)
    versions = installed_versions(program, interpreter, root=root)
    environ = _environ_from_here(program.environ or {}, root)
    cwd = program.cwd if root is None or program.cwd is None else root / program.cwd.relative_to("/")
    if cwd is not None:
        note_job_folder(cwd)
    sample = ProbeReader(run.reporting_process.pid).read()
    command, unknown_notebook = readable_command(program, root)
    kept = None
    if not given and root is None and cwd is not None and interpreter is not None:
        kept = kept_rehearsal(run, interpreter)
    reading = kept or read_launch(
        command,
        environ=environ,
        cwd=cwd or Path(f"/proc/{program.pid}/cwd"),
        root=root,
        versions=versions,
        launcher=run.launcher.argv if run.launcher else None,
        reported=settings_from_probe(sample),
        pid=(namespace_pids(run.reporting_process.pid) or (run.reporting_process.pid,))[-1],  # as it sees itself
        started_at=program.start_time,
        self_started_ranks=len(run.ranks) if run.self_started else None,
        given=given,
    )
    if kept is None and not replaces_model(given or {}):
        reading = with_live_facts(reading, sample)
        reading = _with_model_config(reading, environ, pid=program.pid, root=root)
    reading = _with_configs_of_others(reading, environ, pid=program.pid, root=root)
    reading = _as_process_sees(reading, program.pid, root)
    require_running(pid, run.requested.start_time)
    launcher = None
    if run.launcher is not None:  # torchrun, accelerate, or the tool that starts its own workers
        launch = run.launcher.launch
        others = (name for name in launch.launchers if name != "tool")
        launcher = next(others, launch.program_name or launch.launchers[0])
    return Attachment(
        pid=pid,
        start_time=run.requested.start_time,
        ranks=tuple(map(_rank_process, run.ranks)),
        reading=reading,
        launcher=launcher,
        cwd=cwd,
        command=" ".join(displayed_arguments(program.argv)),
        worker_python=str(interpreter) if interpreter and root is None and is_own_process(program.pid) else None,
        versions=versions,
        estimate_environ=_estimate_environ(environ),
        inside=container_info(program.pid, program.environ),
        probe=sample,
        warnings=(*_warnings(run), *([unknown_notebook] if unknown_notebook else []), *reading.warnings),
    )


def require_running(pid: int, start_time: float) -> None:
    """Raise an error unless the pid is still that of the process that started at this time.

    Raises:
        CannotTellError: it has ended, or the pid belongs to another process now.
    """
    try:
        read_process(pid, start_time=start_time)
    except InputError:
        raise CannotTellError(f"Process {pid} ended while it was read.") from None


_NOTEBOOK = ".ipynb"
_MAX_NAMES = 3


def readable_command(program: ProcessInfo, root: Path | None) -> tuple[tuple[str, ...], str | None]:
    """Return the command line to read, and a sentence if it is that of a Jupyter kernel whose notebook is unknown.

    ``python - < train.py`` gets the file that is its standard input, a kernel the notebook that it runs.

    Args:
        program: the process.
        root: its root folder as it is reached from here; None: ours.
    """
    if program.launch.is_kernel:
        notebook = _notebook_of_kernel(program, root)
        return (program.argv, _unknown_notebook(program)) if notebook is None else (("python", notebook), None)
    if program.launch.script != "-":
        return program.argv, None
    try:
        file = os.readlink(f"/proc/{program.pid}/fd/0")  # noqa: PTH115 - a pipe's link is not a path
    except OSError:
        return program.argv, None
    if not file.startswith("/") or file.startswith("/dev/"):
        return program.argv, None
    at = program.argv.index("-")
    return (*program.argv[:at], file, *program.argv[at + 1 :]), None


def _notebook_of_kernel(kernel: ProcessInfo, root: Path | None) -> str | None:
    """Return a kernel's notebook: as the Jupyter server set it, or as the program that runs the notebook names it."""
    session = (kernel.environ or {}).get("JPY_SESSION_NAME", "")
    if session.endswith(_NOTEBOOK) and session.startswith("/"):
        return session
    for parent in ancestors(kernel):
        launch = parent.launch
        if "notebook" in launch.launchers and launch.script is not None and parent.cwd is not None:
            written = [word for word in launch.arguments if word.endswith(_NOTEBOOK)]
            names = [str(parent.cwd / name) for name in (*written, launch.script)]
            view = FilesystemView(cwd=parent.cwd, root=root)  # papermill saves what ran in a second notebook
            return next((name for name in names if os.access(view.resolve(name), os.R_OK)), names[-1])
    return None


def _unknown_notebook(kernel: ProcessInfo) -> str:
    try:
        found = sorted(path.name for path in (kernel.cwd or Path("/nonexistent")).glob(f"*{_NOTEBOOK}"))
    except OSError:
        found = []
    here = f" (its folder has {', '.join(found[:_MAX_NAMES])}{', ...' if len(found) > _MAX_NAMES else ''})"
    return (
        f"Process {kernel.pid} is a Jupyter kernel, but vramtop does not know which notebook it "
        f"runs{here if found else ''}; vramtop estimate FILE{_NOTEBOOK} reads a notebook."
    )


def _with_model_config(reading: JobReading, environ: Mapping[str, str], *, pid: int, root: Path | None) -> JobReading:
    """Look the model up as the process would, not in our own folder; a model that is not found is reported missing.

    A model whose name means another folder here, or none, gets its config beside its name.
    """
    found = next((finding for finding in reading.findings if finding.key == "model.id"), None)
    if found is None or reading.value("model.config") is not None:
        return reading
    name = str(found.value)
    if names_user_code(name):
        return _without_model(
            reading, f"{name!r} is not the name of a model, and vramtop does not run code that a process names."
        )
    try:
        model = resolve_model(ModelSpec(id=name), environ=environ, folders=name.startswith("/"))
    except InputError as error:
        return _without_model(reading, f"The model's config cannot be read: {error.message}")
    differs = _reaches_into(name, pid, root) or (not name.startswith("/") and os.access(name, os.F_OK))
    if not differs:
        return reading
    config = Finding(key="model.config", value=dict(model.config), origin=found.origin, written=found.written)
    return replace(reading, findings=(*reading.findings, config))


def _with_configs_of_others(
    reading: JobReading, environ: Mapping[str, str], *, pid: int, root: Path | None
) -> JobReading:
    """Give models beside the trained one their config where only the process finds them by their name."""

    def with_config(table: Mapping[str, Any]) -> dict[str, Any]:
        name = str(table.get("id") or "")
        if not _reaches_into(name, pid, root) or table.get("config"):
            return dict(table)
        try:
            return {**table, "config": dict(resolve_model(ModelSpec(id=name), environ=environ).config)}
        except InputError:  # the estimate will say that there is no such model
            return dict(table)

    findings = tuple(
        replace(finding, value=[with_config(table) for table in finding.value])
        if finding.key == "other_models"
        else finding
        for finding in reading.findings
    )
    return replace(reading, findings=findings)


def _without_model(reading: JobReading, warning: str) -> JobReading:
    return replace(reading, missing=("model.id", *reading.missing), warnings=(*reading.warnings, warning))


def _rank_process(process: ProcessInfo) -> RankProcess:
    environ = process.environ or {}
    local_rank = parse_rank(environ.get("LOCAL_RANK"))
    gpu_environment = GpuEnvironment.from_environ(
        environ,
        local_rank=local_rank,
        own_numbering=has_own_gpu_numbering(container_root(process.pid)),
    )
    return RankProcess(
        pid=process.pid,
        start_time=process.start_time,
        rank=parse_rank(environ.get("RANK")),
        local_rank=local_rank,
        gpu_hint=_gpu_hint(environ, local_rank),
        gpu_environment=gpu_environment,
        gpu_assignment=assign_gpu(gpu_environment, None, pid=process.pid),
    )


def _gpu_hint(environ: Mapping[str, str], local_rank: int | None) -> str | None:
    """Return the device that a rank uses by convention: number LOCAL_RANK of its visible ones."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(local_rank) if local_rank is not None else None
    devices = [device.strip() for device in visible.split(",") if device.strip()]
    index = local_rank or 0
    return devices[index] if index < len(devices) else None


def _warnings(run: RunProcesses) -> list[str]:
    """Return one sentence for each thing about the processes that could not be read."""
    program, requested, warnings = run.program, run.requested, []
    if program.hidden:
        owner = f" (it belongs to {program.user})" if program.user else ""
        hidden = ", ".join(program.hidden)
        warnings.append(f"This user may not see {hidden} of process {program.pid}{owner}; its owner or root may.")
    if requested.is_helper:
        warnings.append(
            f"Process {requested.pid} was started by multiprocessing; the settings are those of {program.pid}."
        )
    world_size = parse_rank((program.environ or {}).get("WORLD_SIZE"))
    if world_size is not None and world_size > len(run.ranks):
        warnings.append(f"{len(run.ranks)} of {world_size} ranks are visible on this machine.")
    return warnings


def _reaches_into(path: str, pid: int, root: Path | None) -> bool:
    """Return True for a path by which we reach a file of a process that has another root, or a hidden folder."""
    return path.startswith(_prefixes(pid, root))


def _as_process_sees(reading: JobReading, pid: int, root: Path | None) -> JobReading:
    """Return the reading with its values, evidence and warnings as the process sees them.

    Args:
        reading: values that have to be opened from here must have been read before.
        pid: the process.
        root: its root folder as it is reached from here; None: ours.
    """

    def seen(value: Any) -> Any:
        if isinstance(value, str):
            for prefix in _prefixes(pid, root):
                value = value.replace(prefix, "" if prefix.endswith("/cwd/") else "/")
            return value
        if isinstance(value, list | tuple):
            return [seen(item) for item in value]
        return {key: seen(item) for key, item in value.items()} if isinstance(value, dict) else value

    findings = tuple(replace(each, value=seen(each.value), origin=seen(each.origin)) for each in reading.findings)
    batch = reading.global_batch
    return replace(
        reading,
        findings=findings,
        warnings=tuple(seen(warning) for warning in reading.warnings),
        global_batch=replace(batch, origin=seen(batch.origin)) if batch is not None else None,
    )


def _prefixes(pid: int, root: Path | None) -> tuple[str, ...]:
    cwd = f"/proc/{pid}/cwd/"
    return (cwd,) if root is None else (f"{root}{cwd}", f"{root}/", cwd)


_ESTIMATE_VARIABLES = (
    *("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "XDG_CACHE_HOME", "HOME"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),  # not folders, but an estimate depends on them too
)


def _environ_from_here(environ: Mapping[str, str], root: Path | None) -> dict[str, str]:
    """Return a process's environment with the folders of its Hugging Face cache as they are reached from here."""
    reached = dict(environ)
    if root is not None:
        folders = {name: path for name, path in environ.items() if name in _ESTIMATE_VARIABLES and path.startswith("/")}
        reached |= {name: str(follow_links(root, f"{root}{path}")) for name, path in folders.items()}
    return reached | _estimate_environ(reached)


def _estimate_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an estimate depends on; the cache folder below HOME is made explicit."""
    found = {name: value for name, value in environ.items() if name in _ESTIMATE_VARIABLES}
    if "HOME" in found:
        found.setdefault("XDG_CACHE_HOME", f"{found['HOME']}/.cache")
    return found
