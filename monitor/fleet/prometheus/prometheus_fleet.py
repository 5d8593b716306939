"""The source of fleets that asks one Prometheus: vramtop's hosts, then those of other exporters."""

from __future__ import annotations

import gc
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vramtop.estimator.common.sizes import MIB

from ...snapshot.snapshot import ASLEEP, NO_DRIVER, NOT_LISTED
from ..fleet import Fleet, FleetGpu, FleetPending, FleetProcess, HostReading, RankFacts
from .client import Target, Vector, finite, plain, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from .client import Labels, PrometheusClient, Sample

# Readings of hosts from other GPU exporters, where vramtop's own does not run: memory of GPUs, and who has them.
#
# Metrics and labels: dcgm-exporter (internal/pkg/rendermetrics/render_metrics.go, sizes in MiB; a field that the GPU
# does not have is about 2^63), nvidia_gpu_exporter (charts' dashboards: ``nvidia_smi_*``), all-smi
# (src/api/metrics/gpu.rs and process.rs). Labels that clash with Prometheus' own arrive as ``exported_...``.


_MAX_BYTES = 1 << 50
"""Beyond what any GPU has: DCGM's blank values."""
_EXPORTER_POD = "dcgm-exporter"
"""In the name of the exporter's own pod, which Prometheus adds where a GPU has no pod."""


class OtherLabels(Struct, frozen=True, gc=False, rename={"uuid_upper": "UUID", "host_upper": "Hostname"}):
    """Labels of the other exporters."""

    cluster: str = ""
    job: str = ""
    instance: str = ""
    exported_instance: str = ""
    gpu: str = ""
    gpu_index: str = ""
    index: str = ""
    uuid: str = ""
    uuid_upper: str = ""
    gpu_uuid: str = ""
    device_uuid: str = ""
    hostname: str = ""
    host_upper: str = ""
    modelName: str = ""  # noqa: N815 - as DCGM spells it
    name: str = ""
    GPU_I_ID: str = ""
    pod: str = ""
    namespace: str = ""
    exported_pod: str = ""
    exported_namespace: str = ""
    pid: str = ""
    user: str = ""
    command: str = ""


class OtherSample(Struct, frozen=True, gc=False):
    """One series and its value now."""

    metric: OtherLabels
    value: tuple[float, str]


class OtherVector(Struct, frozen=True):
    """Answer to an instant query."""

    result: list[OtherSample]


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """What an exporter calls its metrics; None: it has none of that kind."""

    label: str
    used: str
    free: str | None = None
    total: str | None = None
    reserved: str | None = None
    unit_bytes: int = 1
    indices: str | None = None
    """A metric whose value is the index of the GPU."""
    info: str | None = None
    """A metric with the GPU's name as a label."""
    processes: str | None = None
    """Memory by process."""


EXPORTERS = (
    Exporter(
        label="dcgm-exporter",
        used="DCGM_FI_DEV_FB_USED",
        free="DCGM_FI_DEV_FB_FREE",
        reserved="DCGM_FI_DEV_FB_RESERVED",
        unit_bytes=MIB,
    ),
    Exporter(
        label="nvidia_gpu_exporter",
        used="nvidia_smi_memory_used_bytes",
        free="nvidia_smi_memory_free_bytes",
        total="nvidia_smi_memory_total_bytes",
        reserved="nvidia_smi_memory_reserved_bytes",
        indices="nvidia_smi_index",
        info="nvidia_smi_gpu_info",
    ),
    Exporter(
        label="all-smi",
        used="all_smi_gpu_memory_used_bytes",
        total="all_smi_gpu_memory_total_bytes",
        processes="all_smi_process_memory_used_bytes",
    ),
)

_Key = tuple[Target, str, str, str]
"""Exporter, host, UUID or index of the GPU, and MIG device."""


