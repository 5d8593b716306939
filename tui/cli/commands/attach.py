"""``vramtop attach PID``: read a running job, estimate it, and compare it with the memory that it holds."""

import argparse
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

import msgspec
from msgspec import to_builtins

from vramtop.estimator.budget import Budget
from vramtop.estimator.causes.divergence import Divergence
from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.gpu_catalogue import match_nvml_name
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_to_mapping, parse_assignment, replaces_model
from vramtop.estimator.server_budget import budget_on_gpu
from vramtop.monitor.anomalies.anomaly import Anomaly
from vramtop.monitor.anomalies.detector import AnomalyDetector
from vramtop.monitor.attach.attachment import Attachment
from vramtop.monitor.attach.read_run import read_run, require_running
from vramtop.monitor.attach.rehearse_run import find_program, with_rehearsal
from vramtop.monitor.attach.saved_answers import SavedAnswers, with_saved_answers
from vramtop.monitor.board.comparison import Comparison, compare_with_budget
from vramtop.monitor.board.diagnosis import diagnose
from vramtop.monitor.board.run_phases import PhaseTracker
from vramtop.monitor.snapshot.mig_devices import device_of
from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading, Snapshot
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource

from ...draw.palette import STATUSES, colour_of
from ...draw.text_output import TextOutput, detect_output, format_table
from ...reports.budget_text import budget_lines, closing_lines
from ..json_text import json_text
from ..measured_runs import corrected_run
from ..progress import Progress


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """A running job and what is known about it."""

    attachment: Attachment
    job: Job | None
    missing: tuple[str, ...]
    """Required settings that were not found; without them there is no job."""
    budget: Budget | None
    comparison: Comparison | None
    divergence: Divergence | None
    """None for a job that is on its budget."""
    snapshot: Snapshot | None
    """The GPUs now; None without a driver."""
    faults: tuple[str, ...]
    """Why GPUs cannot be read."""
    anomalies: tuple[Anomaly, ...]
    """Anomalies of the run's processes."""


def run(options: argparse.Namespace, _: Sequence[str] | None) -> int:
    """Print what is known about the run; exit code 0, or 3 if a required setting is missing."""
    snapshot, source_faults = _read_gpus()
    settings = dict(parse_assignment(text) for text in options.set)
    rehearsed = _rehearse(options, snapshot) if options.rehearse else None
    attachment, job, missing = read_job_of_run(options.process, settings, snapshot)
    if rehearsed is not None:
        attachment, job, missing = with_rehearsal(attachment, rehearsed), rehearsed.job, ()
    attachment = attachment.with_gpu_assignments(snapshot.gpus if snapshot else None)
    largest = largest_rank(attachment, snapshot)
    gpu, process = largest or (None, None)
    budget = rehearsed or (None if job is None else _estimate(options, attachment, job, gpu))
    budget = budget and budget_on_gpu(budget, gpu.cuda_total_bytes if gpu else None)
    comparison = _compare(attachment, budget, process) if budget else None
    if comparison and largest is None and snapshot and all(each.processes is not None for each in snapshot.gpus):
        comparison = replace(comparison, sentence="it is not on a GPU that is visible here")
    anomalies = AnomalyDetector(min_duration_seconds=0).update(snapshot) if snapshot else ()
    pids = {attachment.pid, *(rank.pid for rank in attachment.ranks)}
    report = RunReport(
        attachment=attachment,
        job=job,
        missing=missing,
        budget=budget,
        comparison=comparison,
        divergence=_diagnose(budget, comparison, process, attachment, settings),
        snapshot=snapshot,
        faults=source_faults or _relevant_faults(snapshot, gpu),
        anomalies=tuple(anomaly for anomaly in anomalies if anomaly.concerns(pids)),
    )
    if options.json:
        print(json_text(_to_json(report, process.used_bytes if process else None)))
        if missing:
            flags = " ".join(f"--set {key}=VALUE" for key in missing)
            refused = attachment.reading.refused
            wrong = [f"{refused[key]}; " for key in missing if key in refused]
            absent = [key for key in missing if key not in refused]
            unset = f"the process and its command line do not set {', '.join(absent)}; " if absent else ""
            print(f"vramtop: {''.join(dict.fromkeys(wrong))}{unset}give {flags}", file=sys.stderr)
    else:
        output = detect_output(ascii_only=options.ascii)
        print("\n".join(run_lines(report, output, verbose=options.verbose)))
        if rehearsed is None and (missing or attachment.warnings):
            with suppress(CannotTellError, InputError):
                find_program(options.process)
                print(f"For the exact figure: vramtop attach {options.process} --rehearse runs its program beside it.")
    return 0 if budget else 3


def read_job_of_run(
    pid: int, changes: Mapping[str, Any], snapshot: Snapshot | None
) -> tuple[Attachment, Job | None, tuple[str, ...]]:
    """Return a running process, its job, and the missing settings; the job is None while a setting is missing.

    Settings that the user filled in on the attach screen for this command line are used, but ``changes``, which are not
    saved, replace them.
    """
    on_gpu = {process.pid for _, process in snapshot.processes()} if snapshot else None
    read = partial(read_run, pid, on_gpu=on_gpu or None)
    reread = None if replaces_model(changes) else lambda given: read(given=given)
    attachment = with_saved_answers(read(given=changes), SavedAnswers(), reread=reread)
    missing = attachment.reading.still_missing(changes)
    return attachment, None if missing else attachment.reading.job(changes), missing


