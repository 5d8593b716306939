"""Many hosts, over ssh (``vramtop --host``) or from a Prometheus: the dashboard over them, or one reading."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins

from vramtop.estimator.common.errors import ExitCode, InputError, VramtopError
from vramtop.estimator.common.process_limit import require_threads

from ...draw.terminal_capabilities import is_dumb_terminal, prepare_textual
from ...draw.text_output import detect_output
from ..estimators import quick_estimate

if TYPE_CHECKING:
    import argparse

    from vramtop.monitor.fleet.fleet import Fleet, FleetSource, HostReading
    from vramtop.monitor.fleet.prometheus.prometheus_fleet import PrometheusFleet
    from vramtop.monitor.fleet.remote import RemoteFleet


_CONNECT_SECONDS = 15.0
"""Longest time until every host has answered once; ssh itself stops connecting after 10 s."""
_ATTACH_SECONDS = 4.0
"""Time for the hosts to read their training processes."""
USER_VARIABLE = "VRAMTOP_PROMETHEUS_USER"
PASSWORD_VARIABLE = "VRAMTOP_PROMETHEUS_PASSWORD"  # noqa: S105 - its name


def run(options: argparse.Namespace) -> int:
    """Show the hosts until the dashboard is quit, or print one reading; exit code 0, or 3 if no figures are of now.

    Raises:
        InputError: an option is wrong, or there is no terminal.
        VramtopError: with ``--once``, Prometheus cannot be asked, or there is no ssh here.
    """
    of_one_machine = {
        "--demo": options.demo,
        "--replay": options.replay,
        "--pid": options.pid,
        "--user": options.display_user,
        "--gpu": options.display_gpu,
        "--job": options.job,
    }
    if name := next((name for name, value in of_one_machine.items() if value), None):
        raise InputError(f"{name} is for one machine, not for {'--prometheus' if options.prometheus else '--host'}")
    if options.once:
        return _print_fleet(options, _read_once(options))
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        raise InputError("the dashboard needs a terminal; use --once for text or --once --json for scripts")
    if is_dumb_terminal():
        raise InputError("vramtop cannot draw on this terminal (TERM); use --once for text")
    source: FleetSource
    if options.prometheus:
        source, host = _prometheus(options)
        name = f"Prometheus at {host}"
    else:
        hosts = _hosts(options)
        source = _remote_fleet(options, hosts)
        name = f"{len(hosts)} hosts over ssh" if len(hosts) > 1 else f"{hosts[0]} over ssh"
    return _show(options, source, name)


def _read_once(options: argparse.Namespace) -> Fleet:
    """Read the hosts once, over ssh with the training processes that run there.

    Raises:
        InputError: an option is wrong.
        VramtopError: Prometheus cannot be asked, or has no figures of GPUs; or there is no ssh here.
    """
    if options.prometheus:
        with closing(_prometheus(options)[0]) as source:
            fleet = source.read()
        if not fleet.hosts:
            raise VramtopError(fleet.notice or "Prometheus has no GPU metrics")
        return fleet
    with closing(_remote_fleet(options, _hosts(options))) as remote:
        fleet = remote.wait(_CONNECT_SECONDS)
        return fleet if not options.attach else remote.wait(_ATTACH_SECONDS, until=_is_attached)


def _prometheus(options: argparse.Namespace) -> tuple[PrometheusFleet, str]:
    """Return the hosts of a Prometheus, and its own host.

    Its client authenticates from files and the environment: other users see command lines.
    """
    from vramtop.monitor.fleet.prometheus.client import Credentials, PrometheusClient
    from vramtop.monitor.fleet.prometheus.prometheus_fleet import PrometheusFleet

    if options.host:
        raise InputError("--host reads hosts over ssh; leave it out with --prometheus")
    user = os.environ.get(USER_VARIABLE)
    if user and options.prometheus_token_file:
        raise InputError(f"--prometheus-token-file and {USER_VARIABLE} are two ways to authenticate; give one")
    credentials = Credentials(
        token_file=Path(options.prometheus_token_file) if options.prometheus_token_file else None,
        user=user or None,
        password=os.environ.get(PASSWORD_VARIABLE),
        ca_file=Path(options.prometheus_ca) if options.prometheus_ca else None,
    )
    client = PrometheusClient(options.prometheus, credentials)
    return PrometheusFleet(client), client.host


def _remote_fleet(options: argparse.Namespace, hosts: tuple[str, ...]) -> RemoteFleet:
    from vramtop.monitor.fleet.remote import RemoteFleet
    from vramtop.monitor.fleet.ssh_command import SshCommand

    command = SshCommand(
        interval=options.interval,
        attaches=options.attach,
        program=options.settings.values["hosts.ssh"],
    )
    return RemoteFleet(hosts, command)


def _hosts(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the hosts of all options, each once."""
    from vramtop.monitor.fleet.ssh_command import parse_hosts

    return tuple(dict.fromkeys(host for text in options.host for host in parse_hosts(text)))