def other_hosts(
    exporter: Exporter,
    ask: Callable[[str], list[OtherSample]],
    seen_at: Mapping[Target, float],
    known_uuids: frozenset[str],
) -> dict[tuple[Target, str], HostReading]:
    """Return the hosts of one kind of exporter, by exporter and host name.

    Args:
        exporter: the kind.
        ask: asks Prometheus.
        seen_at: Unix seconds of the last scrape of each exporter.
        known_uuids: GPUs that vramtop's own exporters report, which are left out here.
    """
    labels: dict[_Key, OtherLabels] = {}
    sizes: dict[_Key, dict[str, int | None]] = defaultdict(dict)
    for figure in ("used", "free", "total", "reserved"):
        metric = getattr(exporter, figure)
        for sample in ask(metric) if metric else ():
            key = _key(sample.metric)
            if key[0] in seen_at and gpu_uuid(sample.metric) not in known_uuids:
                labels.setdefault(key, sample.metric)
                sizes[key][figure] = _size(sample, exporter.unit_bytes)
    extra = _Extra(exporter, ask)
    gpus: dict[tuple[Target, str], dict[str, list[_Key]]] = defaultdict(lambda: defaultdict(list))
    for key in labels:
        gpus[key[0], key[1]][key[2]].append(key)
    return {
        place: _host(place, [_gpu(keys, labels, sizes, extra) for keys in each.values()], exporter, seen_at[place[0]])
        for place, each in gpus.items()
    }


class _Extra:
    """Names, indices and processes that an exporter has in metrics of their own."""

    def __init__(self, exporter: Exporter, ask: Callable[[str], list[OtherSample]]) -> None:
        self.names = {_key(each.metric): each.metric.name for each in (ask(exporter.info) if exporter.info else ())}
        self.indices = {_key(each.metric): finite(each.value) for each in _ask_for(ask, exporter.indices)}
        self.processes: dict[tuple[Target, str], list[FleetProcess]] = defaultdict(list)
        for each in _ask_for(ask, exporter.processes):
            labels = each.metric
            self.processes[_target(labels), labels.device_uuid].append(
                FleetProcess(
                    pid=int(labels.pid) if labels.pid.isdecimal() else None,
                    user=plain(labels.user),
                    command=plain(labels.command or labels.name),
                    used_bytes=_size(each, 1),
                )
            )


def _ask_for(ask: Callable[[str], list[OtherSample]], metric: str | None) -> list[OtherSample]:
    return ask(metric) if metric else []


def _target(labels: OtherLabels) -> Target:
    return Target(labels.cluster, labels.job, labels.instance)


def gpu_uuid(labels: OtherLabels) -> str:
    """Return the UUID of the GPU that a series is of; empty: its labels have none."""
    return labels.uuid_upper or labels.gpu_uuid or labels.uuid


def host_name(labels: OtherLabels) -> str:
    """Return the host that a series is of."""
    target = _target(labels)
    return plain(labels.host_upper or labels.hostname or labels.exported_instance) or target.host


def _key(labels: OtherLabels) -> _Key:
    return (_target(labels), host_name(labels), gpu_uuid(labels) or labels.gpu_index or labels.gpu, labels.GPU_I_ID)


def _size(sample: OtherSample, unit_bytes: int) -> int | None:
    number = finite(sample.value)
    size = None if number is None else round(number * unit_bytes)
    return size if size is not None and 0 <= size < _MAX_BYTES else None


def _gpu(
    keys: Iterable[_Key],
    labels: Mapping[_Key, OtherLabels],
    sizes: Mapping[_Key, dict[str, int | None]],
    extra: _Extra,
) -> FleetGpu:
    """Return one GPU; of a GPU in MIG mode, whose own figures are not exported, the sums over its devices."""
    parts = {key[3]: _figures(key, labels[key], sizes[key], extra) for key in keys}
    whole = parts.pop("", None)
    devices = tuple(part for _, part in sorted(parts.items()))
    if whole is None:
        first = devices[0]
        whole = FleetGpu(
            index=first.index,
            uuid=first.uuid,
            name=first.name,
            total_bytes=_sum(device.total_bytes for device in devices),
            used_bytes=_sum(device.used_bytes for device in devices),
            free_bytes=_sum(device.free_bytes for device in devices),
            processes=tuple(process for device in devices for process in device.processes or ()) or None,
        )
    if not devices:
        return whole
    listed = tuple(replace(device, processes=None) for device in devices)  # they are listed with the GPU
    return replace(whole, devices=listed)


