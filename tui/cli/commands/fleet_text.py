"""One reading of several hosts as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from vramtop.estimator.common.sizes import format_gib, format_size
from vramtop.monitor.host.plain_text import duration_text

from ...draw.palette import status_mark
from ...draw.text_output import format_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vramtop.monitor.fleet.fleet import (
        Fleet,
        FleetGpu,
        FleetProcess,
        FleetRank,
        FleetRun,
        FleetTotals,
        HostReading,
        HostTotals,
    )

    from ...draw.text_output import TextOutput
    from ..json_types import FleetRunJson, HostsJson, RankJson, TotalsJson

_MAX_NAMED_RANKS = 4
"""Ranks of a run that its line names."""


def fleet_json(fleet: Fleet) -> HostsJson:
    """Return the fleet as ``--once --json`` prints it; unknown values are null."""
    from datetime import datetime, timezone

    return {
        "schema": 1,
        "time": datetime.fromtimestamp(fleet.time, timezone.utc).isoformat(),
        "source": {"kind": "hosts"},
        "notice": fleet.notice,
        "totals": _totals_json(fleet.totals),
        "hosts": [_host_json(fleet, host) for host in fleet.hosts],
        "runs": [_run_json(run) for run in fleet.runs],
    }


def _totals_json(totals: FleetTotals) -> TotalsJson:
    """Return the sums; their bytes are unknown if no GPU could be read."""
    sums, known = totals.gpus, totals.gpus.gpus > 0
    return {
        "hosts": totals.hosts,
        "silent_hosts": totals.silent_hosts,
        "connecting_hosts": totals.connecting_hosts,
        "runs": totals.runs,
        "diverging_runs": totals.diverging_runs,
        "gpus": sums.gpus,
        "unknown_gpus": sums.unknown_gpus,
        "total_bytes": sums.total_bytes if known else None,
        "used_bytes": sums.used_bytes if known else None,
        "free_bytes": sums.free_bytes if known else None,
        "committed_bytes": sums.committed_bytes if known else None,
        "unattributed_bytes": sums.unattributed_bytes if known else None,
        "unattributed_unknown": sums.unattributed_unknown,
        "processes": sums.processes,
        "diverging": sums.diverging,
    }


def _host_json(fleet: Fleet, host: HostReading) -> dict[str, Any]:
    """Return a host; figures of one that is not live are of ``age_seconds`` ago."""
    return {**_plain(host), "age_seconds": None if host.is_live else fleet.age_seconds(host)}


def _run_json(run: FleetRun) -> FleetRunJson:
    return {
        "job": run.job,
        "user": run.user,
        "hosts": [host.host for host in run.hosts],
        "ranks": run.rank_count,
        "world_size": run.world_size,
        "unseen_ranks": run.unseen_ranks,
        "status": run.status,
        "used_bytes": run.used_bytes,
        "used_is_partial": run.is_partial,
        "budget_bytes": run.budget_bytes,
        "spread_bytes": run.spread_bytes,
        "highest": None if run.highest is None else _rank_json(run.highest),
        "diverging": [{**_rank_json(rank), "sentence": rank.process.sentence} for rank in run.diverging],
        "stragglers": [_rank_json(rank) for rank in run.stragglers],
    }


def _rank_json(rank: FleetRank) -> RankJson:
    return {
        "host": rank.host.host,
        "gpu": rank.gpu.index,
        "rank": rank.rank,
        "pid": rank.process.pid,
        "peak_bytes": rank.peak_bytes,
        "status": rank.process.status,
    }


def _plain(value: Any) -> Any:
    """Return a record with all of its fields, those that are unknown as None."""
    if isinstance(value, Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def fleet_lines(fleet: Fleet, output: TextOutput) -> Iterator[str]:
    """Yield the fleet as text: sums, hosts with their GPUs, runs."""
    totals = fleet.totals
    gpus = totals.gpus
    silent = f", {totals.silent_hosts} silent" if totals.silent_hosts else ""
    unknown = f" ({gpus.unknown_gpus} more n/a)" if gpus.unknown_gpus else ""
    yield output.text(
        f"{_count(totals.hosts, 'host')}{silent}, {_count(gpus.gpus, 'GPU')}{unknown}: "
        f"{_sum(gpus, gpus.free_bytes)} free, "
        f"{_sum(gpus, gpus.committed_bytes)} committed, {_sum(gpus, gpus.unattributed_bytes)} unattributed; "
        f"{_count(totals.runs, 'run')}, {totals.diverging_runs} diverging"
    )
    rows: list[tuple[str, ...]] = []
    for host in fleet.hosts:
        if not host.is_live:
            yield output.text(f"{host.host}: {_absence(fleet, host)}")
            continue
        rows += [_gpu_cells(host, gpu) for gpu in host.gpus]
    yield from format_table([[output.text(cell) for cell in row] for row in rows], "<<<>>><")
    processes = [
        [output.text(cell) for cell in _process_cells(host, gpu, process)]
        for host in fleet.hosts
        if host.is_live
        for gpu in host.gpus
        for process in gpu.processes or ()
    ]
    yield from ["", *format_table(processes, "<<<<>><")] if processes else []
    spanning = [run for run in fleet.runs if len(run.hosts) > 1 or run.unseen_ranks]
    yield from ["", *(output.text(_run_line(run)) for run in spanning)] if spanning else []
    yield from (output.text(f"{host.host}: {fault}") for host in fleet.hosts if host.is_live for fault in host.faults)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _sum(totals: HostTotals, size_bytes: int) -> str:
    return format_size(size_bytes) if totals.gpus else "n/a"


def _absence(fleet: Fleet, host: HostReading) -> str:
    """Return why a host has no figures of now, and how old the last ones are."""
    age = fleet.age_seconds(host)
    last = "" if age is None else f" (last reading {duration_text(age)} ago)"
    return f"{host.state}{last}: {host.reason or 'no reason known'}"


def _gpu_cells(host: HostReading, gpu: FleetGpu) -> tuple[str, ...]:
    return (
        host.host,
        f"GPU {gpu.shown_label}",
        gpu.name or "name n/a",
        "memory n/a"
        if gpu.total_bytes is None
        else f"{format_gib(gpu.used_bytes)} of {format_gib(gpu.total_bytes)} GiB in use",
        "" if gpu.total_bytes is None else f"{format_gib(gpu.free_bytes)} free",
        "" if not gpu.committed_bytes else f"{format_gib(gpu.committed_bytes)} committed",
        gpu.fault or "",
    )


def _process_cells(host: HostReading, gpu: FleetGpu, process: FleetProcess) -> tuple[str, ...]:
    return (
        host.host,
        f"pid {process.pid}" if process.pid is not None else "",
        process.user or "user n/a",
        f"GPU {process.device or gpu.shown_label}",
        "memory n/a" if process.used_bytes is None else f"{format_gib(process.used_bytes)} GiB",
        f"budget {format_gib(process.budget_bytes)}" if process.budget_bytes is not None else "",
        " ".join(
            filter(
                None,
                (status_mark(process.status).word if process.status else process.note, process.job or process.command),
            )
        ),
    )


def _run_line(run: FleetRun) -> str:
    """Return a run over several hosts in one line: ranks, memory, and which rank needs attention."""
    world = f" of {run.world_size}" if run.world_size else ""
    parts = [f"{run.rank_count}{world} ranks on {', '.join(host.host for host in run.hosts)}"]
    if run.used_bytes is not None:
        parts.append(f"{'at least ' * run.is_partial}{format_gib(run.used_bytes)} GiB")
    parts += [f"budget {format_gib(run.budget_bytes)}"] if run.budget_bytes is not None else []
    if run.highest is not None:
        parts.append(f"highest {format_gib(run.highest.peak_bytes)} ({run.highest.label})")
    parts += [f"spread {format_gib(run.spread_bytes)}"] if run.spread_bytes is not None else []
    parts += [
        f"{status_mark(rank.process.status or 'unknown').word}: {rank.label}"
        for rank in run.diverging[:_MAX_NAMED_RANKS]
    ]
    parts += [f"behind: {rank.label}" for rank in run.stragglers[:_MAX_NAMED_RANKS]]
    return f"run {run.job or 'of unknown job'}: {'; '.join(parts)}"
