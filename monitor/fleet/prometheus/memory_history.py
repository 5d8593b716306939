"""Memory of a host's GPUs over time, from range queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from .other_exporters import EXPORTERS, OtherLabels, gpu_uuid, host_name
from .samples import finite

if TYPE_CHECKING:
    from .client import PrometheusClient
    from .samples import Target

_POINTS = 120
"""Values of each GPU: more than a line on a screen has columns."""
_OWN = "vramtop_gpu_memory_used_bytes"


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
    metrics = [(_OWN, 1)] if host is None else [(exporter.used, exporter.unit_bytes) for exporter in EXPORTERS]
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