def _sum(sizes: Iterable[int | None]) -> int | None:
    known = list(sizes)
    return None if None in known else sum(size or 0 for size in known)


def _figures(key: _Key, labels: OtherLabels, sizes: dict[str, int | None], extra: _Extra) -> FleetGpu:
    used, free, total, reserved = (sizes.get(name) for name in ("used", "free", "total", "reserved"))
    if total is None and used is not None and free is not None:
        total = used + free + (reserved or 0)
    if free is None and total is not None and used is not None:
        free = max(0, total - used - (reserved or 0))
    index = extra.indices.get(key)
    shown = next((text for text in (labels.gpu_index, labels.index, labels.gpu) if text.isdecimal()), None)
    processes = extra.processes.get((key[0], gpu_uuid(labels))) or _pods(labels)
    return FleetGpu(
        index=round(index) if index is not None else int(shown) if shown else 0,
        label=f"{shown or 0}:{labels.GPU_I_ID}" if labels.GPU_I_ID else None,
        uuid=plain(gpu_uuid(labels)),
        name=plain(labels.modelName or extra.names.get(key) or ("" if labels.gpu.isdecimal() else labels.gpu)),
        total_bytes=total,
        used_bytes=used,
        reserved_bytes=reserved,
        free_bytes=free,
        processes=tuple(sorted(processes, key=lambda each: -(each.used_bytes or 0))) or None,
    )


def _pods(labels: OtherLabels) -> list[FleetProcess]:
    """Return the pod that has the GPU; the memory is the GPU's, so that of the pod itself is unknown."""
    pod, namespace = labels.exported_pod or labels.pod, labels.exported_namespace or labels.namespace
    if not pod or _EXPORTER_POD in pod:
        return []
    return [FleetProcess(job=plain(f"{namespace}/{pod}" if namespace else pod), kind="pod")]


def _host(place: tuple[Target, str], gpus: list[FleetGpu], exporter: Exporter, seen_at: float) -> HostReading:
    return HostReading(
        host=place[1],
        time=seen_at,
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.index)),
        since=seen_at,
        faults=(f"no budgets: its figures are {exporter.label}'s, vramtop export does not run there",),
    )


# Memory of a host's GPUs over time, from range queries.


_POINTS = 120
"""Values of each GPU: more than a line on a screen has columns."""
_MEMORY_HISTORY_OWN = "vramtop_gpu_memory_used_bytes"


class _Series(Struct, frozen=True, gc=False):
    metric: OtherLabels
    values: list[tuple[float, str]]


class _Matrix(Struct, frozen=True):
    result: list[_Series]


MemoryReadings = dict[str, list[tuple[float, int | None]]]
"""For each GPU, by its UUID: (Unix seconds, bytes in use or None), oldest first; None begins a gap."""


def memory_history(
    client: PrometheusClient, target: Target, host: str | None, *, now: float, seconds: float
) -> MemoryReadings:
    """Return the memory in use of the GPUs of a host, by the clock of Prometheus.

    Args:
        client: asks Prometheus.
        target: the exporter that reports the host.
        host: its name there; None: it is vramtop's exporter, which speaks for one host.
        now: Unix seconds of the end.
        seconds: how far back.

    Raises:
        QueryError: there is no answer.
    """
    step = seconds / _POINTS
    metrics = (
        [(_MEMORY_HISTORY_OWN, 1)] if host is None else [(exporter.used, exporter.unit_bytes) for exporter in EXPORTERS]
    )
    found: MemoryReadings = {}
    for metric, unit_bytes in metrics:
        expression = f"{metric}{{job={_quoted(target.job)},instance={_quoted(target.instance)}}}"
        for series in client.query_range(expression, now - seconds, now, step, _Matrix).result:
            labels = series.metric
            uuid = gpu_uuid(labels)
            if uuid and not labels.GPU_I_ID and (host is None or host_name(labels) == host):
                found[uuid] = list(_with_gaps(series.values, step, unit_bytes, now))
    return found


