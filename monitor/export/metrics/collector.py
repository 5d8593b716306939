"""Registry of prometheus-client that makes the metrics anew at each scrape, from the latest board."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .metric_table import TABLE
from .samples import all_samples

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

    from .latest_board import LatestBoard


def metrics_registry(latest: LatestBoard, version: str, *, with_process: bool = True) -> CollectorRegistry:
    """Return the registry of all metrics.

    Args:
        latest: the board.
        version: of vramtop.
        with_process: with prometheus-client's own metrics of the exporter's process (``process_cpu_seconds_total``);
            not in a file for node_exporter, which has metrics of these names itself.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_BoardCollector(latest, version))
    if with_process:
        ProcessCollector(registry=registry)
    return registry


class _BoardCollector:
    """Makes families of the samples; of samples with the same labels the first counts."""

    def __init__(self, latest: LatestBoard, version: str) -> None:
        self._latest = latest
        self._version = version

    def collect(self) -> Iterable[Family]:
        """Return the families that have a sample, in the order of the table."""
        from prometheus_client.core import Metric as Family

        values: dict[str, dict[tuple[str, ...], float]] = {}
        for metric, labels, value in all_samples(self._latest.state(), self._version):
            if value is not None:
                values.setdefault(metric.family, {}).setdefault(labels, value)
        for metric in TABLE:
            if metric.family not in values:
                continue
            family = Family(metric.family, metric.help, metric.type, metric.unit)
            names = metric.all_labels
            for labels, value in values[metric.family].items():
                family.add_sample(metric.name, dict(zip(names, labels, strict=True)), value)
            yield family
