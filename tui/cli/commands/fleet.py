"""Many hosts, over ssh (``vramtop --host``) or from a Prometheus: the dashboard over them, or one reading."""

from __future__ import annotations

import json
import os
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from vramtop.estimator.common.errors import ExitCode, InputError, VramtopError, require_threads
from vramtop.estimator.common.sizes import format_gib, format_size
from vramtop.estimator.common.version import version_number
from vramtop.monitor.host.plain_text import duration_text

from ...draw.palette import budget_size, status_mark
from ...draw.text_output import detect_output, format_table, is_dumb_terminal, prepare_textual

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from vramtop.monitor.fleet.fleet import (
        Fleet,
        FleetGpu,
        FleetProcess,
        FleetSource,
        FleetTotals,
        HostReading,
        HostTotals,
    )
    from vramtop.monitor.fleet.prometheus.client import PrometheusClient
    from vramtop.monitor.fleet.prometheus.prometheus_fleet import PrometheusFleet
    from vramtop.monitor.fleet.remote import RemoteFleet

    from ...draw.text_output import TextOutput
    from ..json_types import HostsJson, TotalsJson

_CONNECT_SECONDS = 15.0
"""Longest time until every host has answered once; ssh itself stops connecting after 10 s."""
_ATTACH_SECONDS = 4.0
"""Time for the hosts to read their training processes."""
_THREADS = 5
"""Textual's three, the one that reads the source, and the one that serves ssh."""
USER_VARIABLE = "VRAMTOP_PROMETHEUS_USER"
PASSWORD_VARIABLE = "VRAMTOP_PROMETHEUS_PASSWORD"  # noqa: S105 - its name


def run(options: argparse.Namespace) -> int:
    """Show the hosts until the dashboard is quit, or print one reading; exit code 0, or 3 if no figures are of now.

    Raises:
        InputError: an option is wrong, or there is no terminal.
        VramtopError: with ``--once``, Prometheus cannot be asked, or there is no ssh here.
    """
    _refuse_what_is_for_one_host(options, "--prometheus" if options.prometheus else "--host")
    if options.once:
        return _print_fleet(options, _read_once(options))
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        raise InputError("the dashboard needs a terminal; use --once for text or --once --json for scripts")
    if is_dumb_terminal():
        raise InputError("vramtop cannot draw on this terminal (TERM); use --once for text")
    source: FleetSource
    if options.prometheus:
        client = _prometheus(options)
        source, name = _prometheus_fleet(client), f"Prometheus at {client.host}"
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
        source = _prometheus_fleet(_prometheus(options))
        try:
            fleet = source.read()
        finally:
            source.close()
        if not fleet.hosts:
            raise VramtopError(fleet.notice or "Prometheus has no GPU metrics")
        return fleet
    remote = _remote_fleet(options, _hosts(options))
    try:
        fleet = remote.wait(_CONNECT_SECONDS)
        return fleet if not options.attach else remote.wait(_ATTACH_SECONDS, until=_is_attached)
    finally:
        remote.close()


def _prometheus(options: argparse.Namespace) -> PrometheusClient:
    """Return the client, which authenticates from files and the environment: other users see command lines."""
    from vramtop.monitor.fleet.prometheus.client import Credentials, PrometheusClient

    if options.host or options.hosts:
        raise InputError("--host and --hosts read hosts over ssh; leave them out with --prometheus")
    user = os.environ.get(USER_VARIABLE)
    if user and options.prometheus_token_file:
        raise InputError(f"--prometheus-token-file and {USER_VARIABLE} are two ways to authenticate; give one")
    credentials = Credentials(
        token_file=Path(options.prometheus_token_file) if options.prometheus_token_file else None,
        user=user or None,
        password=os.environ.get(PASSWORD_VARIABLE),
        ca_file=Path(options.prometheus_ca) if options.prometheus_ca else None,
    )
    return PrometheusClient(options.prometheus, credentials)


def _prometheus_fleet(client: PrometheusClient) -> PrometheusFleet:
    from vramtop.monitor.fleet.prometheus.prometheus_fleet import PrometheusFleet

    return PrometheusFleet(client)


