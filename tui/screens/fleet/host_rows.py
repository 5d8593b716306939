"""Rows of the fleet's table and its columns: hosts, each with its GPUs below it when it is unfolded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal

import msgspec

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.snapshot.snapshot import GpuProcess

from ...draw.labels import WORST_FIRST, CellText, format_duration, process_name
from ...draw.palette import status_mark
from ...draw.text_output import printable
from ...widgets.row_table import Column, fit_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from vramtop.monitor.fleet.fleet import Fleet, FleetGpu, FleetProcess, HostReading

    from ...draw.labels import Tone

# The columns: those of importance 0 are never left out.


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetColumn(Column):
    """A column, with the unit that is written behind its title if there is room."""

    unit: str = ""

    @property
    def title(self) -> str:
        """Title with its unit."""
        return f"{self.name} {self.unit}" if self.unit and len(self.name) + len(self.unit) < self.width else self.name


HOST_COLUMNS = (
    FleetColumn(name="HOST", width=14),
    FleetColumn(name="STATUS", width=15),
    FleetColumn(name="GPUS", width=4, right=True, importance=4),
    FleetColumn(name="FREE", width=9, right=True, importance=1, unit="GiB"),
    FleetColumn(name="COMMIT", width=8, right=True, importance=2),
    FleetColumn(name="UNATTR", width=8, right=True, importance=5),
    FleetColumn(name="IN USE", width=10, importance=3),
    FleetColumn(name="JOBS", width=20),
)
_LONGEST_NAME = 32
_LEAST_REST = 20


def columns_for(columns: Sequence[FleetColumn], width: int, gap: int, *, longest: int) -> list[FleetColumn]:
    """Return the columns for which there is room: the first as wide as its names, the last with the rest.

    Args:
        columns: all of them.
        width: of the table, without margin.
        gap: cells between two.
        longest: characters of the longest name in the first one.
    """
    first, *middle, last = columns
    name = min(max(longest, first.width // 2), _LONGEST_NAME, max(first.width, width // 4))
    rest = max(_LEAST_REST, width // 4)
    return fit_columns([replace(first, width=name), *middle, replace(last, width=rest)], width + gap, gap)


# A row of the fleet's table as plain data: what it is about, by what it is sorted and found, and its cells.


Fold = Literal["folded", "unfolded"]
SortKey = Literal["STATUS", "HOST", "JOB", "USER", "FREE", "IN USE"]
REST = "REST"
"""Name of a cell that takes the place of all columns after the second."""
Cells = Mapping[str, CellText]

NO_STATUS = len(WORST_FIRST)
"""Severity of what has no status."""
GONE = WORST_FIRST.index("growing") + 0.5
"""Severity of a host that is not live: after what runs out of memory or leaks now, before everything else."""
BROKEN = GONE + 0.1
"""Severity of a GPU that cannot be read."""
_SEVERITY: dict[str, int] = {status: at for at, status in enumerate(WORST_FIRST)}
_BAD, _WARNING = ("over", "growing", "out_of_memory"), ("under",)


class FleetRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row; its cells are made when it comes into sight."""

    key: Hashable
    """Key of a host or GPU, equal in every fleet."""
    severity: float
    """Place of its worst status; 0 is the worst."""
    host: str
    job: str = ""
    user: str = ""
    status: str = ""
    """Words by which its status is found."""
    free_bytes: int = -1
    used_bytes: int = -1
    more: str = ""
    """Further words by which it is found, such as the names of its GPUs."""
    fold: Fold | None = None
    """None: it has nothing below it."""
    make_cells: Callable[[], Cells]
    of_host: HostReading | None = None
    """The host that it opens."""

    def matches(self, words: list[str]) -> bool:
        """Return True if it has all of these words; ``user:ann`` looks at one of its parts only."""
        return all(self._has(word) for word in words)

    def _has(self, word: str) -> bool:
        name, colon, value = word.partition(":")
        if colon and name in ("host", "job", "user", "status"):
            return value in str(getattr(self, name)).lower()
        parts = (self.host, self.job, self.user, self.status, self.more)
        return any(word in part.lower() for part in parts)


def sorted_rows(rows: list[FleetRow], by: SortKey) -> list[FleetRow]:
    """Return rows in order; the order of equal ones is that of their hosts and jobs."""
    orders: dict[SortKey, Callable[[FleetRow], tuple[object, ...]]] = {
        "STATUS": lambda row: (row.severity,),
        "HOST": lambda _: (),
        "JOB": lambda row: (not row.job, row.job),
        "USER": lambda row: (not row.user, row.user),
        "FREE": lambda row: (-row.free_bytes,),
        "IN USE": lambda row: (-row.used_bytes,),
    }
    first = orders[by]
    return sorted(rows, key=lambda row: (*first(row), natural(row.host), row.job))


def natural(name: str) -> tuple[str, int, str]:
    """Return a sort key by which node9 comes before node10: text, its last number, and the name itself."""
    digits = len(name) - len(name.rstrip("0123456789"))
    return name[: len(name) - digits], int(name[len(name) - digits :][:18] or 0), name


