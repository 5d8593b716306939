"""The dashboard's board over many hosts: what the hosts say of their GPUs and processes, as rows of one table.

A host computes its budgets and comparisons itself, so nothing is estimated here: the rows carry its figures. A host
whose figures are not of now has one row, which says why; its earlier figures are not shown.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import cast, get_args
from zlib import crc32

from vramtop.estimator.budget import Budget, Components, ModelFacts, Peak
from vramtop.estimator.common.errors import Verdict
from vramtop.estimator.common.sizes import TIB, UNSEEN_BYTES, format_gib, format_size
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import Parallel

from ..board.board import Board, GpuRow, NoBudgetReason, PendingRow, ProcessRow, RunRow
from ..board.comparison import Comparison, PeakUsage, Status
from ..board.fit_result import FitResult
from ..board.growth import GrowthTrend
from ..board.watchlist import Watchlist
from ..host.known_programs import program_of
from ..host.plain_text import duration_text
from ..snapshot.figures import ASLEEP, NO_ANSWER, Fault
from ..snapshot.snapshot import GpuKey, GpuProcess, GpuReading, Snapshot, Source
from .fleet import SAME_NAMES, Fleet, FleetGpu, FleetPending, FleetProcess, FleetSource, HostReading, HostTotals

_STATUSES = frozenset(get_args(Status))
_REASONS = frozenset(get_args(NoBudgetReason))
_MOST_FAULTS = 3
"""Sentences of hosts above the GPUs; of more, the number is said."""


class HostGpu(GpuReading, frozen=True, kw_only=True):
    """A GPU or MIG device of one of many hosts; without a number it is the host, which has no figures of now."""

    on_host: str
    """Name of its host."""
    number: str
    """Index on its host, or label of a MIG device; empty: the host."""
    place: tuple[int, ...]
    """Its place among the GPUs of all hosts; a MIG device has that of its GPU, and one there."""
    left_bytes: int | None = None
    """Used memory that belongs to no process, as the host says; None: unknown."""

    @property
    def key(self) -> GpuKey:
        """Host and uuid."""
        return f"{self.on_host} {self.uuid or ''} {self.number}"

    @property
    def label(self) -> str:
        """Host and number: ``node01:3``."""
        return f"{self.on_host}:{self.number}" if self.number else self.on_host

    @property
    def host(self) -> str:
        """Name of its host."""
        return self.on_host

    @property
    def column_label(self) -> str:
        """Label beside the name of its host."""
        return self.number

    @property
    def order(self) -> tuple[int, ...]:
        """Sort key: by host."""
        return self.place

    @property
    def remaining_bytes(self) -> int | None:
        """Used memory that belongs to no process."""
        return self.left_bytes


class OtherHosts(Source, frozen=True, kw_only=True):
    """The drivers of many hosts: their processes are not processes of this machine."""

    @property
    def is_live(self) -> bool:
        """False: they are not this machine."""
        return False


class HostsSnapshot(Snapshot, frozen=True, kw_only=True):
    """The GPUs of many hosts at one moment, and the board's rows, which the hosts have made."""

    rows: tuple[GpuRow, ...]
    runs: tuple[RunRow, ...]
    jobs: tuple[PendingRow, ...]
    """Pending jobs of all hosts, each with the name of its host."""
    sums: str
    """Totals over all hosts that answer, as one line of text."""


class HostsSource:
    """The snapshots of many hosts (``SnapshotSource``).

    Args:
        source: reads the hosts.
        name: of it, in a few words: ``12 hosts over ssh``.
    """

    def __init__(self, source: FleetSource, name: str) -> None:
        self._source, self._name = source, name

    def open(self) -> None:
        """Nothing is opened before the first reading."""

    def read(self) -> Snapshot:
        """Return all hosts as they are known now.

        Raises:
            VramtopError: the source as a whole has failed.
        """
        return hosts_snapshot(self._source.read(), self._name)

    def close(self) -> None:
        """Release all resources."""
        self._source.close()


