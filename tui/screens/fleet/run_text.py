"""One run of the fleet as lines: its sums over all hosts, and its ranks, those that need attention first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs
from textual.content import Content

from vramtop.estimator.common import format_gib, format_size

from ...draw import MUTED, SEPARATOR, alarm, format_duration, format_table, printable, status_mark
from .fleet_row import severity
from .run_rows import ranks_text, run_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vramtop.monitor.fleet import Fleet, FleetRank, FleetRun

_TITLES = ("RANK", "HOST", "GPU", "NOW GiB", "MAX GiB", "BUDGET", "STEP", "STATUS")
_ALIGN = "><<>>>><"


def run_lines(fleet: Fleet, run: FleetRun, width: int) -> tuple[Content, list[Content]]:
    """Return the title and the lines of a run; where there is little room, its hosts are named without their domain."""
    title = Content(printable(f"Run {run_name(run)}" + (f" ({run.user})" if run.user else "")))
    lines = list(_lines(fleet, run))
    if any(line.cell_length > width for line in lines):
        lines = list(_lines(fleet, _without_domains(run)))
    return title, [line.truncate(width, ellipsis=True) for line in lines]


def _without_domains(run: FleetRun) -> FleetRun:
    """Return the run with short host names (up to the first dot), if these still tell its hosts apart."""
    short = {host.host: host.host.partition(".")[0] for host in run.hosts}
    if len(set(short.values())) < len(short) or any(name.isdecimal() for name in short.values()):  # 10.0.0.1
        return run
    hosts = {host.host: structs.replace(host, host=short[host.host]) for host in run.hosts}
    return replace(run, ranks=tuple(replace(rank, host=hosts[rank.host.host]) for rank in run.ranks))


def _lines(fleet: Fleet, run: FleetRun) -> Iterator[Content]:
    yield Content(printable(SEPARATOR.join(_sums(run))))
    if run.highest is not None:
        size = format_gib(run.highest.peak_bytes)
        yield Content.assemble("Highest peak: ", (f"{size} GiB", "bold"), printable(f", {run.highest.label}"))
    for rank in run.diverging:
        mark = status_mark(rank.process.status or "")
        sentence = f": {rank.process.sentence}" if rank.process.sentence else ""
        yield Content.assemble((f" {mark.letter} {mark.word} ", alarm()), printable(f" {rank.label}{sentence}"))
    for rank in run.stragglers:
        yield Content.assemble((" behind ", alarm()), printable(f" {rank.label}{_steps(rank)}"))
    for host in run.hosts:
        if not host.is_live:
            age = fleet.age_seconds(host)
            last = "" if age is None else f", last read {format_duration(age)} ago"
            words = f" {host.host} is {host.state}{last}; its ranks are not in the sums"
            yield Content.assemble((" ! ", alarm()), printable(words))
    if run.unseen_ranks:
        words = (
            f"{run.unseen_ranks} of its {run.world_size} ranks are on hosts that are not listed, or not found there."
        )
        yield Content.styled(words, MUTED)
    yield Content("")
    ranks = sorted(run.ranks, key=lambda rank: (not rank.is_live, severity(rank.process.status)))
    table = format_table([_TITLES, *(_cells(fleet, rank) for rank in ranks)], _ALIGN)
    yield Content.styled(table[0], "bold")
    yield from (
        Content(line) if rank.is_live else Content.styled(line, MUTED)
        for line, rank in zip(table[1:], ranks, strict=True)
    )


def _sums(run: FleetRun) -> list[str]:
    hosts = len(run.hosts)
    parts = [f"{ranks_text(run)} rank{'s' * (run.rank_count != 1)} on {hosts} host{'s' * (hosts != 1)}"]
    if run.used_bytes is not None:
        at_least = "at least " if run.is_partial else ""
        parts.append(f"{at_least}{format_size(run.used_bytes)} in all")
    if run.budget_bytes is not None:
        parts.append(f"budget {format_size(run.budget_bytes)} for {run.world_size or run.rank_count} ranks")
    parts += [f"spread {format_gib(run.spread_bytes)} GiB"] if run.spread_bytes is not None else []
    return parts


def _steps(rank: FleetRank) -> str:
    return "" if rank.process.steps is None else f", at step {rank.process.steps:,}"


def _cells(fleet: Fleet, rank: FleetRank) -> tuple[str, ...]:
    """Return the cells of a rank; one whose figures are not of now has none, but their age."""
    process, host = rank.process, rank.host
    number = "" if rank.rank is None else str(rank.rank)
    place = (number, printable(host.host), process.device or rank.gpu.shown_label)
    if not rank.is_live:
        age = fleet.age_seconds(host)
        last = "the driver hangs" if host.is_live else "silent" if age is None else f"silent for {format_duration(age)}"
        return (*place, "", "", "", "", last)
    mark = status_mark(process.status) if process.status else None
    return (
        *place,
        format_gib(process.used_bytes),
        format_gib(rank.peak_bytes),
        format_gib(process.budget_bytes) if process.budget_bytes is not None else "",
        "" if process.steps is None else f"{process.steps:,}",
        f"{mark.letter} {mark.word}" if mark else process.note or "",
    )