def severity(status: str | None) -> float:
    """Return the place of a status among all, the worst first; an unknown one counts as unknown."""
    if status is None:
        return NO_STATUS
    return _SEVERITY.get(status, _SEVERITY["unknown"])


def status_cell(status: str, statuses: Mapping[str, int]) -> CellText:
    """Return a status with the number of processes that have it, unless all are fine: ``▲ OVER 2/8``.

    Args:
        status: the worst one.
        statuses: number of processes by status.
    """
    mark, every = status_mark(status), sum(statuses.values())
    is_said = every > 1 and (statuses[status] < every or mark.word.isupper())
    count = f" {statuses[status]}/{every}" if is_said else ""
    return CellText(f"{mark.letter} {mark.short_word}{count}", _tone(status))


def _tone(status: str) -> Tone:
    """Return the tone of a status."""
    if status in _BAD:
        return "over"
    if status in _WARNING:
        return "under"
    return "good" if status == "on_budget" else "muted"


def plain(text: str | None, tone: Tone = "plain") -> CellText:
    """Return a cell with this text."""
    return CellText(printable(text or ""), tone)


_BAR_CELLS = 10
_NAMED_JOBS = 4


class HostRows:
    """Makes the rows of hosts, and keeps those of hosts that have not changed."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[HostReading, bool, FleetRow]] = {}

    def rows(self, fleet: Fleet, unfolded: Collection[str]) -> list[FleetRow]:
        """Return one row per host, without those of GPUs."""
        made: dict[str, tuple[HostReading, bool, FleetRow]] = {}
        for host in fleet.hosts:
            known, is_open = self._made.get(host.host), host.host in unfolded
            if known is not None and known[0] is host and known[1] == is_open and host.is_live:
                made[host.host] = known
            else:
                made[host.host] = host, is_open, _host_row(fleet, host, is_open=is_open)
        self._made = made
        return [row for _, _, row in made.values()]


def gpu_rows(host: HostReading) -> list[FleetRow]:
    """Return the rows of a host's GPUs; none if its figures are not of now."""
    return [_gpu_row(host, gpu) for gpu in host.gpus] if host.is_live else []


def jobs_text(processes: Sequence[FleetProcess]) -> str:
    """Return the jobs of processes with their users, those with most processes first: ``tune (ann, bob), vLLM``."""
    users: dict[str, dict[str, None]] = {}
    for process in processes:
        users.setdefault(_name(process), {}).update({process.user: None} if process.user else {})
    named = [name for name, _ in Counter(map(_name, processes)).most_common()]
    parts = [f"{name} ({', '.join(users[name])})" if users[name] else name for name in named[:_NAMED_JOBS]]
    more = f" and {len(named) - _NAMED_JOBS} more" if len(named) > _NAMED_JOBS else ""
    return printable(", ".join(parts) + more)


def gpu_severity(gpu: FleetGpu) -> float:
    """Return the severity of a GPU: that of its worst process, or that it cannot be read."""
    if gpu.is_stale or gpu.is_lost:
        return BROKEN
    return min((severity(process.status) for process in gpu.processes or ()), default=NO_STATUS)


def gone_text(fleet: Fleet, host: HostReading) -> str:
    """Return why a host has no figures of now, and how long ago its last ones are."""
    age = fleet.age_seconds(host)
    last = "never read" if age is None else f"last read {format_duration(age)} ago"
    return printable(f"{last}: {host.reason}" if host.reason else last)


def use_bar(used_bytes: int | None, total_bytes: int | None) -> str:
    """Return used memory as a bar of text; empty if it is unknown."""
    if used_bytes is None or not total_bytes:
        return ""
    cells = min(_BAR_CELLS, round(used_bytes * _BAR_CELLS / total_bytes))
    return "█" * cells + "·" * (_BAR_CELLS - cells)


def _name(process: FleetProcess) -> str:
    return process.job or process.kind or (_program(process.command) if process.command else "other processes")


@lru_cache(maxsize=4096)
def _program(command: str | None) -> str:
    """Return the name that a person would use for a command."""
    return process_name(GpuProcess(pid=0, start_time=None, used_bytes=None, kinds=(), command=command))


def _host_row(fleet: Fleet, host: HostReading, *, is_open: bool) -> FleetRow:
    processes = [process for gpu in host.gpus for process in gpu.processes or ()]
    names = " ".join(dict.fromkeys(gpu.name for gpu in host.gpus if gpu.name))
    if not host.is_live:
        return FleetRow(
            key=("host", host.host),
            severity=GONE,
            host=host.host,
            status=host.state,
            more=f"{names} {host.reason or ''}",
            make_cells=partial(_gone_cells, fleet, host),
            of_host=host,
        )
    statuses = Counter(process.status for process in processes if process.status)
    worst = min(map(gpu_severity, host.gpus), default=BROKEN if host.faults else NO_STATUS)
    return FleetRow(
        key=("host", host.host),
        severity=worst,
        host=host.host,
        job=" ".join(dict.fromkeys(_name(process) for process in processes)),
        user=" ".join(dict.fromkeys(process.user for process in processes if process.user)),
        status=" ".join(status_mark(status).word for status in statuses) + _broken_words(host),
        free_bytes=host.totals.free_bytes if host.totals.gpus else -1,
        used_bytes=host.totals.used_bytes if host.totals.gpus else -1,
        more=names,
        fold="unfolded" if is_open else "folded" if host.gpus else None,
        make_cells=partial(_host_cells, host, processes, statuses),
        of_host=host,
    )


