"""The GPUs on which a measurement may run, what must stay free there, and what NVML shows meanwhile."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from vramtop.estimator.budget import Budget, FieldsOf, Method, PhaseName, PlainJob, Span
from vramtop.estimator.common.errors import CannotTellError, ExitCode, InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB, MIB
from vramtop.estimator.estimation import MethodChoice, estimate, quick_estimator
from vramtop.estimator.job.gpu_catalogue import Gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_to_mapping
from vramtop.estimator.learning.measurement import Observed
from vramtop.estimator.model.checkpoint import job_of_model
from vramtop.estimator.model.find_config import ResolvedModel, resolve_model
from vramtop.estimator.trace.allocator_report import allocator_settings
from vramtop.estimator.trace.measure import (
    BatchSearch,
    MeasuredStep,
    MeasuredStepJson,
    Place,
    find_largest_batch,
    rank_count,
    run_real_step,
    tiny_job,
)
from vramtop.monitor.board.fit import DeviceCapacity, device_capacities
from vramtop.monitor.history.history import History
from vramtop.monitor.history.new_measurement import new_measurement
from vramtop.monitor.snapshot.faults import NO_ANSWER
from vramtop.monitor.snapshot.snapshot import GpuReading, Snapshot
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource

from ...draw.palette import peak_place
from ...draw.text_output import TextOutput, format_table
from ..fitting.machine_gpus import committed_bytes, open_source, read_gpus, select_devices
from ..json_text import Versioned

ADVICE = "--cpu runs a tiny model on the CPU instead; --predict only predicts"
KEPT_BYTES = 512 * MIB
"""Stays free beside other programs: kernels that CUDA loads later, and small allocations of theirs."""
KEPT_BYTES_OF_RANKS = 1536 * MIB
"""Bytes kept for one of several ranks, whose NCCL allocates outside of torch."""


class OutsideBytes(msgspec.Struct, frozen=True):
    """What NVML shows at one moment; None: it does not tell."""

    process_bytes: int | None
    """Memory of the process."""
    device_bytes: int | None
    """Memory that came to the GPU since the start; known only if nothing else ran there."""


class OutsideFigures(msgspec.Struct, frozen=True):
    """What NVML shows of one rank at each stage of its run."""

    stages: Mapping[str, OutsideBytes] = msgspec.field(default_factory=dict)

    @property
    def process_bytes(self) -> int | None:
        """Memory of the process after the last step."""
        return self.stages["steady"].process_bytes if "steady" in self.stages else None

    @property
    def device_bytes(self) -> int | None:
        """Memory that came to the GPU until after the last step."""
        return self.stages["steady"].device_bytes if "steady" in self.stages else None

    @property
    def context_bytes(self) -> int | None:
        """Memory in use before the model was built, such as the CUDA context, without torch's own allocations."""
        found = self.stages.get("context", OutsideBytes(None, None))
        return found.process_bytes if found.process_bytes is not None else found.device_bytes