def _is_attached(fleet: Fleet) -> bool:
    """Return True if no host is still reading its training processes."""
    from vramtop.monitor.board.board import BEING_READ

    rows = (row for host in fleet.hosts if host.is_live for gpu in host.gpus for row in gpu.processes or ())
    return not any(row.note == BEING_READ for row in rows)


def _print_fleet(options: argparse.Namespace, fleet: Fleet) -> int:
    """Print one reading; exit code 0, or 3 if the figures of no host are of now."""
    if options.json:
        print(json.dumps(fleet_json(fleet), indent=2))
    else:
        from vramtop.monitor.fleet.hosts_board import HostsWatchlist, hosts_snapshot

        from ..board_text import board_lines

        name = f"{len(fleet.hosts)} host{'s' * (len(fleet.hosts) != 1)}"
        board = HostsWatchlist(quick_estimate).update(hosts_snapshot(fleet, name))
        print("\n".join(board_lines(board, detect_output(ascii_only=options.ascii))))
    return ExitCode.DONE if any(host.is_live for host in fleet.hosts) else ExitCode.CANNOT_TELL


_THREADS = 5
"""Textual's three, the one that reads the source, and the one that serves ssh."""


def _show(options: argparse.Namespace, source: FleetSource, name: str) -> int:
    """Show the hosts until the dashboard is quit; exit code 0.

    Args:
        options: of the command line.
        source: is closed at the end.
        name: what it reads, in a few words.
    """
    from vramtop.monitor.fleet.hosts_board import HostsSource, HostsWatchlist

    from .dashboard import app_notices, app_options_of, run_app

    depth = prepare_textual()
    from ...app.view_only_app import HostsApp

    require_threads(_THREADS)
    app_options = app_options_of(options, app_notices(options.settings), depth)
    return run_app(HostsApp(HostsSource(source, name), HostsWatchlist(quick_estimate), app_options), options)


def fleet_json(fleet: Fleet) -> dict[str, Any]:
    """Return the fleet as ``--once --json`` prints it; unknown values are null."""
    sums: dict[str, Any] = to_builtins(fleet.totals.gpus)
    if not fleet.totals.gpus.gpus:  # their bytes are unknown
        sums |= {name: None for name in sums if name.endswith("_bytes")}
    names = ("hosts", "silent_hosts", "connecting_hosts")
    return {
        "schema": 1,
        "time": datetime.fromtimestamp(fleet.time, timezone.utc).isoformat(),
        "source": {"kind": "hosts"},
        "notice": fleet.notice,
        "totals": {**{name: getattr(fleet.totals, name) for name in names}, **sums},
        "hosts": [_host_json(fleet, host) for host in fleet.hosts],
    }


def _host_json(fleet: Fleet, host: HostReading) -> dict[str, Any]:
    """Return a host; figures of one that is not live are of ``age_seconds`` ago."""
    return {**_plain(host), "age_seconds": None if host.is_live else fleet.age_seconds(host)}


def _plain(value: Any) -> Any:
    """Return a record with all of its fields, those that are unknown as None."""
    if isinstance(value, Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