class HostsWatchlist(Watchlist):
    """Gives the boards of many hosts; knows no jobs of its own."""

    def _board(self, snapshot: Snapshot) -> Board:
        if not isinstance(snapshot, HostsSnapshot):
            return super()._board(snapshot)
        return Board(
            snapshot=snapshot, gpus=snapshot.rows, pending=snapshot.jobs, runs=snapshot.runs, sums=snapshot.sums
        )


def hosts_snapshot(fleet: Fleet, name: str) -> HostsSnapshot:
    """Return the snapshot of many hosts.

    Args:
        fleet: the hosts.
        name: of their source.
    """
    rows: list[GpuRow] = []
    runs: list[RunRow] = []
    for host in sorted(fleet.hosts, key=lambda host: _natural(host.host)):
        if not host.is_live or not host.gpus:
            rows.append(GpuRow(reading=_without_gpus(fleet, host, len(rows)), rows=()))
            continue
        own = list(_gpu_rows(fleet, host, len(rows)))
        rows += own
        runs += _runs(host, own)
    return HostsSnapshot(
        time=fleet.time,
        source=OtherHosts(kind="nvml", host=name),
        gpus=tuple(each.reading for row in rows for each in (row, *row.devices)),
        faults=tuple(Fault(field=None, code="HOST", message=message) for message in _faults(fleet)),
        rows=tuple(rows),
        runs=tuple(runs),
        jobs=tuple(_pending(host.host, job) for host in fleet.hosts if host.is_live for job in host.pending),
        sums=_sums(fleet),
    )


def _natural(name: str) -> tuple[str, int, str]:
    """Return a sort key by which node9 comes before node10: text, its last number, and the name itself."""
    text = name.rstrip("0123456789")
    return text, int(name[len(text) :][:18] or 0), name


def _sums(fleet: Fleet) -> str:
    """Return the sums over the live hosts in words."""
    totals, gpus = fleet.totals, fleet.totals.gpus
    silent = [host.host for host in fleet.hosts if host.state in ("silent", "unreachable")]
    names = ", ".join(silent[:3]) + " …" * (len(silent) > 3)
    words = [f"{len(silent)} of {totals.hosts} silent ({names})"] if silent else []
    words += [f"{totals.connecting_hosts} connecting"] if totals.connecting_hosts else []
    words += [f"{gpus.diverging} of {gpus.processes} processes diverging"] if gpus.diverging else []
    words += _memory_words(gpus) if gpus.gpus else ["no GPU has been read yet"]
    words += [f"{gpus.unknown_gpus} GPUs n/a"] if gpus.unknown_gpus else []
    return " · ".join(words)


def _memory_words(gpus: HostTotals) -> list[str]:
    size = format_size if gpus.total_bytes >= TIB else format_gib  # beyond one TiB each figure has its own unit
    at_least = "≥ " if gpus.unattributed_unknown else ""
    words = [f"free {size(gpus.free_bytes)} of {format_size(gpus.total_bytes)}"]
    words += [f"committed {size(gpus.committed_bytes)}"] if gpus.committed_bytes >= UNSEEN_BYTES else []
    rest = [f"unattributed {at_least}{size(gpus.unattributed_bytes)}"]
    return words + rest * bool(at_least or gpus.unattributed_bytes >= UNSEEN_BYTES)


def _faults(fleet: Fleet) -> list[str]:
    """Return what the hosts say beside the figures of their GPUs, each sentence once."""
    hosts: dict[str, list[str]] = {}
    for host in fleet.hosts:
        if host.is_live and host.gpus:
            for sentence in (*host.faults, *host.anomalies):
                hosts.setdefault(sentence, []).append(host.host)
    found = [f"{', '.join(those[:3])}{' …' * (len(those) > 3)}: {sentence}" for sentence, those in hosts.items()]
    if len(found) > _MOST_FAULTS:
        found = [*found[: _MOST_FAULTS - 1], f"{len(found) - _MOST_FAULTS + 1} more; --once --json has all of them"]
    return [fleet.notice, *found] if fleet.notice else found