class FreeGpus(msgspec.Struct):
    """The GPUs of one measurement.

    Args:
        source: of readings.
        devices: one for each rank.
        snapshot: before the start.
    """

    source: NvmlSource
    devices: Sequence[DeviceCapacity]
    snapshot: Snapshot
    figures: list[OutsideFigures] = msgspec.field(default_factory=list)
    """Figures of each rank, as the stages were reached."""

    @property
    def available_bytes(self) -> int:
        """The least that one of them has available."""
        return min(device.available_bytes or 0 for device in self.devices)

    @property
    def name(self) -> str | None:
        """Product name of the first."""
        return self.devices[0].name

    @property
    def driver(self) -> str | None:
        """Version of the driver."""
        return self.snapshot.source.driver_version

    def places(self, limit_bytes: int | None) -> list[Place]:
        """Return where the ranks run; where others hold memory, some of it stays free."""
        kept = KEPT_BYTES if len(self.devices) == 1 else KEPT_BYTES_OF_RANKS
        return [
            Place(
                cuda_device=device.cuda_device,
                keep_bytes=kept + device.committed_bytes if self._shared(device) else None,
                limit_bytes=limit_bytes,
            )
            for device in self.devices
        ]

    def read(self, stage: str, pids: Sequence[int]) -> None:
        """Read NVML while all ranks hold the memory of a stage; at ``ready`` they hold none yet.

        Where NVML fails, nothing is known from outside.
        """
        with contextlib.suppress(CannotTellError):
            now = self.source.read()
            if stage == "ready":
                self.snapshot = now
                return
            self.figures = self.figures or [OutsideFigures() for _ in self.devices]
            for rank, device in enumerate(self.devices):
                before, gpu = self._gpu(self.snapshot, device), self._gpu(now, device)
                if gpu is not None and all(fault.code != NO_ANSWER for fault in gpu.faults):  # whose figures are old
                    found = self._bytes(device, pids[rank], before, gpu)
                    self.figures[rank] = OutsideFigures({**self.figures[rank].stages, stage: found})

    def release(self) -> None:
        """Let others have the GPUs."""

    def _bytes(self, device: DeviceCapacity, pid: int, before: GpuReading | None, gpu: GpuReading) -> OutsideBytes:
        used = next((each.used_bytes for each in gpu.processes or () if each.pid == pid), None)
        alone = before is not None and not self._shared(device)
        sizes = (before.used_bytes if before and alone else None, gpu.used_bytes)
        return OutsideBytes(used, None if sizes[0] is None or sizes[1] is None else sizes[1] - sizes[0])

    def _shared(self, device: DeviceCapacity) -> bool:
        """Return True unless this device is known to be without other programs."""
        gpu = self._gpu(self.snapshot, device)
        return device.mig is not None or gpu is None or gpu.processes is None or bool(gpu.processes)

    @staticmethod
    def _gpu(snapshot: Snapshot, device: DeviceCapacity) -> GpuReading | None:
        return next((gpu for gpu in snapshot.gpus if gpu.index == device.index), None)


class NoFreeGpus(CannotTellError):  # noqa: N818 - not a failure of the job
    """There are fewer usable GPUs than the job has ranks."""


class OpenGpus(msgspec.Struct, frozen=True):
    """This machine's GPUs, open for several measurements one after another."""

    source: NvmlSource
    selected: str | None

    @classmethod
    @contextlib.contextmanager
    def open(cls, selected: str | None) -> Iterator["OpenGpus"]:
        """Open the GPUs.

        Args:
            selected: value of ``--gpu``; None: those of CUDA_VISIBLE_DEVICES, otherwise all.

        Raises:
            CannotTellError: there is no usable driver.
        """
        with open_source(ADVICE) as source:
            yield cls(source, selected)

    def free(self, ranks: int) -> FreeGpus:
        """Return the GPUs for this number of ranks: without other programs if there are, then with the most memory.

        Raises:
            InputError: ``--gpu`` or CUDA_VISIBLE_DEVICES names no GPU here.
            NoFreeGpus: there are not enough.
        """
        snapshot = read_gpus(self.source, ADVICE)
        selection, _ = select_devices(self.selected, snapshot)
        committed, _ = committed_bytes(snapshot, selection)
        devices = [
            device
            for device in device_capacities(snapshot, committed, selection)
            if not device.unusable_reason and (device.mig is None or ranks == 1) and device.available_bytes
        ]
        if len(devices) < ranks:
            have = f"{len(devices)} GPUs are" if len(devices) > 1 else "one GPU is" if devices else "no GPU is"
            raise NoFreeGpus(
                f"the job has {ranks} rank{'s' if ranks > 1 else ''}, and {have} usable here; give it fewer "
                f"(parallel.*), or {ADVICE}"
            )
        busy = {gpu.index for gpu in snapshot.gpus if gpu.processes is None or gpu.processes}
        devices.sort(key=lambda device: (device.index in busy, -(device.available_bytes or 0)))
        chosen = sorted(devices[:ranks], key=lambda device: device.index)
        return FreeGpus(self.source, chosen, snapshot)


# One job measured: predicted, run, read from outside, and kept in the history.


