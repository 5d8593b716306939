"""``vramtop attach PID``: a running job, read, estimated, and held against what it takes."""

import argparse
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.causes.divergence import Divergence
from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.gpu_catalogue import Gpu, match_nvml_name
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file import job_to_mapping, parse_assignment
from vramtop.monitor.anomalies.anomaly import Anomaly
from vramtop.monitor.anomalies.detector import AnomalyDetector
from vramtop.monitor.attach.attachment import Attachment
from vramtop.monitor.attach.read_run import read_run, require_running
from vramtop.monitor.attach.saved_answers import SavedAnswers, with_saved_answers
from vramtop.monitor.divergence.diagnose import diagnose
from vramtop.monitor.divergence.divergence_status import Comparison, compare_with_budget
from vramtop.monitor.divergence.run_phases import PhaseTracker
from vramtop.monitor.snapshot.mig_devices import device_of
from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading, Snapshot
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource

from ...draw.palette import STATUSES
from ...draw.text_output import TextOutput, detect_output, format_table
from ...job.job_flags import TRUST_KEY
from ...reports.anomaly_text import ANOMALY_COLOUR
from ...reports.budget_text import budget_lines
from ..arguments import add_method_argument, process_id
from ..json_text import json_text
from ..options import estimate_method
from ..progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What was found out of a running job."""

    attachment: Attachment
    job: Job | None
    missing: tuple[str, ...]
    budget: Budget | None
    comparison: Comparison | None
    divergence: Divergence | None
    """Of a job that is off its budget."""
    snapshot: Snapshot | None
    """The GPUs now; None without a driver."""
    faults: tuple[str, ...]
    """Why some GPU, or none, can be read."""
    odd: tuple[Anomaly, ...]
    """What is odd about its processes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the process, the settings that the user gives, and the method."""
    parser.add_argument(
        "process", type=process_id, metavar="PID", help="any process of the run: a rank or its launcher"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="fill in or correct a setting")
    trust = f"{TRUST_KEY}=true"
    parser.add_argument(
        "--trust-remote-code", action="append_const", dest="set", const=trust, help="run code in the model's folder"
    )
    add_method_argument(parser)


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print what was found out; 0 with a budget, 3 where something that matters is missing."""
    del launch
    snapshot, unseen = _machine()
    given = dict(parse_assignment(text) for text in options.set)
    attachment, job, missing = complete_job(options.process, given, snapshot)
    attachment = attachment.with_gpu_assignments(snapshot.gpus if snapshot else None)
    held = observe(attachment, snapshot)
    observed = held[1].used_bytes if held else None
    odd = AnomalyDetector(min_duration_seconds=0).update(snapshot) if snapshot else ()
    budget = None
    if job is not None:
        gpu = match_nvml_name(held[0].name, held[0].total_bytes) if held and held[0].name else None
        budget = _estimate(options, attachment, job, gpu)
    comparison = _compare(attachment, budget, held) if budget else None
    if comparison and held is None and snapshot and all(gpu.processes is not None for gpu in snapshot.gpus):
        comparison = replace(comparison, sentence="it is on none of the GPUs that are seen here")
    pids = {attachment.pid, *(rank.pid for rank in attachment.ranks)}
    found = _Run(
        attachment=attachment,
        job=job,
        missing=missing,
        budget=budget,
        comparison=comparison,
        divergence=_divergence(budget, comparison, held, attachment, given),
        snapshot=snapshot,
        faults=unseen or _faults(snapshot, held[0] if held else None),
        odd=tuple(oddity for oddity in odd if oddity.concerns(pids)),
    )
    if options.json:
        print(json_text(_to_json(found, observed)))
        if missing:
            print(f"vramtop: {_asks(missing)}", file=sys.stderr)
    else:
        print("\n".join(_lines(found, detect_output(ascii_only=options.ascii))))
    return 0 if budget else 3


def _estimate(options: argparse.Namespace, attachment: Attachment, job: Job, gpu: Gpu | None) -> Budget:
    """What the job should take; its files may go with its container while they are read."""
    try:
        with Progress(quiet=options.json) as progress:
            return estimate(
                job,
                method=estimate_method(options),
                gpu=None if job.target.gpu else gpu,
                python=options.python or attachment.worker_python,
                environ=attachment.estimate_environ,
                progress=progress,
            )
    except InputError:
        require_running(attachment.pid, attachment.start_time)
        raise


