"""Series of Prometheus as records: the labels that are used, and the value. Others are skipped while decoding."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct

from ...host.plain_text import displayed_line


class Target(NamedTuple):
    """What Prometheus scrapes: one exporter."""

    cluster: str
    job: str
    instance: str

    @property
    def host(self) -> str:
        """Its host, from its address."""
        name, _, port = self.instance.rpartition(":")
        return (name if name and port.isdigit() else self.instance).strip("[]")


class Labels(Struct, frozen=True, gc=False):
    """Labels of vramtop's metrics, dcgm-exporter's and ``up``; Prometheus adds ``cluster``, ``job``, ``instance``."""

    cluster: str = ""
    job: str = ""
    instance: str = ""
    host: str = ""
    driver_version: str = ""
    version: str = ""
    uuid: str = ""
    index: str = ""
    name: str = ""
    mig: str = ""
    field: str = ""
    reason: str = ""
    user: str = ""
    job_name: str = ""
    pid: str = ""
    run: str = ""
    rank: str = ""
    world_size: str = ""
    master: str = ""
    kind: str = ""
    vramtop_process_status: str = ""
    vramtop_pending_verdict: str = ""
    gpu: str = ""
    UUID: str = ""
    Hostname: str = ""
    modelName: str = ""  # noqa: N815 - as DCGM spells it
    GPU_I_ID: str = ""
    pod: str = ""
    namespace: str = ""
    exported_pod: str = ""
    exported_namespace: str = ""

    @property
    def target(self) -> Target:
        """The exporter that it comes from."""
        return Target(self.cluster, self.job, self.instance)


class Sample(Struct, frozen=True, gc=False):
    """One series and its value now."""

    metric: Labels
    value: tuple[float, str]

    @property
    def number(self) -> float | None:
        """The value; None: not a number."""
        try:
            number = float(self.value[1])
        except ValueError:
            return None
        return number if math.isfinite(number) else None


def whole(sample: Sample) -> int | None:
    """Return the value as a whole number, such as bytes; None: not a number."""
    number = sample.number
    return None if number is None else round(number)


@lru_cache(maxsize=65536)  # the same few texts at each reading
def plain(label: str) -> str | None:
    """Return a label as it may be shown: a line without secrets and control characters; None: empty."""
    return displayed_line(label) or None