def largest_rank(attachment: Attachment, snapshot: Snapshot | None) -> tuple[GpuReading, GpuProcess] | None:
    """Return the rank that holds the most memory, and its GPU; None if NVML does not list any rank."""
    keys = {(rank.pid, rank.start_time) for rank in attachment.ranks}
    pairs = snapshot.processes() if snapshot else ()
    ranks = [pair for pair in pairs if pair[1].key in keys]
    return max(ranks, key=lambda pair: pair[1].used_bytes or 0, default=None)


def _read_gpus() -> tuple[Snapshot | None, tuple[str, ...]]:
    """Return the GPUs now; without a driver, None and the reason."""
    with closing(NvmlSource()) as source:
        try:
            source.open()
            return source.read(), ()
        except CannotTellError as error:
            return None, (error.message,)


def _rehearse(options: argparse.Namespace, snapshot: Snapshot | None) -> Budget:
    """Rehearse the run, on the GPU that its process holds, else on the first one."""
    pairs = snapshot.processes() if snapshot else ()
    found = find_program(options.process, on_gpu={process.pid for _, process in pairs} or None)
    held = [gpu for gpu, process in pairs if process.pid == options.process]
    gpu = next(iter(held or (snapshot.gpus if snapshot else ())), None)
    gpu_type = match_nvml_name(gpu.name, gpu.total_bytes) if gpu and gpu.name else None
    with Progress(quiet=options.json) as progress:
        return found.rehearse(gpu=gpu_type, gpus=len(held), progress=progress)


def _estimate(options: argparse.Namespace, attachment: Attachment, job: Job, gpu: GpuReading | None) -> Budget:
    """Estimate the job; if its files cannot be read, check first whether it has ended with its container."""
    gpu_type = match_nvml_name(gpu.name, gpu.total_bytes) if gpu and gpu.name else None
    try:
        with Progress(quiet=options.json) as progress:
            budget = estimate(
                job,
                method=options.method,
                gpu=None if job.target.gpu else gpu_type,
                python=options.python if options.names_python else attachment.worker_python or options.python,
                environ=attachment.estimate_environ,
                progress=progress,
            )
    except InputError:
        require_running(attachment.pid, attachment.start_time)
        raise
    return corrected_run(options, budget, attachment, gpu)


def _compare(attachment: Attachment, budget: Budget, process: GpuProcess | None) -> Comparison:
    """Compare one reading with the budget: without the probe, one reading can only show that it is exceeded."""
    tracker = PhaseTracker(budget, start_time=attachment.start_time)
    reading = (time.time(), process.used_bytes if process else None)
    tracker.add(*reading, process.counters if process else None)
    return compare_with_budget(tracker, [reading], process=process)


def _diagnose(
    budget: Budget | None,
    comparison: Comparison | None,
    process: GpuProcess | None,
    attachment: Attachment,
    given: Collection[str],
) -> Divergence | None:
    """Return the settings that would explain what a job off its budget holds; None for other jobs."""
    if not budget or not comparison or not comparison.diverges:
        return None

    def quick_estimate(job: Job) -> Budget:
        return estimate(job, environ=attachment.estimate_environ)

    assumed = {finding.key for finding in attachment.reading.findings if not finding.written} - set(given)
    return diagnose(budget, comparison, process, quick_estimate, assumed=assumed)


def _relevant_faults(snapshot: Snapshot | None, gpu: GpuReading | None) -> tuple[str, ...]:
    """Return the faults of the machine, of GPUs that cannot be read at all, and of the run's own GPU."""
    if snapshot is None:
        return ()
    sentences = [fault.message for fault in snapshot.faults]
    for each in snapshot.gpus:
        is_own = gpu is not None and each.index == gpu.index
        fields = (None, "processes", "used_bytes") if is_own else (None, "processes")
        messages = [fault.message for fault in each.faults if fault.field in fields]
        sentences += [f"GPU {each.index}: {message}" for message in dict.fromkeys(messages)]
    return tuple(sentences)


def _to_json(report: RunReport, observed_bytes: int | None) -> dict[str, Any]:
    sample = report.attachment.probe
    anomalies = to_builtins(report.anomalies)
    return {
        "schema": 1,
        **report.attachment.to_json(),
        "missing": list(report.missing),
        "job": job_to_mapping(report.job) if report.job else None,
        "budget": report.budget.to_json() if report.budget else None,
        "observed_bytes": observed_bytes,
        "anomalies": anomalies,
        "oddities": anomalies,
        "faults": list(report.faults),
        "counters": None if sample is None else to_builtins(sample.devices),
        "status": report.comparison.status if report.comparison else "unknown",
        "divergence": report.divergence.sentence if report.divergence else None,
        "explanation": [
            {"changes": each.changes, "words": each.description, "device_bytes": each.device_bytes}
            for each in (report.divergence.explanations if report.divergence else ())
        ],
    }