def _with_gaps(
    values: list[tuple[float, str]], step: float, unit_bytes: int, now: float
) -> list[tuple[float, int | None]]:
    """Return the readings, with None where steps are missing, also at the end."""
    readings: list[tuple[float, int | None]] = []
    for value in values:
        number = finite(value)
        if readings and value[0] - readings[-1][0] > 1.5 * step:
            readings.append((readings[-1][0] + step, None))
        readings.append((value[0], None if number is None else round(number * unit_bytes)))
    if readings and now - readings[-1][0] > 1.5 * step:
        readings.append((readings[-1][0] + step, None))
    return readings


def _quoted(text: str) -> str:
    """Return a string of PromQL."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# Readings of hosts from the metrics of ``vramtop export`` (docs/reference/metrics.md).


if TYPE_CHECKING:
    Ask = Callable[[str], list[Sample]]

_GPU_SIZES = {
    "total_bytes": "vramtop_gpu_memory_total_bytes",
    "used_bytes": "vramtop_gpu_memory_used_bytes",
    "free_bytes": "vramtop_gpu_memory_free_bytes",
    "reserved_bytes": "vramtop_gpu_memory_reserved_bytes",
    "unattributed_bytes": "vramtop_gpu_memory_unattributed_bytes",
    "committed_bytes": "vramtop_gpu_memory_committed_bytes",
}
_FAULT_WORDS = {
    "GPU_IS_LOST": "it no longer answers; the host's kernel log says why, and it needs a reset or a reboot",
    "RESET_REQUIRED": "it must be reset before it can be used again",
    NOT_LISTED: "the driver no longer lists it",
    ASLEEP: "it is asleep to save power, and is not queried",
}
"""What the commonest error codes of a whole GPU mean."""
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
    "full_seconds": "vramtop_process_memory_full_seconds",
}
CONSTANT_METRICS = frozenset(
    (
        "vramtop_host_info",
        "vramtop_build_info",
        "vramtop_sampler_interval_seconds",
        "vramtop_gpu_info",
        "vramtop_gpu_memory_total_bytes",
        "vramtop_process_run_info",
        "vramtop_process_start_time_seconds",
    )
)
"""Metrics that change only when a host, a GPU or a process comes or goes."""
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


def vramtop_hosts(ask: Ask, seen_at: Mapping[Target, float]) -> dict[Target, HostReading]:
    """Return the hosts whose exporter was scraped, with one query for each metric.

    Args:
        ask: asks Prometheus.
        seen_at: Unix seconds of the last scrape of each exporter, by the clock of Prometheus.
    """
    records = _Records()
    _read_host_facts(ask, records.hosts)
    _read_gpus(ask, records.gpu)
    _read_processes(ask, records)
    _read_pending(ask, records.hosts)
    return {
        target: _reading(target, host, seen_at[target]) for target, host in records.hosts.items() if target in seen_at
    }


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


def _read_gpus(ask: Ask, gpu_of: Callable[[Labels], _Gpu]) -> None:
    for sample in ask("vramtop_gpu_info"):
        gpu_of(sample.metric).sizes["name"] = plain(sample.metric.name)
    for sample in ask('vramtop_gpu_fault{field=""} == 1'):
        sizes, reason = gpu_of(sample.metric).sizes, plain(sample.metric.reason) or ""
        words = _FAULT_WORDS.get(reason)
        sizes["fault"] = f"{words} ({reason})" if words else f"it cannot be read: {reason}"
        sizes["is_asleep"] = reason == ASLEEP
    for sample in ask('vramtop_gpu_fault{field!=""} == 1'):
        fault = f"{plain(sample.metric.field)} is unknown: {plain(sample.metric.reason)}"
        gpu = gpu_of(sample.metric)
        gpu.sizes.setdefault("fault", fault)
        gpu.hides_processes |= sample.metric.field == "processes"
    for sample in ask("vramtop_gpu_closed == 1"):
        gpu_of(sample.metric).sizes["closed"] = plain(sample.metric.reason)
    for name, metric in _GPU_SIZES.items():
        for sample in ask(metric):
            gpu_of(sample.metric).sizes[name] = whole(sample)
    for sample in ask("vramtop_gpu_utilization_ratio"):
        number = sample.number
        gpu_of(sample.metric).sizes["utilisation_percent"] = None if number is None else round(100 * number)
    for name, metric in _MIG_SIZES.items():
        for sample in ask(metric):
            gpu_of(sample.metric).devices[sample.metric.mig][name] = whole(sample)


def _read_processes(ask: Ask, records: _Records) -> None:
    for sample in ask("vramtop_gpu_user_memory_used_bytes"):
        records.gpu(sample.metric).user_bytes[sample.metric.user] = whole(sample)
    for sample in ask("vramtop_gpu_user_processes"):
        records.gpu(sample.metric).user_processes[sample.metric.user] = whole(sample) or 0
    for sample in ask("vramtop_process_run_info"):
        process = records.process(sample.metric)
        process["facts"], process["run"] = _rank_facts(sample.metric), _number(sample.metric.run)
    for name, metric in _PROCESS_SIZES.items():
        for sample in ask(metric):
            records.process(sample.metric)[name] = whole(sample)
    for name, metric in _PROCESS_FLOATS.items():
        for sample in ask(metric):
            records.process(sample.metric)[name] = sample.number
    for sample in ask("vramtop_process_status == 1"):
        status = sample.metric.vramtop_process_status
        if status != "ended":
            records.process(sample.metric)["status"] = status


def _read_pending(ask: Ask, hosts: dict[Target, _Host]) -> None:
    for sample in ask("vramtop_pending_verdict == 1"):
        labels = sample.metric
        hosts[labels.target].pending[labels.job_name]["verdict"] = labels.vramtop_pending_verdict
    for sample in ask("vramtop_pending_budget_bytes"):
        hosts[sample.metric.target].pending[sample.metric.job_name]["device_bytes"] = whole(sample)


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
    gpus = [_fleet_gpu(position, *each) for position, each in enumerate(sorted(host.gpus, key=_gpu_order))]
    has_driver = NO_DRIVER not in host.faults
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
        unlisted=tuple(fault for fault in host.faults if fault == NOT_LISTED),
        faults=tuple("there is no NVIDIA driver" if fault == NO_DRIVER else fault for fault in host.faults),
        state="live" if live else "silent",
        since=seen_at if live else facts.get("time"),
        reason=None if live else _SAMPLER_STUCK,
    )


def _gpu_order(item: tuple[str, str, _Gpu]) -> tuple[float, str]:
    uuid, index, _ = item
    number = _number(index)
    return (inf if number is None else number, uuid)


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
        if values.keys() != {"status"}:  # one that has ended has nothing else
            rows.append(
                FleetProcess(
                    pid=_number(labels.pid),
                    job=plain(labels.job_name),
                    user=plain(labels.user),
                    device=plain(labels.mig),
                    **values,
                )
            )
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


_OWN = "vramtop_sampler_up"
_READ_AT = "vramtop_sampler_last_reading_timestamp_seconds"
_LOOK_BACK = "1h"
_LOOK_BACK_SECONDS = 3600.0
"""Hosts that were seen within this time are listed as silent; older ones are forgotten."""
_EXPORTERS_CHECK_SECONDS = 60.0
"""Time between two checks which exporters there are, and how often they are scraped."""
_RATE_WINDOW_SECONDS = 300.0
_USUAL_INTERVAL_SECONDS = 60.0
"""Time between two scrapes that is assumed until two were seen: Prometheus' default."""
_MIN_SILENCE_SECONDS = 30.0
_MISSED_SCRAPES = 3
"""A host is silent once so many scrapes are missing."""
_SIGNATURE = ("count(vramtop_gpu_info)", "count(vramtop_host_info)", "sum(vramtop_process_start_time_seconds)")
"""Change whenever a GPU, a host or a process comes or goes."""
_NOT_SCRAPED = "Prometheus cannot scrape its exporter"
_NO_TARGET = "Prometheus no longer scrapes its exporter"