def _asks(missing: Sequence[str]) -> str:
    sets = " ".join(f"--set {key}=VALUE" for key in missing)
    return f"Process and command line do not tell {', '.join(missing)}; give {sets}"


def _compare(attachment: Attachment, budget: Budget, held: tuple[GpuReading, GpuProcess] | None) -> Comparison:
    """By one reading: a process that says its steps is settled or not; of others only too much can be told."""
    tracker = PhaseTracker(budget, start_time=attachment.start_time)
    process = held[1] if held else None
    reading = (time.time(), process.used_bytes if process else None)
    tracker.add(*reading, process.counters if process else None)
    return compare_with_budget(tracker, [reading], process=process)


def complete_job(
    pid: int, changes: Mapping[str, Any], snapshot: Snapshot | None
) -> tuple[Attachment, Job | None, tuple[str, ...]]:
    """A running process, its job, and what is missing of it; the job is None while something is.

    What the user filled in on the attach screen for this command line counts, and ``changes`` more than that; changes
    are not remembered.
    """
    on_gpu = {process.pid for _, process in snapshot.processes()} if snapshot else None
    attachment = with_saved_answers(read_run(pid, on_gpu=on_gpu or None), SavedAnswers())
    missing = attachment.reading.still_missing(changes)
    return attachment, None if missing else attachment.reading.job(changes), missing


def _machine() -> tuple[Snapshot | None, tuple[str, ...]]:
    """The GPUs as they are now; None where NVML cannot say, and why."""
    source = NvmlSource()
    try:
        source.open()
        return source.read(), ()
    except CannotTellError as error:
        return None, (error.message,)
    finally:
        source.close()


def _faults(snapshot: Snapshot | None, gpu: GpuReading | None) -> tuple[str, ...]:
    """Of the machine, of the GPUs that cannot be read at all, and of the run's own GPU."""
    if snapshot is None:
        return ()
    sentences = [fault.message for fault in snapshot.faults]
    for each in snapshot.gpus:
        here = gpu is not None and each.index == gpu.index
        fields = (None, "processes", "used_bytes") if here else (None, "processes")
        told = [fault.message for fault in each.faults if fault.field in fields]
        sentences += [f"GPU {each.index}: {message}" for message in dict.fromkeys(told)]
    return tuple(sentences)


def observe(attachment: Attachment, snapshot: Snapshot | None) -> tuple[GpuReading, GpuProcess] | None:
    """The rank that holds most, and its GPU; None where NVML cannot say."""
    keys = {(rank.pid, rank.start_time) for rank in attachment.ranks}
    pairs = snapshot.processes() if snapshot else ()
    found = [pair for pair in pairs if pair[1].key in keys]
    return max(found, key=lambda pair: pair[1].used_bytes or 0, default=None)


def _to_json(run: _Run, observed: int | None) -> dict[str, Any]:
    return run.attachment.to_json() | {
        "missing": list(run.missing),
        "job": job_to_mapping(run.job) if run.job else None,
        "budget": run.budget.to_json() if run.budget else None,
        "observed_bytes": observed,
        "oddities": [oddity.to_json() for oddity in run.odd],
        "faults": list(run.faults),
        "counters": _counters(run.attachment),
        "status": run.comparison.status if run.comparison else "unknown",
        "divergence": run.divergence.sentence if run.divergence else None,
        "explanation": [
            {"changes": each.changes, "words": each.description, "device_bytes": each.device_bytes}
            for each in (run.divergence.explanations if run.divergence else ())
        ],
    }


def _counters(attachment: Attachment) -> list[dict[str, Any]] | None:
    """Torch's own, per device; None without the probe."""
    sample = attachment.probe
    return None if sample is None else [asdict(device) for device in sample.devices]


def _divergence(
    budget: Budget | None,
    comparison: Comparison | None,
    held: tuple[GpuReading, GpuProcess] | None,
    attachment: Attachment,
    given: Collection[str],
) -> Divergence | None:
    """For a job that is off its budget: the settings that would predict what it holds."""
    if not budget or not comparison or not comparison.diverges:
        return None
    assumed = {finding.key for finding in attachment.reading.findings if not finding.written} - set(given)
    quick = lambda job: estimate(job, environ=attachment.estimate_environ)  # noqa: E731 - a name for the argument
    return diagnose(budget, comparison, held[1] if held else None, quick, assumed=assumed)