def _without_gpus(fleet: Fleet, host: HostReading, place: int) -> HostGpu:
    """Return the reading that stands for a host without GPUs, or without figures of now."""
    age = fleet.age_seconds(host)
    last = None if age is None else f"last read {duration_text(age)} ago"
    code, message = host.state.upper(), ": ".join(filter(None, (last, host.reason))) or "never read"
    if host.is_live:
        code, message = "NO_GPU", host.faults[0] if host.faults else "it has no GPU"
    fault = Fault(field=None, code=code, message="no answer yet" if host.state == "connecting" else message)
    return HostGpu(index=place, uuid=None, name=None, on_host=host.host, number="", place=(place,), faults=(fault,))


def _gpu_rows(fleet: Fleet, host: HostReading, place: int) -> Iterator[GpuRow]:
    for at, gpu in enumerate(host.gpus, start=place):
        listed = [_process(host, gpu, number, process) for number, process in enumerate(gpu.processes or (), start=1)]
        whole = _reading(fleet, host, gpu, (at,), None if gpu.processes is None else tuple(each for _, each in listed))
        parts = []
        for number, part in enumerate(gpu.devices):
            inside = tuple(each for process, each in listed if process.device == part.shown_label)
            parts.append(_reading(fleet, host, part, (at, number), whole.processes and inside))
        places = {part.column_label: part for part in parts}
        rows = tuple(_row(host, places.get(process.device or "", whole), process, each) for process, each in listed)
        devices = tuple(GpuRow(reading=part, rows=tuple(row for row in rows if row.gpu is part)) for part in parts)
        yield GpuRow(reading=whole, rows=rows, devices=devices)


def _reading(
    fleet: Fleet, host: HostReading, gpu: FleetGpu, place: tuple[int, ...], processes: tuple[GpuProcess, ...] | None
) -> HostGpu:
    field = None
    code = NO_ANSWER if gpu.is_stale else "GPU_IS_LOST" if gpu.is_lost else ASLEEP if gpu.is_asleep else "UNKNOWN"
    if code == "UNKNOWN":
        field = "processes" if gpu.processes is None and gpu.used_bytes is not None else "used_bytes"
    return HostGpu(
        **{name: getattr(gpu, name) for name in SAME_NAMES},
        processes=processes,
        faults=(Fault(field=field, code=code, message=gpu.fault),) if gpu.fault else (),
        read_at=0.0 if gpu.is_stale else fleet.time,
        on_host=host.host,
        number=gpu.shown_label,
        place=place,
        left_bytes=gpu.unattributed_bytes,
    )


def _process(host: HostReading, gpu: FleetGpu, number: int, process: FleetProcess) -> tuple[FleetProcess, GpuProcess]:
    """Return a process of a host as one of a snapshot, with a key that no process of another host has.

    Without a pid its key is a negative number; a start time that is not known is a negative one of its host.
    """
    facts, pid, note = process.facts, process.pid, process.note
    words = [] if note is None or note in _REASONS else [note]
    if facts is not None and facts.rank is not None:
        words.insert(0, f"rank {facts.rank} of {facts.world_size}" if facts.world_size else f"rank {facts.rank}")
    of = host.host if pid is not None else f"{host.host} {gpu.shown_label}"
    return process, GpuProcess(
        pid=-number if pid is None else pid,
        start_time=-float(crc32(of.encode())) if process.start_time is None else process.start_time,
        used_bytes=process.used_bytes,
        kinds=("compute",),
        user=process.user,
        name=process.kind,
        command=process.command,
        note=", ".join(words) or None,
        peak_bytes=process.peak_bytes,
    )


