"""``--user`` and ``--gpu``: which processes and GPUs the dashboard and ``--once`` display."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vramtop.monitor.board.display_filter import DisplayFilter


def add_display_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group(
        "filters",
        "GPU figures still cover the whole GPU, and a line says what is hidden.",
    )
    group.add_argument(
        "--user", dest="display_user", type=_users, metavar="NAME[,NAME]",
        help="show only processes of these users",
    )  # fmt: skip
    group.add_argument(
        "--gpu", dest="display_gpu", type=_devices, metavar="GPU[,GPU]",
        help="show only these GPUs, by index, range, MIG device, or uuid prefix: 0,2-3,0:3,GPU-5a3f",
    )  # fmt: skip


def display_filter(options: argparse.Namespace) -> DisplayFilter | None:
    """Return the filter that the options ask for; None: everything is displayed."""
    typed = _typed(options)
    if not typed:
        return None
    from vramtop.monitor.board.display_filter import DisplayFilter, parse_devices

    return DisplayFilter(
        text=" ".join(f"--{name} {value}" for name, value in typed.items()),
        users=frozenset(_parts(typed["user"])) if "user" in typed else None,
        devices=parse_devices(typed["gpu"]) if "gpu" in typed else None,
    )


def require_none_typed(options: argparse.Namespace) -> None:
    """Refuse the options before a command, where they would have no effect.

    Raises:
        InputError: one of them was typed.
    """
    for name, value in _typed(options).items():
        where = f"; put it behind {options.command}" if hasattr(options, name) else ""
        raise InputError(f"--{name} {value} filters the dashboard and --once{where}")


def _typed(options: argparse.Namespace) -> dict[str, str]:
    values = {name: getattr(options, f"display_{name}", None) for name in ("user", "gpu")}
    return {name: value for name, value in values.items() if value}


def _users(text: str) -> str:
    if not all(_parts(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of users: give names, such as ann or ann,bob")
    return text


def _devices(text: str) -> str:
    from vramtop.monitor.board.display_filter import parse_devices

    try:
        parse_devices(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(error.message) from None
    return text


def _parts(text: str) -> Sequence[str]:
    return [part.strip() for part in text.split(",")]
