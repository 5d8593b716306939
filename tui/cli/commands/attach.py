"""``vramtop attach PID``: read a running job, estimate it, and compare it with the memory that it holds."""

import argparse
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

from msgspec import to_builtins

from vramtop.estimator.budget import Budget
from vramtop.estimator.causes.divergence import Divergence
from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.gpu_catalogue import match_nvml_name
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_to_mapping, parse_assignment, replaces_model
from vramtop.estimator.server_budget import budget_on_gpu
from vramtop.monitor.anomalies.detector import AnomalyDetector
from vramtop.monitor.attach.attachment import Attachment
from vramtop.monitor.attach.read_run import read_run, require_running
from vramtop.monitor.attach.rehearse_run import find_program, with_rehearsal
from vramtop.monitor.attach.saved_answers import SavedAnswers, with_saved_answers
from vramtop.monitor.board.comparison import Comparison, compare_with_budget
from vramtop.monitor.board.diagnosis import diagnose
from vramtop.monitor.board.run_phases import PhaseTracker
from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading, Snapshot
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource

from ...draw.text_output import detect_output
from ...reports.run_text import RunReport, run_lines
from ..json_text import json_text
from ..measured_runs import corrected_run
from ..progress import Progress


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