_LARGEST_BATCH = 1 << 16
"""Micro-batch at which the search ends, however little memory each sequence takes."""
_NO_WORKSPACE = ":0:0"
"""In the words of ``CUBLAS_WORKSPACE_CONFIG``."""


class Measuring(msgspec.Struct, frozen=True, kw_only=True):
    """How jobs are measured.

    Args:
        gpus: of this machine; None: on the CPU.
        steps: optimizer steps.
        timeout: seconds for each run.
        limit_bytes: bytes that torch may allocate on each GPU; None: all that are free.
        method: of the prediction.
        python: the interpreter with torch.
        keep: keep results in the history.
        progress: called with what is being done.
    """

    gpus: OpenGpus | None
    steps: int
    timeout: float
    limit_bytes: int | None
    method: MethodChoice
    python: str | None
    keep: bool
    progress: Callable[[str], None]

    def job(self, job: Job) -> Job:
        """Return the job that is run in place of this one: on the CPU a tiny one."""
        return job if self.gpus is not None else tiny_job(job, resolve_model(job.model))

    def predicted_job(self, job: Job) -> Job:
        """Return the job as its prediction takes it: on the CPU without the workspaces that cuBLAS has on a GPU."""
        if self.gpus is not None:
            return job
        return msgspec.structs.replace(
            job, software=msgspec.structs.replace(job.software, cublas_workspace=_NO_WORKSPACE)
        )


class MeasuredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job beside its measurement, or the reason why there is none."""

    job: Job
    budget: Budget | None
    """The estimate; None: none can be made."""
    unpredicted: str | None = None
    """Why no estimate can be made."""
    step: MeasuredStep | None = None
    outside: OutsideFigures = msgspec.field(default_factory=OutsideFigures)
    """What NVML showed of the rank with the highest peak."""
    card: str | None = None
    driver: str | None = None
    error: str | None = None
    """Why nothing was measured."""
    notes: tuple[str, ...] = ()
    seconds: float | None = None

    @property
    def exit_code(self) -> int:
        """0: measured (or predicted), 1: it ran out of memory, 3: it could not be run."""
        if self.error is not None:
            return ExitCode.CANNOT_TELL
        return ExitCode.NO if self.step is not None and self.step.out_of_memory else ExitCode.DONE


def measure_job(job: Job, how: Measuring, *, budget: Budget | None = None) -> MeasuredJob:
    """Measure a job, predict it, and keep both.

    Args:
        job: as it is run.
        how: on which device, how long.
        budget: the prediction, if it is made already.

    Raises:
        InputError: the job is invalid, ``--python`` or ``--gpu`` names nothing.
    """
    started = time.monotonic()
    free: FreeGpus | None = None
    model = resolve_model(job.model)
    job = job_of_model(job, model)
    found = MeasuredJob(job=job, budget=budget)
    try:
        if how.gpus is None:
            places = [Place(limit_bytes=how.limit_bytes)] * rank_count(job)
        else:
            free = how.gpus.free(rank_count(job))
            places = free.places(how.limit_bytes)
            found = replace(found, card=free.name, driver=free.driver)
        if budget is None:
            found = predicted(job, how, free.devices[0].gpu_type if free else None, found)
        how.progress(f"running {how.steps} steps of {model.label}")
        step = _steps(job, model, how, free, places)
    except CannotTellError as error:
        return replace(found, error=error.message)
    finally:
        if free is not None:
            free.release()
    figures = free.figures[step.ranks.index(step.highest)] if free and free.figures else OutsideFigures()
    found = replace(found, step=step, outside=figures, seconds=round(time.monotonic() - started, 1))
    limited = step.out_of_memory is not None and how.limit_bytes is not None  # it failed by the user's wish
    return _kept(found) if free and how.keep and not limited else found


def _steps(
    job: Job, model: ResolvedModel, how: Measuring, free: FreeGpus | None, places: Sequence[Place]
) -> MeasuredStep:
    return run_real_step(
        job,
        model,
        places,
        device="cuda" if free else "cpu",
        steps=how.steps,
        timeout=how.timeout,
        python=how.python,
        on_stage=free.read if free else lambda _stage, _pids: None,
    )


def predicted(job: Job, how: Measuring, gpu: Gpu | None, found: MeasuredJob) -> MeasuredJob:
    """Return the job with its prediction."""
    how.progress(f"estimating {job.label}")
    try:
        return replace(found, budget=estimate(how.predicted_job(job), method=how.method, gpu=gpu, python=how.python))
    except CannotTellError as error:
        return replace(found, unpredicted=error.message)


def search_micro_batch(job: Job, how: Measuring) -> tuple[MeasuredJob, BatchSearch]:
    """Find the largest micro-batch that runs; the measurement is that of the largest one, or of the last try.

    Raises:
        InputError: the job is invalid, or there is no memory to fill.
        CannotTellError: the job cannot be measured.
    """
    available, gpu = how.limit_bytes, None
    if how.gpus is not None:
        free = how.gpus.free(rank_count(job))
        available = free.available_bytes if available is None else min(free.available_bytes, available)
        gpu = free.devices[0].gpu_type
    if available is None:
        raise InputError("--search needs GPUs, or with --cpu --memory SIZE: the memory to fill")
    quick = quick_estimator(how.predicted_job(job), gpu=gpu)
    results: dict[int, MeasuredJob] = {}

    def with_batch(micro_batch: int) -> Job:
        training = msgspec.structs.replace(job.training, micro_batch=micro_batch)
        return msgspec.structs.replace(job, training=training)

    def need(micro_batch: int) -> int:
        peak = quick(how.predicted_job(with_batch(micro_batch))).peak
        return peak.allocated_bytes if how.gpus is None else peak.device_bytes

    def run(micro_batch: int) -> float | None:
        result = results[micro_batch] = measure_job(with_batch(micro_batch), how)
        if result.error is not None or result.step is None:
            raise CannotTellError(result.error or "nothing was measured")
        if result.step.out_of_memory:
            return None
        return _held_bytes(result) / need(micro_batch)

    found = find_largest_batch(
        _largest(need, available), run, lambda factor: _largest(lambda size: round(need(size) * factor), available)
    )
    shown = found.runs if found.runs is not None else found.tries[-1]
    return results[shown], found


def _largest(need: Callable[[int], int], available: int) -> int | None:
    """Return the largest micro-batch that needs no more; None: not even 1 does."""
    if need(1) > available:
        return None
    low, high = 1, 2
    while high < _LARGEST_BATCH and need(high) <= available:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if need(middle) <= available else (low, middle)
    return low


def _held_bytes(result: MeasuredJob) -> int:
    """Return the memory that a run held, as far out as it is known."""
    assert result.step is not None  # noqa: S101 - the caller has asked
    rank, outside = result.step.highest, result.outside
    known = (outside.process_bytes, outside.device_bytes, rank.reserved_bytes, rank.allocated_bytes)
    return next((size for size in known if size is not None), 0)


def _kept(found: MeasuredJob) -> MeasuredJob:
    """Keep the measurement in the user's history; what hinders that becomes a note."""
    assert found.step is not None  # noqa: S101 - the caller has measured
    rank, failed = found.step.highest, found.step.out_of_memory
    device = found.outside.process_bytes if found.outside.process_bytes is not None else found.outside.device_bytes
    variable = allocator_settings(os.environ)
    observed = Observed(
        allocated_bytes=rank.allocated_bytes,
        reserved_bytes=rank.reserved_bytes,
        device_bytes=device,
        allocator_source="measure",
        device_source=None if device is None else "measure",
    )
    now = time.time()
    try:
        measurement = new_measurement(
            found.job,
            [found.budget] if found.budget else [],
            observed,
            run=f"measure {rank.pid} {now}",
            state="out_of_memory" if failed else "ended",
            time=now,
            card=found.card,
            driver=found.driver,
            versions={name: text for name, text in found.step.versions.items() if name != "python"},
            allocator=variable[1] if variable else None,
        )
        repaired = History().add(measurement)
    except CannotTellError as error:
        return replace(found, notes=(*found.notes, f"Not kept in the history: {error.message}."))
    return replace(found, notes=(*found.notes, *([repaired] if repaired else [])))


