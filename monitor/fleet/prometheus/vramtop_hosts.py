"""Readings of hosts from the metrics of ``vramtop export`` (docs/metrics.md)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..host_reading import FleetGpu, FleetPending, FleetProcess, HostReading, RankFacts
from .samples import Target, plain, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .samples import Labels, Sample

    Ask = Callable[[str], list[Sample]]

_GPU_SIZES = {
    "total_bytes": "vramtop_gpu_memory_total_bytes",
    "used_bytes": "vramtop_gpu_memory_used_bytes",
    "free_bytes": "vramtop_gpu_memory_free_bytes",
    "reserved_bytes": "vramtop_gpu_memory_reserved_bytes",
    "unattributed_bytes": "vramtop_gpu_memory_unattributed_bytes",
    "committed_bytes": "vramtop_gpu_memory_committed_bytes",
}
_MIG_SIZES = {
    "total_bytes": "vramtop_mig_memory_total_bytes",
    "used_bytes": "vramtop_mig_memory_used_bytes",
    "free_bytes": "vramtop_mig_memory_free_bytes",
    "unattributed_bytes": "vramtop_mig_memory_unattributed_bytes",
    "committed_bytes": "vramtop_mig_memory_committed_bytes",
}
_PROCESS_SIZES = {
    "used_bytes": "vramtop_process_memory_used_bytes",
    "peak_bytes": "vramtop_process_memory_peak_bytes",
    "budget_bytes": "vramtop_process_budget_bytes",
    "low_bytes": "vramtop_process_budget_low_bytes",
    "high_bytes": "vramtop_process_budget_high_bytes",
    "steps": "vramtop_process_steps_total",
}
_PROCESS_FLOATS = {
    "start_time": "vramtop_process_start_time_seconds",
    "step_seconds": "vramtop_process_step_seconds",
}
_NO_DRIVER = "NO_DRIVER"
_SAMPLER_STUCK = "vramtop there gets no readings from the driver"


@dataclass
class _Gpu:
    sizes: dict[str, Any] = field(default_factory=dict)
    devices: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    processes: dict[tuple[str, str, str, str], dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    """By pid, MIG device, job and user."""
    user_bytes: dict[str, int | None] = field(default_factory=dict)
    user_processes: dict[str, int] = field(default_factory=dict)


@dataclass
class _Host:
    facts: dict[str, Any] = field(default_factory=dict)
    gpus: dict[tuple[str, str], _Gpu] = field(default_factory=lambda: defaultdict(_Gpu))
    """By UUID and index."""
    pending: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    faults: list[str] = field(default_factory=list)
    is_sampling: bool = True


def vramtop_hosts(ask: Ask, seen_at: Mapping[Target, float]) -> dict[Target, HostReading]:
    """Return the hosts whose exporter was scraped, with one query for each metric.

    Args:
        ask: asks Prometheus.
        seen_at: Unix seconds of the last scrape of each exporter, by the clock of Prometheus.
    """
    hosts: dict[Target, _Host] = defaultdict(_Host)
    _read_host_facts(ask, hosts)
    _read_gpus(ask, hosts)
    _read_processes(ask, hosts)
    _read_pending(ask, hosts)
    return {target: _reading(target, host, seen_at[target]) for target, host in hosts.items() if target in seen_at}


def _read_host_facts(ask: Ask, hosts: dict[Target, _Host]) -> None:
    for sample in ask("vramtop_host_info"):
        labels = sample.metric
        facts = hosts[labels.target].facts
        facts["host"] = plain(labels.host) or labels.target.host
        facts["driver_version"] = plain(labels.driver_version)
    for sample in ask("vramtop_build_info"):
        hosts[sample.metric.target].facts["vramtop_version"] = plain(sample.metric.version)
    for sample in ask("vramtop_sampler_last_reading_timestamp_seconds"):
        hosts[sample.metric.target].facts["time"] = sample.number
    for sample in ask("vramtop_sampler_interval_seconds"):
        hosts[sample.metric.target].facts["interval"] = sample.number
    for sample in ask("vramtop_sampler_up"):
        hosts[sample.metric.target].is_sampling = sample.number == 1
    for sample in ask("vramtop_host_fault == 1"):
        hosts[sample.metric.target].faults.append(plain(sample.metric.reason) or "unknown")


def _read_gpus(ask: Ask, hosts: dict[Target, _Host]) -> None:
    for sample in ask("vramtop_gpu_info"):
        _gpu(hosts, sample.metric).sizes["name"] = plain(sample.metric.name)
    for sample in ask('vramtop_gpu_fault{field=""} == 1'):
        _gpu(hosts, sample.metric).sizes["fault"] = f"it cannot be read: {plain(sample.metric.reason)}"
    for sample in ask('vramtop_gpu_fault{field!=""} == 1'):
        fault = f"{plain(sample.metric.field)} is unknown: {plain(sample.metric.reason)}"
        _gpu(hosts, sample.metric).sizes.setdefault("fault", fault)
    for name, metric in _GPU_SIZES.items():
        for sample in ask(metric):
            _gpu(hosts, sample.metric).sizes[name] = whole(sample)
    for sample in ask("vramtop_gpu_utilization_ratio"):
        number = sample.number
        _gpu(hosts, sample.metric).sizes["utilisation_percent"] = None if number is None else round(100 * number)
    for name, metric in _MIG_SIZES.items():
        for sample in ask(metric):
            _gpu(hosts, sample.metric).devices[sample.metric.mig][name] = whole(sample)


def _read_processes(ask: Ask, hosts: dict[Target, _Host]) -> None:
    for sample in ask("vramtop_gpu_user_memory_used_bytes"):
        _gpu(hosts, sample.metric).user_bytes[sample.metric.user] = whole(sample)
    for sample in ask("vramtop_gpu_user_processes"):
        _gpu(hosts, sample.metric).user_processes[sample.metric.user] = whole(sample) or 0
    for sample in ask("vramtop_process_run_info"):
        process = _process(hosts, sample.metric)
        process["facts"], process["run"] = _rank_facts(sample.metric), _number(sample.metric.run)
    for name, metric in _PROCESS_SIZES.items():
        for sample in ask(metric):
            _process(hosts, sample.metric)[name] = whole(sample)
    for name, metric in _PROCESS_FLOATS.items():
        for sample in ask(metric):
            _process(hosts, sample.metric)[name] = sample.number
    for sample in ask("vramtop_process_status == 1"):
        status = sample.metric.vramtop_process_status
        if status != "ended":
            _process(hosts, sample.metric)["status"] = status


def _read_pending(ask: Ask, hosts: dict[Target, _Host]) -> None:
    for sample in ask("vramtop_pending_verdict == 1"):
        labels = sample.metric
        hosts[labels.target].pending[labels.job_name]["verdict"] = labels.vramtop_pending_verdict
    for sample in ask("vramtop_pending_budget_bytes"):
        hosts[sample.metric.target].pending[sample.metric.job_name]["device_bytes"] = whole(sample)


def _gpu(hosts: dict[Target, _Host], labels: Labels) -> _Gpu:
    return hosts[labels.target].gpus[labels.uuid, labels.index]


def _process(hosts: dict[Target, _Host], labels: Labels) -> dict[str, Any]:
    key = (labels.pid, labels.mig, labels.job_name, labels.user)
    return _gpu(hosts, labels).processes[key]


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _rank_facts(labels: Labels) -> RankFacts | None:
    facts = RankFacts(
        rank=_number(labels.rank),
        world_size=_number(labels.world_size),
        rendezvous=plain(labels.rendezvous),
        master=plain(labels.master),
        slurm_job=plain(labels.slurm_job),
        pod_group=plain(labels.pod_group),
        ray_job=plain(labels.ray_job),
    )
    return None if facts == RankFacts() else facts


def _reading(target: Target, host: _Host, seen_at: float) -> HostReading:
    gpus = [_fleet_gpu(index, key, gpu) for index, (key, gpu) in enumerate(sorted(host.gpus.items(), key=_gpu_order))]
    has_driver = _NO_DRIVER not in host.faults
    live = host.is_sampling or not has_driver
    facts = {"host": target.host, **host.facts}
    return HostReading(
        **facts,
        gpus=tuple(gpus),
        pending=tuple(
            FleetPending(job=plain(job) or "", verdict=values["verdict"], device_bytes=values.get("device_bytes"))
            for job, values in host.pending.items()
            if "verdict" in values
        ),
        faults=tuple("there is no NVIDIA driver" if fault == _NO_DRIVER else fault for fault in host.faults),
        state="live" if live else "silent",
        since=seen_at if live else facts.get("time"),
        reason=None if live else _SAMPLER_STUCK,
    )


def _gpu_order(item: tuple[tuple[str, str], object]) -> tuple[int, str]:
    (uuid, index), _ = item
    return (_number(index) if _number(index) is not None else 1 << 30, uuid)  # type: ignore[return-value]


def _fleet_gpu(position: int, key: tuple[str, str], gpu: _Gpu) -> FleetGpu:
    uuid, index = plain(key[0]), _number(key[1])
    index = position if index is None else index
    devices = (FleetGpu(index=index, label=plain(label), **sizes) for label, sizes in sorted(gpu.devices.items()))
    return FleetGpu(index=index, uuid=uuid, processes=tuple(_processes(gpu)), devices=tuple(devices), **gpu.sizes)


def _processes(gpu: _Gpu) -> Iterable[FleetProcess]:
    """Return the processes of known jobs, and for each user a row for all others; largest first."""
    rows: list[FleetProcess] = []
    for (pid, mig, job, user), values in gpu.processes.items():
        if not values.keys() <= {"status"}:  # one that has ended has nothing else
            rows.append(FleetProcess(pid=_number(pid), job=plain(job), user=plain(user), device=plain(mig), **values))
    for user, count in gpu.user_processes.items():
        own = [row for row in rows if row.job is not None and row.user == plain(user)]
        others = count - len(own)
        if others > 0:
            rows.append(
                FleetProcess(
                    user=plain(user),
                    used_bytes=_rest(gpu.user_bytes.get(user), own),
                    note=f"{others} other process{'es' if others > 1 else ''}",
                )
            )
    return sorted(rows, key=lambda row: -(row.used_bytes or 0))


def _rest(size: int | None, rows: Iterable[FleetProcess]) -> int | None:
    """Return what of a size remains beside these processes; None: unknown."""
    known = [row.used_bytes for row in rows]
    return None if size is None or None in known else max(0, size - sum(each or 0 for each in known))
