"""The source of fleets that asks one Prometheus: hosts of vramtop's exporter, then those of NVIDIA's dcgm-exporter.

Metrics and labels of the latter: internal/pkg/rendermetrics/render_metrics.go of NVIDIA/dcgm-exporter; sizes are in
MiB, and a field that the GPU does not have is about 2^63. Labels that clash with Prometheus' own arrive as
``exported_...``. It knows the memory of GPUs, and their pods.
"""

from __future__ import annotations

import gc
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from vramtop.estimator.common.sizes import MIB

from ..fleet import Fleet, FleetGpu, FleetProcess, HostReading
from .client import PrometheusClient
from .series import Labels, Target, plain, whole
from .vramtop_hosts import vramtop_hosts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .vramtop_hosts import Ask

    Sizes = dict[str, int | None]


_OWN = "vramtop_sampler_up"
_READ_AT = "vramtop_sampler_last_reading_timestamp_seconds"
_SILENCE_SECONDS = 180.0
"""Age of figures at which a host is silent: three scrapes of Prometheus' default. Of an exporter that it cannot scrape
Prometheus has no figures at once."""


class _Place(NamedTuple):
    """A host as one exporter names it; a dcgm-exporter may speak for several."""

    target: Target
    host: str


class PrometheusFleet:
    """A source of fleets (``FleetSource``): one query for each metric at each reading, and nothing kept in between.

    Args:
        client: asks Prometheus.
    """

    def __init__(self, client: PrometheusClient) -> None:
        self._client = client

    def read(self) -> Fleet:
        """Return all hosts as Prometheus knows them now; a host that it has no new figures of is silent.

        Raises:
            QueryError: Prometheus cannot be asked.
        """
        collects = gc.isenabled()
        gc.disable()  # some 300,000 records are made and none is garbage: looking for it takes a tenth of the time
        try:
            now = time.time()
            hosts = self._found(now)
            hosts |= self._silent({place.target for place in hosts}, now)
        finally:
            if collects:
                gc.enable()
        nothing = f"{self._client.host} has no metrics of vramtop export or dcgm-exporter"
        return Fleet(now, tuple(_named_apart(hosts)), notice=None if hosts else nothing)

    def close(self) -> None:
        """Nothing is open between two readings."""

    def _found(self, now: float) -> dict[_Place, HostReading]:
        """Return the hosts that Prometheus has figures of."""
        own = vramtop_hosts(self._client.query, self._seen_at(_OWN, now))
        known = frozenset(gpu.uuid for host in own.values() for gpu in host.gpus if gpu.uuid)
        others = dcgm_hosts(self._client.query, self._seen_at(_DCGM_USED, now), known)
        found = {_Place(target, host.host): host for target, host in own.items()}
        found |= {_Place(target, name): host for (target, name), host in others.items()}
        for place, host in found.items():
            if host.is_live and host.since is not None and now - host.since > _SILENCE_SECONDS:
                found[place] = replace(host, state="silent", reason="Prometheus has no new figures of it")
        return found

    def _silent(self, speaking: set[Target], now: float) -> dict[_Place, HostReading]:
        """Return the hosts of exporters that cannot be scraped and spoke within the last hour, without figures.

        Args:
            speaking: exporters that Prometheus has figures of.
            now: Unix seconds.
        """
        down = {each.metric.target for each in self._client.query("up == 0")} - speaking
        found: dict[_Place, HostReading] = {}
        if not down:
            return found
        read_at = {each.metric.target: each.number for each in self._client.query(f"last_over_time({_READ_AT}[1h])")}
        for metric in ("vramtop_host_info", _DCGM_USED):
            for sample in self._client.query(f"last_over_time({metric}[1h])"):
                target, last = sample.metric.target, read_at.get(sample.metric.target)
                if target in down:
                    name = plain(sample.metric.host or sample.metric.Hostname) or target.host
                    since = None if last is None else min(last, now)
                    reason = "Prometheus cannot scrape its exporter"
                    found[_Place(target, name)] = HostReading(host=name, since=since, state="silent", reason=reason)
        return found

    def _seen_at(self, metric: str, now: float) -> dict[Target, float]:
        """Return when each exporter of a metric was last scraped, by the clock of this machine."""
        return {
            sample.metric.target: now - max(0.0, sample.value[0] - sample.number)
            for sample in self._client.query(f"max by (cluster, job, instance) (timestamp({metric}))")
            if sample.number is not None
        }