class _Place(NamedTuple):
    """A host as one exporter names it; an exporter of others may speak for several."""

    target: Target
    host: str | None


class PrometheusFleet:
    """A source of fleets (``FleetSource``): one query for each metric at each reading.

    Args:
        client: asks Prometheus.
        now: Unix seconds.
    """

    def __init__(self, client: PrometheusClient, *, now: Callable[[], float] = time.time) -> None:
        self._client, self._now = client, now
        self._hosts: dict[_Place, HostReading] = {}
        """The latest reading of each host."""
        self._places: dict[str, _Place] = {}
        """The hosts by the names that the latest fleet gives them."""
        self._present: frozenset[str] = frozenset()
        """Which exporters Prometheus has figures of."""
        self._intervals: dict[Target, float] = {}
        """Seconds between two scrapes."""
        self._checked_at: float | None = None
        self._constant: dict[str, list[Sample]] = {}
        """Answers about what is constant for each GPU and process."""
        self._signature: tuple[str, ...] = ()

    def read(self) -> Fleet:
        """Return all hosts as Prometheus knows them now; a host that it has no new figures of is silent.

        Raises:
            QueryError: Prometheus cannot be asked.
        """
        collects = gc.isenabled()
        gc.disable()  # some 300,000 records are made and none is garbage: looking for it takes a tenth of the time
        try:
            return self._read(self._now())
        finally:
            if collects:
                gc.enable()

    def _read(self, now: float) -> Fleet:
        is_recent = self._checked_at is not None and 0 <= now - self._checked_at < _EXPORTERS_CHECK_SECONDS
        if not is_recent or not self._present:
            self._look_for_exporters(now)
        found = self._read_hosts(now)
        arrived = found.keys() - self._hosts.keys()
        states = {sample.metric.target: sample.number for sample in self._ask("up")} if self._missing(found) else {}
        self._hosts = {
            **{place: self._silent(place, host, states) for place, host in self._hosts.items()},
            **{place: self._checked(place, host, now) for place, host in found.items()},
        }
        self._forget(now, set(found), arrived)
        notice = None
        if not self._hosts:
            notice = (
                f"{self._client.host} has no metrics of vramtop export, dcgm-exporter, nvidia_gpu_exporter or all-smi"
            )
        named = _named_apart(self._hosts)
        self._places = {host.host: place for place, host in named}
        return Fleet(now, tuple(host for _, host in named), notice=notice)

    def memory_history(self, host: str, seconds: float) -> MemoryReadings:
        """Return the memory in use of a host's GPUs over time; may be called on another thread than ``read``.

        Args:
            host: name of the host in the latest fleet.
            seconds: how far back.

        Raises:
            QueryError: Prometheus cannot be asked.
        """
        place = self._places.get(host)
        if place is None:
            return {}
        return memory_history(self._client, place.target, place.host, now=self._now(), seconds=seconds)

    def close(self) -> None:
        """Nothing is open between two readings."""

    def _look_for_exporters(self, now: float) -> None:
        """Find out which exporters there are, how often they are scraped, and, at first, which have gone silent."""
        names = (_OWN, *(exporter.used for exporter in EXPORTERS))
        if not self._hosts:
            self._add_silent_hosts(now)
        present = [name for name in names if self._ask(f"group({name})")]
        self._intervals = {}
        for name in present:
            window = f"{_RATE_WINDOW_SECONDS:.0f}s"
            for sample in self._ask(f"max by (cluster, job, instance) (count_over_time({name}[{window}]))"):
                if sample.number and sample.number > 1:
                    self._intervals[sample.metric.target] = _RATE_WINDOW_SECONDS / (sample.number - 1)
        self._present, self._checked_at = frozenset(present), now
        self._signature = ()

    def _add_silent_hosts(self, now: float) -> None:
        """List the hosts that vramtop's exporters spoke for within the last hour, without figures."""
        read_at = {
            sample.metric.target: sample.number for sample in self._ask(f"last_over_time({_READ_AT}[{_LOOK_BACK}])")
        }
        for sample in self._ask(f"last_over_time(vramtop_host_info[{_LOOK_BACK}])"):
            target = sample.metric.target
            name = plain(sample.metric.host) or target.host
            last = read_at.get(target)
            since = None if last is None else min(last, now)
            self._hosts[_Place(target, None)] = HostReading(host=name, time=last, since=since, state="silent")

    def _read_hosts(self, now: float) -> dict[_Place, HostReading]:
        found: dict[_Place, HostReading] = {}
        if _OWN in self._present:
            self._forget_constants()
            for target, host in vramtop_hosts(self._ask_vramtop, self._seen_at(_OWN, now)).items():
                found[_Place(target, None)] = host
        known = frozenset(gpu.uuid for host in found.values() for gpu in host.gpus if gpu.uuid)
        for exporter in EXPORTERS:
            if exporter.used in self._present:
                found |= self._read_other(exporter, known, now)
                known |= {gpu.uuid for host in found.values() for gpu in host.gpus if gpu.uuid}
        return found

    def _read_other(self, exporter: Exporter, known: frozenset[str], now: float) -> dict[_Place, HostReading]:
        hosts = other_hosts(exporter, self._ask_other, self._seen_at(exporter.used, now), known)
        return {_Place(target, name): host for (target, name), host in hosts.items()}

    def _seen_at(self, metric: str, now: float) -> dict[Target, float]:
        """Return when each exporter of a metric was last scraped, by the clock of this machine."""
        samples = self._ask(f"max by (cluster, job, instance) (timestamp({metric}))")
        return {
            sample.metric.target: now - max(0.0, sample.value[0] - sample.number)
            for sample in samples
            if sample.number is not None
        }

    def _ask(self, expression: str) -> list[Sample]:
        return self._client.query(expression, Vector).result

    def _ask_vramtop(self, expression: str) -> list[Sample]:
        """Return the samples of an expression; those that change only with the GPUs and processes are kept."""
        if expression not in CONSTANT_METRICS:
            return self._ask(expression)
        if expression not in self._constant:
            self._constant[expression] = self._ask(expression)
        return self._constant[expression]

    def _forget_constants(self) -> None:
        """Ask again for what is constant if a GPU or a process has come or gone."""
        now = tuple(sample.value[1] for expression in _SIGNATURE for sample in self._ask(expression))
        if now != self._signature:
            self._constant.clear()
            self._signature = now

    def _ask_other(self, expression: str) -> list[OtherSample]:
        return self._client.query(expression, OtherVector).result

    def _missing(self, found: Mapping[_Place, HostReading]) -> bool:
        return any(place not in found for place in self._hosts)

    def _checked(self, place: _Place, host: HostReading, now: float) -> HostReading:
        """Return a host as silent if its figures are older than scrapes explain."""
        scraped_at = host.since if host.is_live else None
        limit = max(_MIN_SILENCE_SECONDS, _MISSED_SCRAPES * self._intervals.get(place.target, _USUAL_INTERVAL_SECONDS))
        if scraped_at is None or now - scraped_at <= limit:
            return host
        return msgspec.structs.replace(host, state="silent", reason="Prometheus has no new figures of it")

    def _silent(self, place: _Place, host: HostReading, up: Mapping[Target, float | None]) -> HostReading:
        """Return a host that Prometheus has no figures of any more."""
        reason = _NOT_SCRAPED if up.get(place.target) == 0 else _NO_TARGET
        if host.state == "silent" and host.reason == reason:
            return host
        return msgspec.structs.replace(host, state="silent", reason=reason)

    def _forget(self, now: float, found: Collection[_Place], arrived: Collection[_Place]) -> None:
        """Drop hosts that have been gone for long, and those whose GPUs an exporter reports that was not there before.

        One that was there beside it speaks for itself: containers and virtual machines may share GPUs.
        """
        taken_over = {gpu.uuid for place in arrived for gpu in self._hosts[place].gpus if gpu.uuid}
        for place in [place for place in self._hosts if place not in found]:
            host = self._hosts[place]
            if any(gpu.uuid in taken_over for gpu in host.gpus) or (
                host.since is not None and now - host.since > _LOOK_BACK_SECONDS
            ):
                del self._hosts[place]


def _named_apart(hosts: Mapping[_Place, HostReading]) -> list[tuple[_Place, HostReading]]:
    """Return the hosts by name; those of the same name with the address, or the cluster, of their exporter."""
    names = Counter(host.host for host in hosts.values())
    named = []
    for place, host in hosts.items():
        if names[host.host] > 1:
            apart = f"{place.target.cluster}/{place.target.instance}".strip("/")
            named.append((place, msgspec.structs.replace(host, host=f"{host.host} ({apart})")))
        else:
            named.append((place, host))
    return sorted(named, key=lambda each: each[1].host)
