"""``vramtop --host``: the dashboard over several hosts, or one reading of them with ``--once``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vramtop.monitor.fleet.remote import RemoteFleet, SshCommand, parse_hosts, read_hosts_file

from ...version import version_number
from .fleet_options import print_fleet, refuse_what_is_for_one_host

if TYPE_CHECKING:
    import argparse

    from vramtop.monitor.fleet import Fleet

_CONNECT_SECONDS = 15.0
"""ssh gives up after ten."""
_ATTACH_SECONDS = 4.0
"""Time for the hosts to read their training processes."""


def run(options: argparse.Namespace) -> int:
    """Show the hosts until the dashboard is quit, or print one reading of them; exit code 0, or 3 if none answers."""
    refuse_what_is_for_one_host(options, "--host")
    hosts = _hosts(options)
    command = SshCommand(
        interval=options.interval,
        attaches=not options.no_attach,
        bootstrap=options.bootstrap,
        version=version_number(),
    )
    if options.once:
        return _print_once(options, RemoteFleet(hosts, command))
    from .fleet_dashboard import require_terminal, show_fleet

    require_terminal()
    name = f"{len(hosts)} hosts over ssh" if len(hosts) > 1 else f"{hosts[0]} over ssh"
    return show_fleet(options, RemoteFleet(hosts, command), name)


def _hosts(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the hosts of all options, each once."""
    found = [host for text in options.host for host in parse_hosts(text)]
    if options.hosts:
        found += read_hosts_file(Path(options.hosts))
    return tuple(dict.fromkeys(found))


def _print_once(options: argparse.Namespace, source: RemoteFleet) -> int:
    try:
        fleet = source.wait(_CONNECT_SECONDS)
        if not options.no_attach:
            fleet = source.wait(_ATTACH_SECONDS, until=_is_attached)
    finally:
        source.close()
    return print_fleet(options, fleet)


def _is_attached(fleet: Fleet) -> bool:
    """Return True if no host is still reading its training processes."""
    rows = (row for host in fleet.hosts if host.is_live for gpu in host.gpus for row in gpu.processes or ())
    return not any(row.note == "reading…" for row in rows)