def _lines(run: _Run, terminal: TextOutput) -> Iterator[str]:
    attachment, budget, comparison = run.attachment, run.budget, run.comparison
    how = f" through {attachment.launcher}" if attachment.launcher else ""
    inside = f"; in {', '.join(attachment.inside)}" if attachment.inside else ""
    yield terminal.text(f"pid {attachment.pid}{how}{inside}")
    yield terminal.text(f"{attachment.command}"[: terminal.width])
    yield ""
    yield from (terminal.text(line) for line in _rank_lines(run))
    yield ""
    rows = [("SETTING", "VALUE", "FROM"), *((f.key, _short(f.value), f.origin) for f in attachment.reading.findings)]
    yield from (terminal.text(line) for line in format_table(rows, "<<<"))
    for key in run.missing:
        yield terminal.paint(f"missing: {key}; give it with --set {key}=VALUE", "#c96c04")
    for warning in attachment.warnings:
        yield terminal.text(f"warning: {warning}")
    for sentence in run.faults:
        yield from terminal.wrapped(f"warning: {sentence}", indent="", further="  ")
    for oddity in run.odd:
        yield terminal.paint(f"warning: GPU {oddity.gpu_index}: {oddity.sentence}; {oddity.advice}", ANOMALY_COLOUR)
    if budget and comparison:
        mark = STATUSES[comparison.status]
        yield ""
        yield terminal.paint(f"{mark.letter} {mark.word}", mark.colour, bold=True) + terminal.text(
            f"  holds {format_gib(comparison.observed_bytes)} GiB, expected {format_gib(comparison.expected_bytes)}: "
            f"{comparison.sentence}"
        )
        for line in _explanation_lines(run):
            yield from terminal.wrapped(line, indent="  ", further="    ")
    yield from (terminal.text(line) for line in _counter_lines(run))
    if budget and comparison:
        yield ""
        yield from budget_lines(budget, terminal)


def _rank_lines(run: _Run) -> list[str]:
    """Every rank of this machine with its GPU; a question mark where that is not sure."""
    held = {
        (process.pid, gpu.index): (device_of(gpu, process).label, process.used_bytes)
        for gpu, process in (run.snapshot.processes() if run.snapshot else ())
    }
    rows = [("RANK", "PID", "GPU", "VRAM GiB", "GPU FROM")]
    for rank in run.attachment.ranks:
        seat = rank.gpu_assignment
        label, used = held.get((rank.pid, seat.gpu if seat.gpu is not None else -1), (str(seat.gpu), None))
        gpu = "n/a" if seat.gpu is None else f"{label}{'?' if seat.certainty == 'unsure' else ''}"
        size = format_gib(used)
        number = "-" if rank.rank is None else str(rank.rank)
        rows.append((number, str(rank.pid), gpu, size, f"{seat.origin}{f': {seat.note}' if seat.note else ''}"))
    return format_table(rows, ">>>><")


def _short(value: Any) -> str:
    """A setting's value in a table; a model's config by its type."""
    if isinstance(value, Mapping):
        return f"config of a {value.get('model_type', 'model')}"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _counter_lines(run: _Run) -> Iterator[str]:
    """What torch itself counts, where the process runs with the probe, beside the budget's figures."""
    sample, budget = run.attachment.probe, run.budget
    age = sample.stale_seconds(time.time()) if sample else None
    for device in sample.devices if sample else ():
        free = (device.reserved_bytes or 0) - (device.allocated_bytes or 0)
        line = (
            f"torch on its device {device.index}: {format_gib(device.allocated_bytes)} GiB allocated (most "
            f"{format_gib(device.allocated_peak_bytes)}), {format_gib(device.reserved_bytes)} reserved (most "
            f"{format_gib(device.reserved_peak_bytes)}), {format_gib(free)} of it cached and free"
        )
        expected = f"; expected at most {format_gib(budget.peak.allocated_bytes)} allocated" if budget else ""
        yield line + expected + (f"; {age:.0f} seconds ago: the process does not run on" if age is not None else "")
        if device.retries:
            yield f"  the cache was flushed {device.retries} times for want of room"


def _explanation_lines(run: _Run) -> Iterator[str]:
    if run.divergence is None:
        return
    yield run.divergence.sentence
    yield from (line for line in run.divergence.lines if line not in run.divergence.sentence)
