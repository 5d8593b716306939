"""The source of fleets that asks one Prometheus: hosts of vramtop's exporter, then those of dcgm-exporter."""

import gc
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from ..fleet import Fleet, HostReading
from .client import PrometheusClient
from .dcgm_hosts import DCGM_USED, dcgm_hosts
from .series import Sample, Target, Vector, plain
from .vramtop_hosts import vramtop_hosts

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
        own = vramtop_hosts(self._ask, self._seen_at(_OWN, now))
        known = frozenset(gpu.uuid for host in own.values() for gpu in host.gpus if gpu.uuid)
        others = dcgm_hosts(self._ask, self._seen_at(DCGM_USED, now), known)
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
        down = {each.metric.target for each in self._ask("up == 0")} - speaking
        found: dict[_Place, HostReading] = {}
        if not down:
            return found
        read_at = {each.metric.target: each.number for each in self._ask(f"last_over_time({_READ_AT}[1h])")}
        for metric in ("vramtop_host_info", DCGM_USED):
            for sample in self._ask(f"last_over_time({metric}[1h])"):
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
            for sample in self._ask(f"max by (cluster, job, instance) (timestamp({metric}))")
            if sample.number is not None
        }

    def _ask(self, expression: str) -> list[Sample]:
        return self._client.query(expression, Vector).result


def _named_apart(hosts: Mapping[_Place, HostReading]) -> Collection[HostReading]:
    """Return the hosts by name; those of the same name with the address, or the cluster, of their exporter."""
    names = Counter(host.host for host in hosts.values())

    def named() -> Iterator[HostReading]:
        for place, host in hosts.items():
            apart = f"{place.target.cluster}/{place.target.instance}".strip("/")
            yield host if names[host.host] == 1 else replace(host, host=f"{host.host} ({apart})")

    return sorted(named(), key=lambda host: host.host)
