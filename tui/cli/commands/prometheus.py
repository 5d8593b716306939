"""``vramtop --prometheus``: the dashboard over the hosts that a Prometheus scrapes, or one reading with ``--once``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import InputError, VramtopError
from vramtop.monitor.fleet.prometheus.client import Credentials, PrometheusClient
from vramtop.monitor.fleet.prometheus.prometheus_fleet import PrometheusFleet

from .fleet_options import print_fleet, refuse_what_is_for_one_host

if TYPE_CHECKING:
    import argparse

    from vramtop.monitor.fleet.fleet import Fleet

USER_VARIABLE = "VRAMTOP_PROMETHEUS_USER"
PASSWORD_VARIABLE = "VRAMTOP_PROMETHEUS_PASSWORD"  # noqa: S105 - its name


def run(options: argparse.Namespace) -> int:
    """Show the hosts until the dashboard is quit, or print one reading; exit code 0, or 3 if there are no figures.

    Raises:
        InputError: an option is wrong.
        VramtopError: with ``--once``, Prometheus cannot be asked.
    """
    refuse_what_is_for_one_host(options, "--prometheus")
    if options.once:
        return print_fleet(options, read_once(options))
    from .fleet_dashboard import require_terminal, show_fleet

    client = _client(options)
    require_terminal()
    return show_fleet(options, PrometheusFleet(client), f"Prometheus at {client.host}")


def read_once(options: argparse.Namespace) -> Fleet:
    """Read the hosts once.

    Raises:
        InputError: an option is wrong.
        VramtopError: Prometheus cannot be asked, or has no figures of GPUs.
    """
    source = PrometheusFleet(_client(options))
    try:
        fleet = source.read()
    finally:
        source.close()
    if not fleet.hosts:
        raise VramtopError(fleet.notice or "Prometheus has no figures of GPUs")
    return fleet


def _client(options: argparse.Namespace) -> PrometheusClient:
    if options.host or options.hosts:
        raise InputError("--host and --hosts read hosts over ssh; leave them out with --prometheus")
    return PrometheusClient(options.prometheus, credentials(options))


def credentials(options: argparse.Namespace) -> Credentials:
    """Return how to authenticate, from files and the environment: other users see command lines.

    Raises:
        InputError: both ways are given.
    """
    user = os.environ.get(USER_VARIABLE)
    if user and options.prometheus_token_file:
        raise InputError(f"--prometheus-token-file and {USER_VARIABLE} are two ways to authenticate; give one")
    return Credentials(
        token_file=Path(options.prometheus_token_file) if options.prometheus_token_file else None,
        user=user or None,
        password=os.environ.get(PASSWORD_VARIABLE),
        ca_file=Path(options.prometheus_ca) if options.prometheus_ca else None,
    )
