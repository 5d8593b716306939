"""A running job as text for a terminal, as ``attach`` prints it: ranks, settings, warnings, status and counters."""

import time
from collections.abc import Iterator

import msgspec

from vramtop.estimator.budget import Budget
from vramtop.estimator.causes.divergence import Divergence
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.job.job import Job
from vramtop.monitor.anomalies.anomaly import Anomaly
from vramtop.monitor.attach.attachment import Attachment
from vramtop.monitor.board.comparison import Comparison
from vramtop.monitor.snapshot.mig_devices import device_of
from vramtop.monitor.snapshot.snapshot import Snapshot

from ..draw.palette import STATUSES, colour_of
from ..draw.text_output import TextOutput, format_table
from .budget_text import budget_lines, closing_lines


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
