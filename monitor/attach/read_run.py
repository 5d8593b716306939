"""Read a running training job: from a pid to its job, its ranks, and where each setting was read.

Only the operating system's view of a process is used (command line, environment, folders, and the files that these
name); nothing is injected, traced or executed.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from vramtop.estimator.budget import Budget, budget_on_gpu
from vramtop.estimator.common.errors import CannotTellError, InputError, VramtopError
from vramtop.estimator.common.paths import note_job_folder
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.secrets import displayed_arguments
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.job.job_file.changes import replaces_model
from vramtop.estimator.job.job_file.load_and_save import names_user_code
from vramtop.estimator.job.rules.optimizers.by_name import optimizer_by_class
from vramtop.estimator.job.settings import ModelSpec
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.program.program import Launch
from vramtop.estimator.readers.source.data_files import FilesystemView, follow_links
from vramtop.estimator.readers.source.evidence import Finding, JobReading

from ..host.process_info import (
    ProcessInfo,
    RunProcesses,
    ancestors,
    find_interpreter,
    find_run_processes,
    installed_versions,
    parse_rank,
    read_process,
)
from ..host.processes import container_info, container_root, is_own_process, namespace_pids
from ..probe.probe_reader import OptimizerFacts, ProbeReader, ProbeSample
from ..probe.probe_settings import settings_from_probe
from ..snapshot.snapshot import DeviceIndex, GpuProcess, Snapshot
from .attachment import Attachment, GpuEnvironment, RankProcess, assign_gpu, has_own_gpu_numbering, nvml_mig_parent
from .rehearse_run import kept_rehearsal

# Facts that the running program reports of its model and optimizers; they precede what was read elsewhere.


_MODEL = "reported by the running program (probe)"
_OPTIMIZER = "the running optimizer (probe)"
_UNKNOWN = "unknown"


def with_live_facts(reading: JobReading, sample: ProbeSample | None) -> JobReading:
    """Return a reading with the trained parameters and the optimizer that the probe reports, if it does."""
    found = {} if sample is None else {finding.key: finding for finding in _live_findings(sample)}
    if not found:
        return reading
    others = tuple(finding for finding in reading.findings if finding.key not in found)
    known = {*found, *(["training.trainable"] if "training.trainable_parameters" in found else [])}
    return replace(
        reading,
        findings=(*others, *found.values()),
        uncertainties=tuple(each for each in reading.uncertainties if each.unless not in known),
    )


def _live_findings(sample: ProbeSample) -> Iterator[Finding]:
    model = sample.model or {}
    trained = _trained_of_model(model) or _trained_of_optimizers(sample.optimizers)
    if trained:
        yield Finding(key="training.trainable_parameters", value=trained, origin=_MODEL, written=True)
    if names := _names(model.get("trained")):
        yield Finding(key="training.trainable", value=names, origin=_MODEL, written=True)
    if sample.optimizers:
        yield from _optimizer_findings(max(sample.optimizers, key=lambda each: sum(each.trained.values())))


def _trained_of_model(model: Mapping[str, Any]) -> int | None:
    """Return the elements that a model trains; None: a rank sees its share of them only, or nothing is reported."""
    if model.get("sharded") is not False:
        return None
    counts: Mapping[str, int] = model["parameters"]
    return sum(count for name, count in counts.items() if name.endswith(" trained"))


def _trained_of_optimizers(optimizers: tuple[OptimizerFacts, ...]) -> int | None:
    """Return the elements that all optimizers step; None: they are shares of a rank."""
    if any(each.sharded not in (None, "dtensor") for each in optimizers):
        return None
    return sum(count for each in optimizers for count in each.trained.values())


def _names(value: Any) -> list[str] | None:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return None
    usable = [name for name in value if name and len(name) <= 500 and not name.startswith("!") and name.isprintable()]
    return usable if len(usable) == len(value) and not any(" " in name for name in usable) else None


def _optimizer_findings(facts: OptimizerFacts) -> Iterator[Finding]:
    given = {name: value for name, value in facts.options.items() if value is not None}
    choice = optimizer_by_class(facts.name, given)
    if choice.name == _UNKNOWN or choice.sentence is not None:
        return
    yield Finding(key="training.optimizer", value=choice.name, origin=_OPTIMIZER, written=True)
    if choice.options:
        yield Finding(key="training.optimizer_options", value=dict(choice.options), origin=_OPTIMIZER, written=True)


# A reading with the paths that its process sees, not those by which we reach them (``/proc/PID/root/...``).


def reaches_into(path: str, pid: int, root: Path | None) -> bool:
    """Return True for a path by which we reach a file of a process that has another root, or a hidden folder."""
    return path.startswith(_prefixes(pid, root))


def as_process_sees(reading: JobReading, pid: int, root: Path | None) -> JobReading:
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


# Paths, environment variables and ownership of another process, as they are reached from here.


_ESTIMATE_VARIABLES = (
    *("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "XDG_CACHE_HOME", "HOME"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),  # not folders, but an estimate depends on them too
)


def environ_from_here(environ: Mapping[str, str], root: Path | None) -> dict[str, str]:
    """Return a process's environment with the folders of its Hugging Face cache as they are reached from here."""
    if root is None:
        return {**environ, **estimate_environ(environ)}
    folders = {name: path for name, path in environ.items() if name in _ESTIMATE_VARIABLES and path.startswith("/")}
    reached = {**environ, **{name: str(follow_links(root, f"{root}{path}")) for name, path in folders.items()}}
    return {**reached, **estimate_environ(reached)}


