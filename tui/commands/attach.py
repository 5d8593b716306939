"""``vramtop attach PID``: a running job, read, estimated, and held against what it takes."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vramtop.estimator.budget import Budget
from vramtop.estimator.errors import CannotTellError
from vramtop.estimator.gpus import Gpu, match_nvml_name
from vramtop.estimator.job import Job
from vramtop.estimator.jobfile import job_to_mapping, parse_assignment
from vramtop.estimator.methods import estimate
from vramtop.estimator.sizes import format_gib
from vramtop.estimator.suggestions import suggest
from vramtop.monitor.attach import Attachment, attach
from vramtop.monitor.compare import Comparison, compare
from vramtop.monitor.nvml import NvmlSource

from ..json_text import json_text
from ..palette import STATUSES
from ..progress import Progress
from ..report import budget_lines
from ..terminal import Terminal, look, table
from .estimate import method


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What was found out of a running job."""

    attachment: Attachment
    job: Job | None
    missing: tuple[str, ...]
    budget: Budget | None
    comparison: Comparison | None


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print what was found out; 0 with a budget, 3 where something that matters is missing."""
    del launch
    attachment, job, missing = complete_job(options.process, dict(parse_assignment(text) for text in options.set))
    observed, gpu = observe(attachment)
    budget = None
    if job is not None:
        with Progress(quiet=options.json) as progress:
            budget = estimate(
                job,
                method=method(options),
                gpu=None if job.target.gpu else gpu,
                python=options.python or attachment.worker_python,
                environ=attachment.environ_hf,
                progress=progress,
            )
    comparison = compare(budget, [(0.0, observed)]) if budget else None
    found = _Run(attachment=attachment, job=job, missing=missing, budget=budget, comparison=comparison)
    if options.json:
        print(json_text(_to_json(found, observed)))
    else:
        print("\n".join(_lines(found, look(ascii_only=options.ascii))))
    return 0 if budget else 3


def complete_job(pid: int, changes: Mapping[str, Any]) -> tuple[Attachment, Job | None, tuple[str, ...]]:
    """A running process, its job, and what is missing of it; the job is None while something is."""
    attachment = attach(pid)
    missing = attachment.reading.still_missing(changes)
    return attachment, None if missing else attachment.reading.job(changes), missing


def observe(attachment: Attachment) -> tuple[int | None, Gpu | None]:
    """What the fullest rank holds now, and on what card; None where NVML cannot say."""
    source = NvmlSource()
    try:
        source.open()
    except CannotTellError:
        return None, None
    try:
        snapshot = source.read()
    finally:
        source.close()
    pids = {rank.pid for rank in attachment.ranks}
    found = [(process.used_bytes, gpu) for gpu, process in snapshot.processes() if process.pid in pids]
    if not found:
        return None, None
    used, gpu = max(found, key=lambda pair: pair[0] or 0)
    return used, match_nvml_name(gpu.name, gpu.total_bytes) if gpu.name else None


def _to_json(run: _Run, observed: int | None) -> dict[str, Any]:
    return run.attachment.to_json() | {
        "missing": list(run.missing),
        "job": job_to_mapping(run.job) if run.job else None,
        "budget": run.budget.to_json() if run.budget else None,
        "observed_bytes": observed,
        "status": run.comparison.status if run.comparison else "unknown",
        "explanation": list(_explanation(run)),
    }


def _explanation(run: _Run) -> Iterator[dict[str, Any]]:
    """For a job that holds less than its budget: the single changes that would come nearer to what it holds."""
    budget, comparison = run.budget, run.comparison
    if not budget or not comparison or comparison.status != "under" or comparison.observed_bytes is None:
        return
    observed = comparison.observed_bytes
    distance = abs(budget.peak.device_bytes - observed)
    found = suggest(budget.job, budget, lambda job: estimate(job, environ=run.attachment.environ_hf))
    nearer = [s for s in found if abs(s.budget.peak.device_bytes - observed) < distance]
    for s in sorted(nearer, key=lambda s: abs(s.budget.peak.device_bytes - observed)):
        yield {"changes": s.changes, "device_bytes": s.budget.peak.device_bytes}


def _lines(run: _Run, terminal: Terminal) -> Iterator[str]:
    attachment, budget, comparison = run.attachment, run.budget, run.comparison
    ranks = ", ".join(f"{rank.pid}" for rank in attachment.ranks)
    how = f" through {attachment.launcher}" if attachment.launcher else ""
    yield terminal.text(f"pid {attachment.pid}{how}; ranks here: {ranks}")
    yield terminal.text(f"{attachment.command}"[: terminal.width])
    yield ""
    rows = [("SETTING", "VALUE", "FROM"), *((f.key, str(f.value), f.origin) for f in attachment.reading.findings)]
    yield from (terminal.text(line) for line in table(rows, "<<<"))
    for key in run.missing:
        yield terminal.paint(f"missing: {key}; give it with --set {key}=VALUE", "#f59e0b")
    for warning in attachment.warnings:
        yield terminal.text(f"warning: {warning}")
    if budget and comparison:
        mark = STATUSES[comparison.status]
        yield ""
        yield terminal.paint(f"{mark.letter} {mark.word}", mark.colour, bold=True) + terminal.text(
            f"  holds {format_gib(comparison.observed_bytes)} GiB, expected {format_gib(comparison.expected_bytes)}: "
            f"{comparison.sentence}"
        )
        yield ""
        yield from budget_lines(budget, terminal)