# A measurement beside its prediction, as text and as JSON.


_PHASES = ("loading", "forward", "backward", "optimizer step")
_PARTS = ("weights", "gradients", "optimizer")
_UNKNOWN = "-"
_ALIGNED = "<>>>>"


PlainSpan = Annotated[dict[str, Any], FieldsOf(Span)]


class PredictedPeakJson(TypedDict):
    """The predicted peak; of a run on the CPU, what only a GPU has is null."""

    method: Method
    """How it was estimated."""
    phase: PhaseName
    """Part of the run in which the peak is."""
    components: dict[str, int | None]
    """Bytes by purpose at the peak; null: only a GPU has it."""
    allocated_bytes: int
    """Value of `torch.cuda.max_memory_allocated`."""
    reserved_bytes: int | None
    """Value of `torch.cuda.max_memory_reserved`; null: on the CPU."""
    device_bytes: int | None
    """Memory of the process as NVML counts it; null: on the CPU."""
    low_bytes: int | None
    """Lower bound of `device_bytes`; null: on the CPU."""
    high_bytes: int | None
    """Upper bound of `device_bytes`; null: on the CPU."""
    allocated_range: PlainSpan | None
    """Range of `allocated_bytes`; null: unknown, or on the CPU."""
    reserved_range: PlainSpan | None
    """Range of `reserved_bytes`; null: unknown, or on the CPU."""
    cache_bytes: int | None
    """What the allocator may keep beyond `high_bytes` and gives back before it fails; null: on the CPU."""


class MeasuredJson(MeasuredStepJson):
    """What was measured."""

    process_bytes: int | None
    """Memory of the process as NVML counts it; null: unknown."""
    device_bytes: int | None
    """Growth of the GPU's used memory; null: unknown."""
    context_bytes: int | None
    """Memory of the CUDA context alone; null: unknown."""
    stages: dict[str, Annotated[dict[str, Any], FieldsOf(OutsideBytes)]]
    """What NVML shows by stage: `context`, `first step` (without training, after the prompt), `steady`."""


class SearchJson(TypedDict):
    """The search for the largest micro-batch that runs (`--search`)."""

    key: Literal["training.micro_batch"]
    """The setting that was varied."""
    predicted: int | None
    """Largest that was predicted to fit; null: not even 1."""
    runs: int | None
    """Largest that ran; null: none did."""
    fails: int | None
    """Smallest that ran out of memory; null: none did."""
    tries: list[int]
    """Values that were tried, in their order."""
    decided: bool
    """No value between the two remains untried."""


class _Measure(Versioned):
    job: PlainJob
    """The job as it was run: the tables of a job file."""
    predicted: PredictedPeakJson | None
    """The prediction; null: there is none, and a note says why."""
    device: Literal["cuda", "cpu"] | None
    """Where the steps ran; null: they did not."""
    card: str | None
    """Name of the GPU; null: none was used."""
    driver: str | None
    """Version of the driver; null: no GPU was used, or unknown."""
    versions: dict[str, str]
    """Versions of the libraries that ran; empty: nothing did."""
    measured: MeasuredJson | None
    """The measured memory; null: the steps did not run."""
    error: str | None
    """Why the job did not run, or where it ran out of memory; null: it ran."""
    seconds: float | None
    """Time that it took; null: it did not run."""
    notes: list[str]
    """What is to be known about the figures, one sentence each."""


class MeasureJson(_Measure, total=False):
    """A job's real steps beside their prediction."""

    search: SearchJson
    """The search for the largest micro-batch; absent: none was asked for."""


