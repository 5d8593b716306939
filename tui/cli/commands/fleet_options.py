"""Common parts of the dashboards over many hosts: options that they refuse, and one reading as text or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import ExitCode, InputError

if TYPE_CHECKING:
    import argparse

    from vramtop.monitor.fleet.fleet import Fleet


def refuse_what_is_for_one_host(options: argparse.Namespace, flag: str) -> None:
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
        "--signal-fit": options.signal_fit != "none",
    }
    if options.once and options.on_alert:
        raise InputError("--on-alert is for the dashboard; --once reads once")
    for name, value in given.items():
        if value:
            raise InputError(f"{name} is for one machine, not for {flag}")
    if options.job and options.once:
        raise InputError(
            f"--job with --once is for one machine; vramtop fit {options.job[0]} {flag} ... asks the hosts"
        )
    if options.job and len(options.job) > 1:
        raise InputError(f"--job: one job at a time can be judged with {flag}")


def print_fleet(options: argparse.Namespace, fleet: Fleet) -> int:
    """Print one reading; exit code 0, or 3 if the figures of no host are of now."""
    from ...draw.text_output import detect_output
    from .fleet_text import fleet_json, fleet_lines

    if options.json:
        import json

        print(json.dumps(fleet_json(fleet), indent=2))
    else:
        print("\n".join(fleet_lines(fleet, detect_output(ascii_only=options.ascii))))
    return ExitCode.DONE if any(host.is_live for host in fleet.hosts) else ExitCode.CANNOT_TELL