def _row(host: HostReading, gpu: HostGpu, process: FleetProcess, listed: GpuProcess) -> ProcessRow:
    program, note = program_of(listed), process.note
    elapsed = None if process.start_time is None or host.time is None else max(0.0, host.time - process.start_time)
    return ProcessRow(
        gpu=gpu,
        process=listed,
        elapsed_seconds=elapsed,
        is_live=False,
        kind=program.kind,
        program_name=program.name,
        job=_job(process.job, process.facts.world_size if process.facts else None) if process.job else None,
        budget=_budget(process.job, process.budget_bytes, process.low_bytes, process.high_bytes),
        comparison=_comparison(process, gpu),
        missing=process.missing,
        no_budget_reason=cast("NoBudgetReason", note) if note in _REASONS else None,
    )


def _comparison(process: FleetProcess, gpu: HostGpu) -> Comparison | None:
    if process.status is None:
        return None
    seconds, free, trend = process.full_seconds, gpu.free_bytes, None
    if seconds and free:
        trend = GrowthTrend(bytes_per_second=free / seconds, deviations=0.0, since=0.0)
    peak = process.peak_bytes
    return Comparison(
        status=cast("Status", process.status) if process.status in _STATUSES else "unknown",
        observed_bytes=process.used_bytes,
        peak_usage=None if peak is None else PeakUsage(size_bytes=peak, source="seen"),
        expected_bytes=process.budget_bytes,
        sentence=process.sentence or "",
        is_guess=process.status == "incomplete" or bool(process.missing),
        trend=trend,
    )


@lru_cache(maxsize=1024)
def _job(label: str | None, world_size: int | None) -> Job:
    """Return a job of which nothing but its label and its number of ranks is known."""
    try:
        return Job(name=label, parallel=Parallel(data_replicate=world_size or 1))
    except ValueError:  # more ranks than any cluster has
        return Job(name=label)


@lru_cache(maxsize=4096)
def _budget(label: str | None, expected: int | None, low: int | None, high: int | None) -> Budget | None:
    """Return a budget of which nothing but its sum and range is known: it has no phases."""
    if expected is None:
        return None
    return Budget(
        job=_job(label, None),
        model=ModelFacts(parameters=0, trainable_parameters=0, count="approximate"),
        method="formula",
        phases=(),
        peak=Peak(
            phase="backward",
            components=Components(),
            allocated_bytes=0,
            reserved_bytes=0,
            device_bytes=expected,
            low_bytes=expected if low is None else low,
            high_bytes=expected if high is None else high,
        ),
        steady_device_bytes=expected,
        assumptions=(),
        warnings=(),
    )


def _pending(host: str, pending: FleetPending) -> PendingRow:
    verdict = cast("Verdict", pending.verdict) if pending.verdict in get_args(Verdict) else "unknown"
    fit = FitResult(verdict=verdict, gpus=(), rank_devices=(), margin_bytes=None, sentence=pending.sentence or "")
    return PendingRow(job=_job(f"{host}: {pending.job}", None), fit=fit)


def _runs(host: HostReading, gpus: list[GpuRow]) -> list[RunRow]:
    """Return the runs of known jobs on a host; ranks of the same run on another host are another row."""
    members: dict[object, list[tuple[int, ProcessRow]]] = {}
    for gpu, of_gpu in zip(host.gpus, gpus, strict=True):
        for process, row in zip(gpu.processes or (), of_gpu.rows, strict=True):
            if row.job is not None:
                rank = process.facts.rank if process.facts and process.facts.rank is not None else gpu.index
                members.setdefault(process.run or row.process.key, []).append((rank, row))
    runs = []
    for ranked in members.values():
        rows = tuple(row for _, row in sorted(ranked, key=lambda each: each[0]))
        first = rows[0]
        if first.job is not None:
            pids = tuple(dict.fromkeys(row.process.key for row in rows))
            runs.append(RunRow(job=first.job, pids=pids, rows=rows, budget=first.budget, missing=first.missing))
    return runs