def measured_json(found: MeasuredJob, search: BatchSearch | None = None) -> MeasureJson:
    """Return the line of JSON about one job."""
    step, outside, budget = found.step, found.outside, found.budget
    measured: MeasuredJson | None = None
    if step is not None:
        measured = {
            **step.to_json(),
            "process_bytes": outside.process_bytes,
            "device_bytes": outside.device_bytes,
            "context_bytes": outside.context_bytes,
            "stages": {stage: msgspec.to_builtins(found) for stage, found in outside.stages.items()},
        }
    error = found.error
    if step is not None and step.out_of_memory is not None:
        error = f"out of memory {step.out_of_memory.place}: {step.out_of_memory.message}"
    data: MeasureJson = {
        "schema": 1,
        "job": {**job_to_mapping(found.job), "name": found.job.label},
        "predicted": None if budget is None else peak_json(found, budget),
        "device": step.device if step else None,
        "card": found.card,
        "driver": found.driver,
        "versions": step.versions if step else {},
        "measured": measured,
        "error": error,
        "seconds": found.seconds,
        "notes": [*found.notes, *([f"Not predicted: {found.unpredicted}."] if found.unpredicted else [])],
    }
    if search is not None:
        data["search"] = {
            "key": "training.micro_batch",
            "predicted": search.predicted,
            "runs": search.runs,
            "fails": search.fails,
            "tries": list(search.tries),
            "decided": search.decided,
        }
    return data


def peak_json(found: MeasuredJob, budget: Budget) -> PredictedPeakJson:
    """Return the predicted peak; of a run on the CPU null for what only a GPU has."""
    peak, on_cpu = budget.peak, found.step is not None and found.step.device == "cpu"
    components: dict[str, int | None] = dict(peak.components.items())
    if on_cpu:
        components |= {"context": None, "communication": None}
    return {
        "method": budget.method,
        "phase": peak.phase,
        "components": components,
        "allocated_bytes": peak.allocated_bytes,
        "reserved_bytes": None if on_cpu else peak.reserved_bytes,
        "device_bytes": None if on_cpu else peak.device_bytes,
        "low_bytes": None if on_cpu else peak.low_bytes,
        "high_bytes": None if on_cpu else peak.high_bytes,
        "allocated_range": _span_json(None if on_cpu else peak.allocated_range),
        "reserved_range": _span_json(None if on_cpu else peak.reserved_range),
        "cache_bytes": None if on_cpu else peak.cache_bytes,
    }


def _span_json(span: Span | None) -> dict[str, Any] | None:
    return None if span is None else asdict(span)


def measured_lines(found: MeasuredJob, output: TextOutput, search: BatchSearch | None = None) -> Iterator[str]:
    """Yield the figures side by side: torch's, NVML's, by component and by phase, then the notes."""
    step, budget = found.step, found.budget
    unit, name = _unit(found)
    yield from (output.paint(line, None, bold=True) for line in output.wrapped(_headline(found), further="  "))
    if search is not None:
        yield from output.wrapped(search.sentence, further="  ")
    if step is not None and step.out_of_memory is not None:
        yield from output.wrapped(_failure(step, unit, name), further="  ")
    if budget is not None:
        yield from output.wrapped(f"predicted ({budget.method}): the peak {peak_place(budget)}", further="  ")
    yield ""
    last = "" if step is not None and step.device == "cpu" else "range"
    rows = [(name, "measured", "predicted", "difference", last), *_rows(found, unit)]
    yield from (output.text(line.rstrip()) for line in format_table(rows, _ALIGNED))
    notes = [*found.notes, *([f"not predicted: {found.unpredicted}"] if found.unpredicted else [])]
    if step is not None and step.device == "cpu":
        notes.append(
            "both figures are for the CPU, without CUDA context, cuBLAS workspaces and allocator cache; vramtop "
            "estimate includes these"
        )
    if step is not None and step.device == "cpu" and found.job.parallel.cpu_offload != "none":
        notes.append("on a CPU, memory offloaded to the host is included")
    if step is not None and step.highest.retries:
        notes.append(f"the allocator freed its cache {step.highest.retries} times because memory was full")
    if notes:
        yield ""
    for note in notes:
        yield from output.wrapped(f"note: {note}", further="  ")


