"""The source of fleets that asks one Prometheus: vramtop's hosts, then those of other exporters."""

from __future__ import annotations

import gc
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..fleet import Fleet
from ..host_reading import HostReading
from .memory_history import memory_history
from .other_exporters import EXPORTERS, OtherVector, other_hosts
from .samples import Target, Vector, plain
from .vramtop_hosts import CONSTANT_METRICS, vramtop_hosts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from .client import PrometheusClient
    from .memory_history import MemoryReadings
    from .other_exporters import Exporter, OtherSample
    from .samples import Sample

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
