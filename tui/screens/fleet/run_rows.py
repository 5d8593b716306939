"""Rows of runs: ranks on several hosts are one row."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from vramtop.estimator.common import format_gib

from ...draw import CellText, shorten, signed_gib, status_mark
from .fleet_row import Cells, FleetRow, plain, severity, status_cell

if TYPE_CHECKING:
    from vramtop.monitor.fleet import Fleet, FleetRun

_COMMAND_CHARACTERS = 60


def run_rows(fleet: Fleet) -> list[FleetRow]:
    """Return one row per run."""
    return [_run_row(run) for run in fleet.runs]


def run_name(run: FleetRun) -> str:
    """Return the job of a run; the beginning of its command if its job is unknown."""
    command = next((rank.process.command for rank in run.ranks if rank.process.command), None)
    return run.job or (shorten(command, _COMMAND_CHARACTERS) if command else "unknown job")


def ranks_text(run: FleetRun) -> str:
    """Return how many ranks were found, of how many."""
    return f"{run.rank_count}/{run.world_size}" if run.world_size and run.world_size > 1 else str(run.rank_count)


def where_text(run: FleetRun) -> str:
    """Return what needs attention and where: diverging ranks, stragglers, silent and unseen ranks; else its hosts."""
    parts = [f"{status_mark(rank.process.status or '').letter} {rank.label}" for rank in run.diverging[:2]]
    parts += [f"{len(run.diverging) - 2} more diverge"] if len(run.diverging) > 2 else []
    parts += [f"behind: {rank.label}" for rank in run.stragglers[:1]]
    parts += [f"{len(run.stragglers) - 1} more behind"] if len(run.stragglers) > 1 else []
    silent = len(run.ranks) - len(run.live_ranks)
    parts += [f"{silent} rank{'s' * (silent != 1)} silent"] if silent else []
    parts += [f"{run.unseen_ranks} rank{'s' * (run.unseen_ranks != 1)} elsewhere"] if run.unseen_ranks else []
    names = ", ".join(host.host for host in run.hosts[:4]) + (" …" if len(run.hosts) > 4 else "")
    return "; ".join(parts) or names


def _run_row(run: FleetRun) -> FleetRow:
    words = {rank.process.status for rank in run.live_ranks if rank.process.status}
    flags = ("behind" if run.stragglers else "", "silent" if len(run.live_ranks) < len(run.ranks) else "")
    return FleetRow(
        key=("run", *run.key),
        severity=severity(run.status) if run.live_ranks else severity("unknown"),
        host=" ".join(host.host for host in run.hosts),
        job=run_name(run),
        user=run.user or "",
        status=" ".join((*(status_mark(word).word for word in words), *flags)),
        used_bytes=-1 if run.used_bytes is None else run.used_bytes,
        make_cells=partial(_run_cells, run),
        of_run=run,
    )


def _run_cells(run: FleetRun) -> Cells:
    highest = run.highest
    budget = None if highest is None else highest.process.budget_bytes
    judged = highest is not None and highest.process.status != "incomplete"
    difference = (highest.peak_bytes or 0) - budget if highest is not None and budget is not None and judged else None
    at_least = "≥" if run.is_partial and run.used_bytes is not None else ""
    return {
        "JOB": plain(run_name(run)),
        "STATUS": _status_cell(run),
        "USER": plain(run.user or "n/a"),
        "RANKS": plain(ranks_text(run), "under" if run.unseen_ranks else "plain"),
        "HOSTS": plain(str(len(run.hosts))),
        "MAX": plain(format_gib(highest.peak_bytes) if highest else "n/a"),
        "DIFF": plain("" if difference is None else signed_gib(difference)),
        "SPREAD": plain("" if run.spread_bytes is None else format_gib(run.spread_bytes)),
        "ALL": plain("n/a" if run.used_bytes is None else f"{at_least}{format_gib(run.used_bytes)}"),
        "BUDGET": plain("" if run.budget_bytes is None else format_gib(run.budget_bytes)),
        "WHERE": plain(where_text(run), "plain" if run.diverging or run.stragglers else "muted"),
    }


def _status_cell(run: FleetRun) -> CellText:
    if not run.live_ranks:
        return CellText("! silent", "under")
    if run.status is None:
        return CellText("no budget", "muted")
    statuses = Counter(rank.process.status for rank in run.live_ranks if rank.process.status)
    return status_cell(run.status, statuses)