def _headline(found: MeasuredJob) -> str:
    step = found.step
    if step is None:
        return f"{found.job.label}: predicted only"
    where = found.card or "a GPU" if step.device == "cuda" else "the CPU (a tiny model)"
    ranks = f"{len(step.ranks)} ranks on " if len(step.ranks) > 1 else ""
    versions = ", ".join(f"{name} {step.versions[name]}" for name in ("torch", "transformers") if name in step.versions)
    count = len(step.highest.allocated_by_step_bytes)
    steps = "" if step.out_of_memory or not count else f"{count} step{'s' * (count != 1)} on "
    return f"{found.job.label}: {steps}{ranks}{where}; {versions}"


def _failure(step: MeasuredStep, unit: int, name: str) -> str:
    failed = step.out_of_memory
    assert failed is not None  # noqa: S101 - the caller has asked
    held = [
        f"{size / unit:.2f} {name} {word}"
        for size, word in ((failed.allocated_bytes, "allocated"), (failed.reserved_bytes, "reserved"))
        if size is not None
    ]
    rank = f" of rank {step.ranks.index(step.highest)}" if len(step.ranks) > 1 else ""
    return f"It ran out of memory {failed.place}{rank}, with {' and '.join(held)}: {failed.message}"


def _rows(found: MeasuredJob, unit: int) -> Iterator[tuple[str, str, str, str, str]]:
    step, budget = found.step, found.budget
    rank = step.highest if step else None
    peak = budget.peak if budget else None
    on_cpu = step is not None and step.device == "cpu"

    def row(name: str, seen: int | None, told: int | None, span: Span | None = None) -> tuple[str, str, str, str, str]:
        apart = _UNKNOWN if seen is None or not told else f"{100 * (seen - told) / told:+.1f} %"
        bounds = f"{span.low_bytes / unit:.2f} - {span.high_bytes / unit:.2f}" if span and not on_cpu else ""
        return name, _size(seen, unit), _size(told, unit), apart, bounds

    yield row(
        "allocated",
        rank.allocated_bytes if rank else None,
        peak.allocated_bytes if peak else None,
        peak.allocated_range if peak else None,
    )
    if not on_cpu:
        yield from _outer_rows(found, row)
    for name in _PARTS:
        yield row(f"  {name}", rank.components.get(name) if rank else None, _whole_component(budget, name))
    for phase in _PHASES:
        seen = rank.phases.get(phase) if rank else None
        told = next((each.allocated_bytes for each in budget.phases if each.name == phase), None) if budget else None
        if seen is not None or told is not None:
            yield row(f"allocated, {phase}", seen.allocated if seen else None, told)


def _outer_rows(found: MeasuredJob, row: Callable[..., tuple[str, str, str, str, str]]) -> Iterator[Any]:
    """Yield the figures that only a GPU has."""
    rank, outside = found.step.highest if found.step else None, found.outside
    peak = found.budget.peak if found.budget else None
    yield row(
        "reserved",
        rank.reserved_bytes if rank else None,
        peak.reserved_bytes if peak else None,
        peak.reserved_range if peak else None,
    )
    device = outside.process_bytes if outside.process_bytes is not None else outside.device_bytes
    yield row("device (NVML)", device, peak.device_bytes if peak else None, peak.device_range if peak else None)
    reserved = rank.reserved_bytes if rank else None
    outside_torch = None if device is None or reserved is None else device - reserved
    yield row("  outside torch", outside_torch, peak.device_bytes - peak.reserved_bytes if peak else None)


def _whole_component(budget: Budget | None, name: str) -> int | None:
    """Return what a component takes where all of it exists: in some phase; of gradients, in the optimizer step."""
    if budget is None:
        return None
    step = budget.phase("optimizer step")
    if name == "gradients" and step is not None and step.components.gradients:
        return step.components.gradients
    most: int = max(getattr(phase.components, name) for phase in budget.phases)
    return most


def _unit(found: MeasuredJob) -> tuple[int, str]:
    """Return the unit in which the smallest of the peaks can be read."""
    seen = found.step.highest.allocated_bytes if found.step else None
    size = seen if seen is not None else found.budget.peak.allocated_bytes if found.budget else 0
    return (GIB, "GiB") if size >= GIB // 10 else (MIB, "MiB")


def _size(size: int | None, unit: int) -> str:
    return _UNKNOWN if size is None else f"{size / unit:.2f}"
