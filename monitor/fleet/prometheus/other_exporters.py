"""Readings of hosts from other GPU exporters, where vramtop's own does not run: memory of GPUs, and who has them.

Metrics and labels: dcgm-exporter (internal/pkg/rendermetrics/render_metrics.go, sizes in MiB; a field that the GPU does
not have is about 2^63), nvidia_gpu_exporter (charts' dashboards: ``nvidia_smi_*``), all-smi (src/api/metrics/gpu.rs and
process.rs). Labels that clash with Prometheus' own arrive as ``exported_...``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from vramtop.estimator.common import MIB

from ..host_reading import FleetGpu, FleetProcess, HostReading
from .samples import Target, finite, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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