def _remote_fleet(options: argparse.Namespace, hosts: tuple[str, ...]) -> RemoteFleet:
    from vramtop.monitor.fleet.remote import RemoteFleet, SshCommand

    command = SshCommand(
        interval=options.interval,
        attaches=options.attach,
        bootstrap=options.bootstrap,
        version=version_number(),
        program=options.settings.values["hosts.ssh"],
    )
    return RemoteFleet(hosts, command)


def _hosts(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the hosts of all options, each once."""
    from vramtop.monitor.fleet.remote import parse_hosts, read_hosts_file

    found = [host for text in options.host for host in parse_hosts(text)]
    if options.hosts:
        found += read_hosts_file(Path(options.hosts))
    return tuple(dict.fromkeys(found))


def _is_attached(fleet: Fleet) -> bool:
    """Return True if no host is still reading its training processes."""
    from vramtop.monitor.board.board import BEING_READ

    rows = (row for host in fleet.hosts if host.is_live for gpu in host.gpus for row in gpu.processes or ())
    return not any(row.note == BEING_READ for row in rows)


def _refuse_what_is_for_one_host(options: argparse.Namespace, flag: str) -> None:
    """Refuse options that read or choose parts of one machine.

    Args:
        options: of the command line.
        flag: the one that asks for many hosts.

    Raises:
        InputError: one is given.
    """
    given = {
        "--demo": options.demo,
        "--replay": options.replay,
        "--pid": options.pid,
        "--user": options.display_user,
        "--gpu": options.display_gpu,
        "--only": options.display_only,
        "--on-fit": options.on_fit,
        "--on-alert": options.on_alert,
        "--signal-alert": options.signal_alert != "none",
        "--signal-fit": options.signal_fit != "none",
    }
    for name, value in given.items():
        if value:
            raise InputError(f"{name} is for one machine, not for {flag}")
    if options.job:
        raise InputError(f"--job is for one machine, not for {flag}")


def _print_fleet(options: argparse.Namespace, fleet: Fleet) -> int:
    """Print one reading; exit code 0, or 3 if the figures of no host are of now."""
    if options.json:
        print(json.dumps(fleet_json(fleet), indent=2))
    else:
        print("\n".join(fleet_lines(fleet, detect_output(ascii_only=options.ascii))))
    return ExitCode.DONE if any(host.is_live for host in fleet.hosts) else ExitCode.CANNOT_TELL


def _show(options: argparse.Namespace, source: FleetSource, name: str) -> int:
    """Show the fleet until the dashboard is quit; exit code 0.

    Args:
        options: of the command line.
        source: is closed at the end.
        name: what it reads, in a few words.
    """
    from vramtop.monitor.storage.settings.change import save_setting
    from vramtop.monitor.storage.settings.schema import THEME

    from ...background.notices import Notices
    from ..crash_report import crash_sentence
    from ..estimators import quick_estimate
    from ..option_settings import settings_notices

    depth = prepare_textual()
    from vramtop.monitor.fleet.hosts_board import HostsSource, HostsWatchlist

    from ...app.app import AppOptions
    from ...app.hosts_app import HostsApp

    require_threads(_THREADS)
    notices = Notices(settings_notices(options.settings))
    app = HostsApp(
        HostsSource(source, name),
        HostsWatchlist(quick_estimate),
        AppOptions(
            interval=options.interval,
            ascii_only=detect_output(ascii_only=options.ascii).ascii_only,
            colours=depth,
            theme=options.settings.values[THEME],
            settings=dict(options.settings.values),
            notices=notices,
            save_setting=lambda name, value: save_setting(name, value, notices.add),
        ),
    )
    threading.excepthook = lambda failed: notices.add(crash_sentence(failed.exc_value or failed.exc_type()))
    app.run(mouse=options.mouse)
    if app.crash is not None:
        raise app.crash
    return app.return_code or 0


# One reading as JSON and as text.


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
    sums, known = totals.gpus, totals.gpus.gpus > 0
    return {
        "hosts": totals.hosts,
        "silent_hosts": totals.silent_hosts,
        "connecting_hosts": totals.connecting_hosts,
        "gpus": sums.gpus,
        "unknown_gpus": sums.unknown_gpus,
        "total_bytes": sums.total_bytes if known else None,
        "used_bytes": sums.used_bytes if known else None,
        "free_bytes": sums.free_bytes if known else None,
        "committed_bytes": sums.committed_bytes if known else None,
        "unattributed_bytes": sums.unattributed_bytes if known else None,
        "unattributed_unknown": sums.unattributed_unknown,
        "processes": sums.processes,
        "diverging": sums.diverging,
    }


def _host_json(fleet: Fleet, host: HostReading) -> dict[str, Any]:
    """Return a host; figures of one that is not live are of ``age_seconds`` ago."""
    return {**_plain(host), "age_seconds": None if host.is_live else fleet.age_seconds(host)}


def _plain(value: Any) -> Any:
    """Return a record with all of its fields, those that are unknown as None."""
    if isinstance(value, Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def fleet_lines(fleet: Fleet, output: TextOutput) -> Iterator[str]:
    """Yield the fleet as text: sums, hosts with their GPUs and processes."""
    totals = fleet.totals
    gpus = totals.gpus
    silent = f", {totals.silent_hosts} silent" if totals.silent_hosts else ""
    unknown = f" ({gpus.unknown_gpus} more n/a)" if gpus.unknown_gpus else ""
    yield output.text(
        f"{_count(totals.hosts, 'host')}{silent}, {_count(gpus.gpus, 'GPU')}{unknown}: "
        f"{_sum(gpus, gpus.free_bytes)} free, "
        f"{_sum(gpus, gpus.committed_bytes)} committed, {_sum(gpus, gpus.unattributed_bytes)} unattributed; "
        f"{_count(gpus.processes, 'process', 'processes')}, {gpus.diverging} diverging"
    )
    rows: list[tuple[str, ...]] = []
    for host in fleet.hosts:
        if not host.is_live:
            yield output.text(f"{host.host}: {_absence(fleet, host)}")
            continue
        rows += [_gpu_cells(host, gpu) for gpu in host.gpus]
    yield from format_table([[output.text(cell) for cell in row] for row in rows], "<<<>>><")
    processes = [
        [output.text(cell) for cell in _process_cells(host, gpu, process)]
        for host in fleet.hosts
        if host.is_live
        for gpu in host.gpus
        for process in gpu.processes or ()
    ]
    yield from ["", *format_table(processes, "<<<<>><")] if processes else []
    yield from (output.text(f"{host.host}: {fault}") for host in fleet.hosts if host.is_live for fault in host.faults)


def _count(number: int, noun: str, nouns: str = "") -> str:
    return f"{number} {noun if number == 1 else nouns or f'{noun}s'}"


def _sum(totals: HostTotals, size_bytes: int) -> str:
    return format_size(size_bytes) if totals.gpus else "n/a"


def _absence(fleet: Fleet, host: HostReading) -> str:
    """Return why a host has no figures of now, and how old the last ones are."""
    age = fleet.age_seconds(host)
    last = "" if age is None else f" (last reading {duration_text(age)} ago)"
    return f"{host.state}{last}: {host.reason or 'no reason known'}"


def _gpu_cells(host: HostReading, gpu: FleetGpu) -> tuple[str, ...]:
    return (
        host.host,
        f"GPU {gpu.shown_label}",
        gpu.name or "name n/a",
        "memory n/a"
        if gpu.total_bytes is None
        else f"{format_gib(gpu.used_bytes)} of {format_gib(gpu.total_bytes)} GiB in use",
        "" if gpu.total_bytes is None else f"{format_gib(gpu.free_bytes)} free",
        "" if not gpu.committed_bytes else f"{format_gib(gpu.committed_bytes)} committed",
        gpu.fault or "",
    )


def _process_cells(host: HostReading, gpu: FleetGpu, process: FleetProcess) -> tuple[str, ...]:
    return (
        host.host,
        f"pid {process.pid}" if process.pid is not None else "",
        process.user or "user n/a",
        f"GPU {process.device or gpu.shown_label}",
        "memory n/a" if process.used_bytes is None else f"{format_gib(process.used_bytes)} GiB",
        f"budget {budget_size(process.budget_bytes, process.status)}" if process.budget_bytes is not None else "",
        " ".join(
            filter(
                None,
                (status_mark(process.status).word if process.status else process.note, process.job or process.command),
            )
        ),
    )
