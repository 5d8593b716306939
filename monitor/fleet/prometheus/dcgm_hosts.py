"""Readings of hosts from NVIDIA's dcgm-exporter, where vramtop's own does not run: memory of GPUs, and their pods.

Metrics and labels: internal/pkg/rendermetrics/render_metrics.go of NVIDIA/dcgm-exporter; sizes are in MiB, and a field
that the GPU does not have is about 2^63. Labels that clash with Prometheus' own arrive as ``exported_...``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from msgspec.structs import replace

from vramtop.estimator.common.sizes import MIB

from ..fleet import FleetGpu, FleetProcess, HostReading
from .series import Labels, Target, plain, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .vramtop_hosts import Ask

    Sizes = dict[str, int | None]

DCGM_USED = "DCGM_FI_DEV_FB_USED"
_FIGURES = {"used": DCGM_USED, "free": "DCGM_FI_DEV_FB_FREE", "reserved": "DCGM_FI_DEV_FB_RESERVED"}
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
    return FleetGpu(
        index=index,
        label=f"{index}:{labels.GPU_I_ID}" if labels.GPU_I_ID else None,
        uuid=plain(labels.UUID),
        name=plain(labels.modelName),
        total_bytes=None if used is None or free is None else used + free + (reserved or 0),
        used_bytes=used,
        reserved_bytes=reserved,
        free_bytes=free,
        processes=_pods(labels),
    )


def _pods(labels: Labels) -> tuple[FleetProcess, ...] | None:
    """Return the pod that has the GPU; the memory is the GPU's, so that of the pod itself is unknown."""
    pod, namespace = labels.exported_pod or labels.pod, labels.exported_namespace or labels.namespace
    if not pod or _EXPORTER_POD in pod:
        return None
    return (FleetProcess(job=plain(f"{namespace}/{pod}" if namespace else pod), kind="pod"),)


def _sum(sizes: Iterable[int | None]) -> int | None:
    known = list(sizes)
    return None if None in known else sum(size or 0 for size in known)
