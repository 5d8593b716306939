"""One reading of several hosts as JSON; unknown values are null."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, to_builtins

if TYPE_CHECKING:
    from vramtop.monitor.fleet.fleet import Fleet, FleetTotals, HostReading

    from .json_types.hosts import HostsJson, TotalsJson


def fleet_json(fleet: Fleet) -> HostsJson:
    """Return the fleet as ``--once --json`` prints it; unknown values are null."""
    return {
        "schema": 1,
        "time": datetime.fromtimestamp(fleet.time, timezone.utc).isoformat(),
        "source": {"kind": "hosts"},
        "notice": fleet.notice,
        "totals": _totals_json(fleet.totals),
        "hosts": [_host_json(fleet, host) for host in fleet.hosts],
    }


def _totals_json(totals: FleetTotals) -> TotalsJson:
    """Return the sums; their bytes are unknown if no GPU could be read."""
    sums = to_builtins(totals.gpus)
    if not totals.gpus.gpus:
        sums |= {name: None for name in sums if name.endswith("_bytes")}
    hosts = {"hosts": totals.hosts, "silent_hosts": totals.silent_hosts, "connecting_hosts": totals.connecting_hosts}
    return cast("TotalsJson", hosts | sums)


def _host_json(fleet: Fleet, host: HostReading) -> dict[str, Any]:
    """Return a host; figures of one that is not live are of ``age_seconds`` ago."""
    return {**_plain(host), "age_seconds": None if host.is_live else fleet.age_seconds(host)}


def _plain(value: Any) -> Any:
    """Return a record with all of its fields, those that are unknown as None."""
    if isinstance(value, Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
