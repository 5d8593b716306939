"""Arguments of the alerts, for the dashboard and ``vramtop export``."""

import argparse


def add_alert_arguments(parser: argparse._ActionsContainer, *, after_command: bool = False) -> None:
    """Add ``--on-alert`` and ``--quiet-hours``.

    Args:
        parser: of a command, or a group of flags.
        after_command: it is a command's: what was not given there keeps the value from before the command.
    """
    default = argparse.SUPPRESS if after_command else None
    text = (
        "shell command to run when an alert fires or clears; it gets VRAMTOP_ALERT, VRAMTOP_ALERT_STATE and other facts"
    )
    parser.add_argument("--on-alert", metavar="COMMAND", default=default, help=text)
    text = "hours of the day, local time, in which nobody is told of alerts: 22:00-07:00, or off"
    parser.add_argument("--quiet-hours", type=_quiet_hours, metavar="HH:MM-HH:MM", default=default, help=text)


def _quiet_hours(text: str) -> str:
    from vramtop.estimator.common import InputError
    from vramtop.monitor.alerts import QuietHours  # only if they are given

    try:
        QuietHours.parse(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(error.message) from None
    return text