def estimate_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an estimate depends on; the cache folder below HOME is made explicit."""
    found = {name: value for name, value in environ.items() if name in _ESTIMATE_VARIABLES}
    if "HOME" in found:
        found.setdefault("XDG_CACHE_HOME", f"{found['HOME']}/.cache")
    return found


def pid_in_own_namespace(pid: int) -> int:
    """Return the pid that a process sees as its own: that in the innermost of its pid namespaces."""
    return (namespace_pids(pid) or (pid,))[-1]


# The command line by which a running program's job is read, where its own names no script that can be opened.


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
    environ = environ_from_here(program.environ or {}, root)
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
        pid=pid_in_own_namespace(run.reporting_process.pid),
        started_at=program.start_time,
        self_started_ranks=len(run.ranks) if run.self_started else None,
        given=given,
    )
    if kept is None and not replaces_model(given or {}):
        reading = with_live_facts(reading, sample)
        reading = _with_model_config(reading, environ, pid=program.pid, root=root)
    reading = _with_configs_of_others(reading, environ, pid=program.pid, root=root)
    reading = as_process_sees(reading, program.pid, root)
    require_running(pid, run.requested.start_time)
    return Attachment(
        pid=pid,
        start_time=run.requested.start_time,
        ranks=tuple(map(_rank_process, run.ranks)),
        reading=reading,
        launcher=_launcher_name(run.launcher.launch) if run.launcher else None,
        cwd=cwd,
        command=" ".join(displayed_arguments(program.argv)),
        interpreter=interpreter,
        worker_python=str(interpreter) if interpreter and root is None and is_own_process(program.pid) else None,
        versions=versions,
        estimate_environ=estimate_environ(environ),
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
    differs = reaches_into(name, pid, root) or (not name.startswith("/") and os.access(name, os.F_OK))
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
        if not reaches_into(name, pid, root) or table.get("config"):
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


def _launcher_name(launch: Launch) -> str:
    """Return the name of a launcher: ``torchrun``, ``accelerate``, or the tool that starts its own workers."""
    return next((name for name in launch.launchers if name != "tool"), launch.program_name or launch.launchers[0])


def _rank_process(process: ProcessInfo) -> RankProcess:
    environ = process.environ or {}
    local_rank = parse_rank(environ.get("LOCAL_RANK"))
    gpu_environment = GpuEnvironment.from_environ(
        environ,
        local_rank=local_rank,
        own_numbering=has_own_gpu_numbering(container_root(process.pid)),
        mig_parent=nvml_mig_parent,
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


# Processes of training jobs that have just started and will allocate more GPU memory than they hold now.


READING_SECONDS = 5.0
MAX_STARTING_SECONDS = 600.0
"""Nearly every job has allocated its memory after this time; the dashboard detects it from the memory's course."""


class StartingProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that will allocate more memory."""

    gpu_index: int
    pid: int
    remaining_bytes: int
    """Memory that its budget predicts and that it does not hold yet."""
    device_index: DeviceIndex
    """The GPU, or the GPU instance of it."""

    @property
    def sentence(self) -> str:
        """The expected growth in words."""
        more = format_gib(self.remaining_bytes)
        return f"GPU {self.gpu_index}: process {self.pid} has just started and is expected to take {more} GiB more."


def find_starting_processes(
    snapshot: Snapshot,
    estimate: Callable[[Attachment], Budget],
    *,
    only: Collection[int] | None = None,
    exclude_pids: Collection[int] = (),
    read_run: Callable[..., Attachment] = read_run,
    on_unread: Callable[[str], object] = lambda _: None,
    seconds: float = READING_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[StartingProcess, ...]:
    """Return the recently started processes whose job can be read and that hold less than its budget predicts.

    Thousands of processes may have just started, and to read one takes milliseconds, so there is a time limit.

    Args:
        snapshot: this machine now.
        estimate: a quick estimate of a job that was read; may raise VramtopError.
        only: indices of the GPUs to examine; all if left out.
        exclude_pids: processes that are accounted for already.
        read_run: reads a running process.
        on_unread: receives a sentence if processes were left unread at the time limit.
        seconds: the time limit.
        clock: monotonic seconds.
    """
    until = clock() + seconds
    unread = 0
    on_gpu = {process.pid for _, process in snapshot.processes()}
    budgets: dict[int, Budget | None] = dict.fromkeys(exclude_pids)
    found = []
    for gpu, process in snapshot.processes():
        if (only is not None and gpu.index not in only) or not _is_starting(process, snapshot.time):
            continue
        if process.pid not in budgets and clock() > until:
            unread += 1
            continue
        if process.pid not in budgets:
            budgets |= _budgets_of_job(process, on_gpu, estimate, read_run)
        budget = budgets.get(process.pid)
        budget = budget and budget_on_gpu(budget, gpu.cuda_total_bytes)
        remaining = (budget.steady_device_bytes if budget else 0) - (process.used_bytes or 0)
        if budget is not None and process.used_bytes is not None and remaining > 0:
            device = process.device_index_on(gpu.index)
            found.append(
                StartingProcess(gpu_index=gpu.index, pid=process.pid, remaining_bytes=remaining, device_index=device)
            )
    if unread:
        on_unread(
            f"{unread:,} process{'es have' if unread > 1 else ' has'} just started and could not be read within "
            f"{seconds:g} seconds; their future memory is not counted."
        )
    return tuple(found)


def remaining_bytes_by_device(processes: Collection[StartingProcess]) -> Mapping[DeviceIndex, int]:
    """Return the bytes that these processes will yet allocate, by GPU or GPU instance."""
    total: dict[DeviceIndex, int] = {}
    for each in processes:
        total[each.device_index] = total.get(each.device_index, 0) + each.remaining_bytes
    return total


def _is_starting(process: GpuProcess, now: float) -> bool:
    if process.start_time is None or "compute" not in process.kinds:
        return False
    return now - process.start_time < MAX_STARTING_SECONDS


def _budgets_of_job(
    process: GpuProcess,
    on_gpu: Collection[int],
    estimate: Callable[[Attachment], Budget],
    read_run: Callable[..., Attachment],
) -> dict[int, Budget | None]:
    """Return the budget of each rank of the process's job, by pid; None for a process without a budget."""
    try:
        attachment = read_run(process.pid, start_time=process.start_time, on_gpu=on_gpu)
        budget = None if attachment.reading.missing else estimate(attachment)
    except VramtopError:
        return {process.pid: None}
    if budget is None:
        return {process.pid: None, **{rank.pid: None for rank in attachment.ranks}}
    complete = len(attachment.ranks) == budget.job.parallel.world_size
    ranks = {rank.pid: budget.of_rank(at) if complete else budget for at, rank in enumerate(attachment.ranks)}
    return {process.pid: None, **ranks}