def _named_apart(hosts: Mapping[_Place, HostReading]) -> Collection[HostReading]:
    """Return the hosts by name; those of the same name with the address, or the cluster, of their exporter."""
    names = Counter(host.host for host in hosts.values())

    def named() -> Iterator[HostReading]:
        for place, host in hosts.items():
            apart = f"{place.target.cluster}/{place.target.instance}".strip("/")
            yield host if names[host.host] == 1 else replace(host, host=f"{host.host} ({apart})")

    return sorted(named(), key=lambda host: host.host)


_DCGM_USED = "DCGM_FI_DEV_FB_USED"
_FIGURES = {"used": _DCGM_USED, "free": "DCGM_FI_DEV_FB_FREE", "reserved": "DCGM_FI_DEV_FB_RESERVED"}
_MAX_MIB = 1 << 30
"""Beyond what any GPU has: DCGM's blank values."""
_EXPORTER_POD = "dcgm-exporter"
"""In the name of the exporter's own pod, which Prometheus adds where a GPU has no pod."""


def dcgm_hosts(
    ask: Ask, seen_at: Mapping[Target, float], known_uuids: frozenset[str]
) -> dict[tuple[Target, str], HostReading]:
    """Return the hosts by exporter and host name: one exporter may speak for several.

    Args:
        ask: asks Prometheus.
        seen_at: Unix seconds of the last scrape of each exporter.
        known_uuids: GPUs that vramtop's own exporters report, which are left out here.
    """
    gpus: dict[tuple[Target, str], dict[str, dict[str, tuple[Labels, Sizes]]]] = defaultdict(dict)
    for figure, metric in _FIGURES.items():
        for sample in ask(metric):
            labels = sample.metric
            if labels.target in seen_at and labels.UUID not in known_uuids:
                parts = gpus[labels.target, plain(labels.Hostname) or labels.target.host]
                part = parts.setdefault(labels.UUID or labels.gpu, {}).setdefault(labels.GPU_I_ID, (labels, {}))
                size = whole(sample)
                part[1][figure] = size * MIB if size is not None and 0 <= size < _MAX_MIB else None
    return {
        (target, name): HostReading(
            host=name,
            time=seen_at[target],
            gpus=tuple(sorted(map(_gpu, parts.values()), key=lambda gpu: gpu.index)),
            since=seen_at[target],
            faults=("no budgets: its figures are dcgm-exporter's, vramtop export does not run there",),
        )
        for (target, name), parts in gpus.items()
    }


def _gpu(parts: dict[str, tuple[Labels, Sizes]]) -> FleetGpu:
    """Return one GPU; of a GPU in MIG mode, whose own figures are not exported, the sums over its devices."""
    found = {mig: _figures(*part) for mig, part in sorted(parts.items())}
    whole_gpu = found.pop("", None)
    devices = tuple(found.values())
    if whole_gpu is None:
        whole_gpu = FleetGpu(
            index=devices[0].index,
            uuid=devices[0].uuid,
            name=devices[0].name,
            total_bytes=_sum(device.total_bytes for device in devices),
            used_bytes=_sum(device.used_bytes for device in devices),
            free_bytes=_sum(device.free_bytes for device in devices),
            processes=tuple(process for device in devices for process in device.processes or ()) or None,
        )
    return replace(whole_gpu, devices=tuple(replace(device, processes=None) for device in devices))


def _figures(labels: Labels, sizes: Sizes) -> FleetGpu:
    used, free, reserved = (sizes.get(figure) for figure in _FIGURES)
    index = int(labels.gpu) if labels.gpu.isdecimal() else 0
    pod, namespace = labels.exported_pod or labels.pod, labels.exported_namespace or labels.namespace
    processes = None
    if pod and _EXPORTER_POD not in pod:  # the memory is the GPU's, so that of the pod itself is unknown
        processes = (FleetProcess(job=plain(f"{namespace}/{pod}" if namespace else pod), kind="pod"),)
    return FleetGpu(
        index=index,
        label=f"{index}:{labels.GPU_I_ID}" if labels.GPU_I_ID else None,
        uuid=plain(labels.UUID),
        name=plain(labels.modelName),
        total_bytes=None if used is None or free is None else used + free + (reserved or 0),
        used_bytes=used,
        reserved_bytes=reserved,
        free_bytes=free,
        processes=processes,
    )


def _sum(sizes: Iterable[int | None]) -> int | None:
    known = list(sizes)
    return None if None in known else sum(size or 0 for size in known)