def run_lines(run: RunReport, output: TextOutput, *, verbose: bool = False) -> Iterator[str]:
    """Yield the run, its settings and warnings, and the comparison with its budget; ``verbose``: its assumptions."""
    attachment = run.attachment
    launcher = f" through {attachment.launcher}" if attachment.launcher else ""
    inside = f"; in {', '.join(attachment.inside)}" if attachment.inside else ""
    yield output.text(f"pid {attachment.pid}{launcher}{inside}")
    yield output.text(f"{attachment.command}"[: output.width])
    yield ""
    yield from (output.text(line) for line in _rank_table(run))
    yield ""
    rows = [("SETTING", "VALUE", "FROM")]
    for finding in attachment.reading.findings:
        text = finding.value_text
        short = text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 3]}..."
        rows.append((finding.key, short, finding.origin))
    yield from (output.text(line) for line in format_table(rows, "<<<"))
    yield from _warning_lines(run, output)
    yield from _status_lines(run, output)
    yield from (output.text(line) for line in _counter_lines(run))
    if run.budget and run.comparison:
        yield ""
        yield from budget_lines(run.budget, output)
        yield from closing_lines(run.budget, (), output, verbose=verbose)


def _rank_table(run: RunReport) -> list[str]:
    """Return every rank of this machine with its GPU; a question mark if the GPU is uncertain."""
    held = {
        (process.pid, gpu.index): (device_of(gpu, process).label, process.used_bytes)
        for gpu, process in (run.snapshot.processes() if run.snapshot else ())
    }
    rows = [("RANK", "PID", "GPU", "VRAM GiB", "GPU FROM")]
    for rank in run.attachment.ranks:
        assigned = rank.gpu_assignment
        index = -1 if assigned.gpu is None else assigned.gpu
        label, used_bytes = held.get((rank.pid, index), (str(assigned.gpu), None))
        gpu = "n/a" if assigned.gpu is None else f"{label}{'?' if assigned.certainty == 'unsure' else ''}"
        number = "-" if rank.rank is None else str(rank.rank)
        origin = f"{assigned.origin}: {assigned.note}" if assigned.note else assigned.origin
        rows.append((number, str(rank.pid), gpu, format_gib(used_bytes), origin))
    return format_table(rows, ">>>><")


_MAX_VALUE_LENGTH = 60


def _warning_lines(run: RunReport, output: TextOutput) -> Iterator[str]:
    refused = run.attachment.reading.refused
    for key in run.missing:
        why = f"wrong: {refused[key]}" if key in refused else f"missing: {key}"
        yield output.paint(f"{why}; give it with --set {key}=VALUE", colour_of("warning"))
    for warning in run.attachment.warnings:
        if warning.removesuffix(".") not in refused.values():
            yield output.text(f"warning: {warning}")
    for sentence in run.faults:
        yield from output.wrapped(f"warning: {sentence}", indent="", further="  ")
    for anomaly in run.anomalies:
        yield output.paint(f"warning: GPU {anomaly.gpu}: {anomaly.sentence}; {anomaly.advice}", colour_of("warning"))


def _status_lines(run: RunReport, output: TextOutput) -> Iterator[str]:
    comparison, divergence = run.comparison, run.divergence
    if run.budget is None or comparison is None:
        return
    mark = STATUSES[comparison.status]
    yield ""
    yield output.paint(f"{mark.letter} {mark.word}", mark.colour, bold=True) + output.text(
        f"  holds {format_gib(comparison.observed_bytes)} GiB, expected {format_gib(comparison.expected_bytes)}: "
        f"{comparison.sentence}"
    )
    if divergence is not None:
        others = (line for line in divergence.lines if line not in divergence.sentence)
        for line in (divergence.sentence, *others):
            yield from output.wrapped(line, indent="  ", further="    ")


def _counter_lines(run: RunReport) -> Iterator[str]:
    """Yield PyTorch's own counters, if the process runs with the probe, beside the budget's figures."""
    sample, budget = run.attachment.probe, run.budget
    if sample is None:
        return
    age = sample.stale_seconds(time.time())
    stale = "" if age is None else f"; {age:.0f} seconds ago: the process makes no progress"
    expected = f"; expected at most {format_gib(budget.peak.allocated_bytes)} allocated" if budget else ""
    for device in sample.devices:
        cached_bytes = (device.reserved_bytes or 0) - (device.allocated_bytes or 0)
        yield (
            f"torch on its device {device.index}: {format_gib(device.allocated_bytes)} GiB allocated (peak "
            f"{format_gib(device.allocated_peak_bytes)}), {format_gib(device.reserved_bytes)} reserved (peak "
            f"{format_gib(device.reserved_peak_bytes)}), {format_gib(cached_bytes)} of it cached and free"
            f"{expected}{stale}"
        )
        if device.retries:
            yield f"  the allocator flushed its cache {device.retries} times because memory ran out"
