"""Readings of hosts from the metrics of ``vramtop export`` (docs/reference/metrics.md)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from ...snapshot.figures import ASLEEP, NO_DRIVER, NOT_LISTED
from ..fleet import FleetGpu, FleetPending, FleetProcess, HostReading, RankFacts
from .series import Labels, Sample, Target, plain, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Ask = Callable[[str], list[Sample]]

_FAULT_WORDS = {
    "GPU_IS_LOST": "it no longer answers; the host's kernel log says why, and it needs a reset or a reboot",
    "RESET_REQUIRED": "it must be reset before it can be used again",
    NOT_LISTED: "the driver no longer lists it",
    ASLEEP: "it is asleep to save power, and is not queried",
}
"""What the commonest error codes of a whole GPU mean."""
_SAMPLER_STUCK = "vramtop there gets no readings from the driver"


@dataclass
class _Gpu:
    sizes: dict[str, Any] = field(default_factory=dict)
    devices: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    processes: list[tuple[Labels, dict[str, Any]]] = field(default_factory=list)
    """Labels and fields of each."""
    hides_processes: bool = False
    user_bytes: dict[str, int | None] = field(default_factory=dict)
    user_processes: dict[str, int] = field(default_factory=dict)


@dataclass
class _Host:
    facts: dict[str, Any] = field(default_factory=dict)
    gpus: list[tuple[str, str, _Gpu]] = field(default_factory=list)
    """UUID, index and record of each."""
    pending: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    faults: list[str] = field(default_factory=list)
    is_sampling: bool = True


class _Records:
    """What is put together from the metrics. Found by plain tuples: some 200,000 samples arrive at each reading."""

    def __init__(self) -> None:
        self.hosts: dict[Target, _Host] = defaultdict(_Host)
        self._gpus: dict[tuple[str, ...], _Gpu] = {}
        self._processes: dict[tuple[str, ...], dict[str, Any]] = {}

    def gpu(self, labels: Labels) -> _Gpu:
        """Return the record of a GPU."""
        key = (labels.instance, labels.uuid, labels.index, labels.job, labels.cluster)
        found = self._gpus.get(key)
        if found is None:
            found = self._gpus[key] = _Gpu()
            self.hosts[labels.target].gpus.append((labels.uuid, labels.index, found))
        return found

    def process(self, labels: Labels) -> dict[str, Any]:
        """Return the fields of a process on one GPU."""
        place = (labels.instance, labels.pid, labels.uuid, labels.index, labels.mig)
        key = (*place, labels.job_name, labels.user, labels.job, labels.cluster)
        found = self._processes.get(key)
        if found is None:
            found = self._processes[key] = {}
            self.gpu(labels).processes.append((labels, found))
        return found


def _host_of(records: _Records, labels: Labels) -> dict[str, Any]:
    return records.hosts[labels.target].facts


def _gpu_of(records: _Records, labels: Labels) -> dict[str, Any]:
    return records.gpu(labels).sizes


def _mig_of(records: _Records, labels: Labels) -> dict[str, Any]:
    return records.gpu(labels).devices[labels.mig]


def _pending_of(records: _Records, labels: Labels) -> dict[str, Any]:
    return records.hosts[labels.target].pending[labels.job_name]


def _label(name: str) -> Callable[[Sample], str | None]:
    return lambda sample: plain(getattr(sample.metric, name))


_Series = tuple[str, "Callable[[_Records, Labels], dict[str, Any]]", str, "Callable[[Sample], Any]"]
_SIZES = ("total_bytes", "used_bytes", "free_bytes", "unattributed_bytes", "committed_bytes")
_SERIES: tuple[_Series, ...] = (
    ("vramtop_host_info", _host_of, "host", lambda sample: plain(sample.metric.host) or sample.metric.target.host),
    ("vramtop_host_info", _host_of, "driver_version", _label("driver_version")),
    ("vramtop_build_info", _host_of, "vramtop_version", _label("version")),
    ("vramtop_sampler_last_reading_timestamp_seconds", _host_of, "time", lambda sample: sample.number),
    ("vramtop_sampler_interval_seconds", _host_of, "interval", lambda sample: sample.number),
    ("vramtop_gpu_info", _gpu_of, "name", _label("name")),
    ("vramtop_gpu_closed == 1", _gpu_of, "closed", _label("reason")),
    *((f"vramtop_gpu_memory_{name}", _gpu_of, name, whole) for name in (*_SIZES, "reserved_bytes")),
    ("vramtop_gpu_utilization_ratio", _gpu_of, "utilisation_percent", lambda sample: _percent(sample.number)),
    *((f"vramtop_mig_memory_{name}", _mig_of, name, whole) for name in _SIZES),
    ("vramtop_process_run_info", _Records.process, "facts", lambda sample: _rank_facts(sample.metric)),
    ("vramtop_process_run_info", _Records.process, "run", lambda sample: _number(sample.metric.run)),
    ("vramtop_process_memory_used_bytes", _Records.process, "used_bytes", whole),
    ("vramtop_process_memory_peak_bytes", _Records.process, "peak_bytes", whole),
    ("vramtop_process_budget_bytes", _Records.process, "budget_bytes", whole),
    ("vramtop_process_budget_low_bytes", _Records.process, "low_bytes", whole),
    ("vramtop_process_budget_high_bytes", _Records.process, "high_bytes", whole),
    ("vramtop_process_steps_total", _Records.process, "steps", whole),
    ("vramtop_process_start_time_seconds", _Records.process, "start_time", lambda sample: sample.number),
    ("vramtop_process_step_seconds", _Records.process, "step_seconds", lambda sample: sample.number),
    ("vramtop_process_memory_full_seconds", _Records.process, "full_seconds", lambda sample: sample.number),
    ("vramtop_pending_verdict == 1", _pending_of, "verdict", lambda sample: sample.metric.vramtop_pending_verdict),
    ("vramtop_pending_budget_bytes", _pending_of, "device_bytes", whole),
)  # fmt: skip
"""What is asked, the record that a sample belongs to, its field, and the value."""


def vramtop_hosts(ask: Ask, seen_at: Mapping[Target, float]) -> dict[Target, HostReading]:
    """Return the hosts whose exporter was scraped, with one query for each metric.

    Args:
        ask: asks Prometheus.
        seen_at: Unix seconds of the last scrape of each exporter, by the clock of Prometheus.
    """
    records = _Records()
    answers: dict[str, list[Sample]] = {}
    for expression, record_of, name, value in _SERIES:
        if expression not in answers:
            answers = {expression: ask(expression)}  # of two fields of one series
        for sample in answers[expression]:
            record_of(records, sample.metric)[name] = value(sample)
    _read_states(ask, records)
    for sample in ask("vramtop_gpu_user_memory_used_bytes"):
        records.gpu(sample.metric).user_bytes[sample.metric.user] = whole(sample)
    for sample in ask("vramtop_gpu_user_processes"):
        records.gpu(sample.metric).user_processes[sample.metric.user] = whole(sample) or 0
    return {
        target: _reading(target, host, seen_at[target]) for target, host in records.hosts.items() if target in seen_at
    }


def _read_states(ask: Ask, records: _Records) -> None:
    for sample in ask("vramtop_process_status == 1"):
        status = sample.metric.vramtop_process_status
        if status != "ended":
            records.process(sample.metric)["status"] = status
    for sample in ask("vramtop_sampler_up"):
        records.hosts[sample.metric.target].is_sampling = sample.number == 1
    for sample in ask("vramtop_host_fault == 1"):
        records.hosts[sample.metric.target].faults.append(plain(sample.metric.reason) or "unknown")
    for sample in ask('vramtop_gpu_fault{field=""} == 1'):
        sizes, reason = records.gpu(sample.metric).sizes, plain(sample.metric.reason) or ""
        words = _FAULT_WORDS.get(reason)
        sizes["fault"] = f"{words} ({reason})" if words else f"it cannot be read: {reason}"
        sizes["is_asleep"] = reason == ASLEEP
    for sample in ask('vramtop_gpu_fault{field!=""} == 1'):
        fault = f"{plain(sample.metric.field)} is unknown: {plain(sample.metric.reason)}"
        gpu = records.gpu(sample.metric)
        gpu.sizes.setdefault("fault", fault)
        gpu.hides_processes |= sample.metric.field == "processes"


def _percent(ratio: float | None) -> int | None:
    return None if ratio is None else round(100 * ratio)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _rank_facts(labels: Labels) -> RankFacts | None:
    facts = RankFacts(rank=_number(labels.rank), world_size=_number(labels.world_size), master=plain(labels.master))
    return None if facts == RankFacts() else facts


def _reading(target: Target, host: _Host, seen_at: float) -> HostReading:
    in_order = sorted(host.gpus, key=lambda each: (inf if (number := _number(each[1])) is None else number, each[0]))
    gpus = [_fleet_gpu(position, *each) for position, each in enumerate(in_order)]
    live = host.is_sampling or NO_DRIVER in host.faults
    facts = {"host": target.host, **host.facts}
    return HostReading(
        **facts,
        gpus=tuple(gpus),
        pending=tuple(
            FleetPending(job=plain(job) or "", verdict=values["verdict"], device_bytes=values.get("device_bytes"))
            for job, values in host.pending.items()
            if "verdict" in values
        ),
        unlisted=tuple(fault for fault in host.faults if fault == NOT_LISTED),
        faults=tuple("there is no NVIDIA driver" if fault == NO_DRIVER else fault for fault in host.faults),
        state="live" if live else "silent",
        since=seen_at if live else facts.get("time"),
        reason=None if live else _SAMPLER_STUCK,
    )


def _fleet_gpu(position: int, own_uuid: str, own_index: str, gpu: _Gpu) -> FleetGpu:
    uuid, index = plain(own_uuid), _number(own_index)
    index = position if index is None else index
    devices = (FleetGpu(index=index, label=plain(label), **sizes) for label, sizes in sorted(gpu.devices.items()))
    is_unread = "is_asleep" in gpu.sizes and gpu.sizes.get("used_bytes") is None
    return FleetGpu(
        index=index,
        uuid=uuid,
        is_lost=is_unread and not gpu.sizes["is_asleep"],
        processes=None if is_unread or gpu.hides_processes else tuple(_processes(gpu)),
        devices=tuple(devices),
        **gpu.sizes,
    )


def _processes(gpu: _Gpu) -> Iterable[FleetProcess]:
    """Return the processes of known jobs, and for each user a row for all others; largest first."""
    rows: list[FleetProcess] = []
    for labels, values in gpu.processes:
        if values.keys() != {"status"}:  # it has just left the GPU
            values |= {"job": plain(labels.job_name), "user": plain(labels.user), "device": plain(labels.mig)}
            rows.append(FleetProcess(pid=_number(labels.pid), **values))
    for user, count in gpu.user_processes.items():
        own = [row for row in rows if row.job is not None and row.user == plain(user)]
        others, held, known = count - len(own), gpu.user_bytes.get(user), [row.used_bytes for row in own]
        rest = None if held is None or None in known else max(0, held - sum(each or 0 for each in known))
        if others > 0:
            note = f"{others} other process{'es' if others > 1 else ''}"
            rows.append(FleetProcess(user=plain(user), used_bytes=rest, note=note))
    return sorted(rows, key=lambda row: -(row.used_bytes or 0))