def _broken_words(host: HostReading) -> str:
    """Return words by which a host is found whose GPUs cannot be read."""
    if not host.gpus:
        return " no GPU" if host.faults else ""
    hangs = any(gpu.is_stale for gpu in host.gpus)
    return " hangs" * hangs + " lost" * any(gpu.is_lost for gpu in host.gpus)


def _gone_cells(fleet: Fleet, host: HostReading) -> Cells:
    if host.state == "connecting":
        return {"HOST": plain(host.host), "STATUS": CellText("… connecting", "muted")}
    return {
        "HOST": plain(host.host),
        "STATUS": CellText(f"! {host.state}", "under"),
        REST: CellText(gone_text(fleet, host), "muted"),
    }


def _host_cells(host: HostReading, processes: Sequence[FleetProcess], statuses: Counter[str]) -> Cells:
    totals = host.totals
    sure = "" if not totals.unattributed_unknown else "≥"
    known = bool(totals.gpus)
    is_used_known = any(gpu.used_bytes is not None for gpu in host.gpus)
    more = f"{totals.unknown_gpus} of {len(host.gpus)} GPUs n/a; " if totals.unknown_gpus and host.gpus else ""
    return {
        "HOST": plain(host.host),
        "STATUS": CellText("! no GPU", "under")
        if host.faults and not host.gpus
        else _status_cell(host.gpus, statuses, len(processes)),
        "GPUS": plain(str(len(host.gpus))),
        "FREE": plain(format_gib(totals.free_bytes) if known else "n/a"),
        "COMMIT": _size_cell(totals.committed_bytes, known=known),
        "UNATTR": plain(f"{sure}{format_gib(totals.unattributed_bytes)}" if known else "n/a", "muted"),
        "IN USE": plain(use_bar(totals.used_bytes, totals.total_bytes) if is_used_known else "", "muted"),
        "JOBS": plain(host.faults[0], "under") if host.faults else plain(more + jobs_text(processes)),
    }


def _gpu_row(host: HostReading, gpu: FleetGpu) -> FleetRow:
    return FleetRow(
        key=("gpu", host.host, gpu.shown_label),
        severity=gpu_severity(gpu),
        host=host.host,
        make_cells=partial(_gpu_cells, gpu),
        of_host=host,
    )


def _gpu_cells(gpu: FleetGpu) -> Cells:
    processes = gpu.processes or ()
    statuses = Counter(process.status for process in processes if process.status)
    unknown = gpu.is_stale or gpu.free_bytes is None
    words = gpu.fault if unknown else jobs_text(processes)
    return {
        "HOST": plain(f"  GPU {gpu.shown_label}"),
        "STATUS": _status_cell((gpu,), statuses, len(processes)),
        "FREE": plain("n/a" if unknown else format_gib(gpu.free_bytes)),
        "COMMIT": _size_cell(gpu.committed_bytes, known=not unknown),
        "UNATTR": plain(
            "n/a" if unknown or gpu.unattributed_bytes is None else format_gib(gpu.unattributed_bytes), "muted"
        ),
        "IN USE": plain("" if unknown else use_bar(gpu.used_bytes, gpu.total_bytes), "muted"),
        "JOBS": plain(words or gpu.name, "under" if unknown else "plain" if processes else "muted"),
    }


def _size_cell(size_bytes: int | None, *, known: bool) -> CellText:
    if not known or size_bytes is None:
        return CellText("n/a", "muted")
    return CellText(format_gib(size_bytes), "plain" if size_bytes else "muted")


def _status_cell(gpus: Sequence[FleetGpu], statuses: Counter[str], processes: int) -> CellText:
    """Return the worst status with the number of its processes: ``▲ OVER 2/8``."""
    worst = min(statuses, key=severity, default=None)
    if any(gpu.is_stale for gpu in gpus) and (worst is None or severity(worst) > BROKEN):
        return CellText("! driver hangs", "under")
    lost = sum(gpu.is_lost for gpu in gpus)
    if lost and (worst is None or severity(worst) > BROKEN):
        return CellText(f"! {lost} GPU{'s' * (lost != 1)} lost" if len(gpus) > 1 else "! lost", "under")
    if worst is None and gpus and all(gpu.is_asleep for gpu in gpus):
        return CellText("asleep", "muted")
    if worst is None and not processes and gpus and all(gpu.processes is None for gpu in gpus):
        return CellText("processes n/a", "muted")
    if worst is None:
        return CellText("no budget" if processes else "idle", "muted") if gpus else CellText("no GPU", "muted")
    return status_cell(worst, statuses)
