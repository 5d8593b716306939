"""``vramtop --host``: the dashboard over several hosts, or one reading of them with ``--once``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.version import version_number
from vramtop.monitor.board.board import BEING_READ
from vramtop.monitor.fleet.remote import RemoteFleet, SshCommand, parse_hosts, read_hosts_file

from .fleet_options import print_fleet, refuse_what_is_for_one_host

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from vramtop.monitor.fleet.fleet import Fleet

_CONNECT_SECONDS = 15.0
"""Longest time until every host has answered once; ssh itself stops connecting after 10 s."""
_ATTACH_SECONDS = 4.0
"""Time for the hosts to read their training processes."""


def run(options: argparse.Namespace) -> int:
    """Show the hosts until the dashboard is quit, or print one reading of them; exit code 0, or 3 if none answers."""
    refuse_what_is_for_one_host(options, "--host")
    if options.once:
        return print_fleet(options, read_once(options))
    from .fleet_dashboard import require_terminal, show_fleet

    require_terminal()
    hosts = _hosts(options)
    name = f"{len(hosts)} hosts over ssh" if len(hosts) > 1 else f"{hosts[0]} over ssh"
    return show_fleet(options, RemoteFleet(hosts, _command(options)), name)


def read_once(options: argparse.Namespace) -> Fleet:
    """Read the hosts once, with the training processes that run there.

    Raises:
        InputError: a list of hosts is wrong.
        VramtopError: there is no ssh here.
    """
    source = RemoteFleet(_hosts(options), _command(options))
    try:
        fleet = source.wait(_CONNECT_SECONDS)
        return fleet if not options.attach else source.wait(_ATTACH_SECONDS, until=_is_attached)
    finally:
        source.close()


def _command(options: argparse.Namespace) -> SshCommand:
    return SshCommand(
        interval=options.interval,
        attaches=options.attach,
        bootstrap=options.bootstrap,
        version=version_number(),
        program=options.settings.values["hosts.ssh"],
    )


def _hosts(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the hosts of all options, each once."""
    groups = options.settings.values["hosts.groups"]
    found = [host for text in options.host for word in _in_place_of_groups(text, groups) for host in parse_hosts(word)]
    if options.hosts:
        found += read_hosts_file(Path(options.hosts))
    return tuple(dict.fromkeys(found))


def _in_place_of_groups(text: str, groups: Mapping[str, str | tuple[str, ...]]) -> Iterator[str]:
    """Yield the list with each ``@NAME`` in it replaced by the hosts of that group.

    Raises:
        InputError: there is no such group.
    """
    for word in text.split(",") if "@" in text else [text]:
        name = word.strip().removeprefix("@")
        if name == word.strip():
            yield word
        elif name in groups:
            hosts = groups[name]
            yield from [hosts] if isinstance(hosts, str) else hosts
        else:
            known = f"; those of your settings are {', '.join(groups)}" if groups else " in your settings"
            raise InputError(f"--host @{name}: there is no group {name}{known}; [hosts.groups] has them")


def _is_attached(fleet: Fleet) -> bool:
    """Return True if no host is still reading its training processes."""
    rows = (row for host in fleet.hosts if host.is_live for gpu in host.gpus for row in gpu.processes or ())
    return not any(row.note == BEING_READ for row in rows)
