"""``--user``, ``--gpu`` and ``--only``: which processes and GPUs the dashboard and ``--once`` display."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.trust import user_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vramtop.monitor.board.display_filter import DisplayFilter
    from vramtop.monitor.storage.settings.in_force import SettingsInForce

_ONLY_HELP = (
    "show only processes that match every word: running (ran kernels in the last minute), diverging (over or under "
    "budget, growing, out of memory), mine; training, server, notebook, desktop (any one of these four)"
)


def add_display_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group(
        "filters",
        "GPU figures still cover the whole GPU, and a line says what is hidden. '' shows everything, whatever your "
        "settings say.",
    )
    group.add_argument(
        "--user", dest="display_user", type=_checked(_names), metavar="NAME[,NAME]",
        help="show only processes of these users",
    )  # fmt: skip
    group.add_argument(
        "--gpu", dest="display_gpu", type=_checked(_devices), metavar="GPU[,GPU]",
        help="show only these GPUs, by index, range, MIG device, or uuid prefix: 0,2-3,0:3,GPU-5a3f",
    )  # fmt: skip
    group.add_argument(
        "--only", dest="display_only", type=_checked(_only_words), metavar="WORD[,WORD]", help=_ONLY_HELP
    )


def display_filter(options: argparse.Namespace) -> DisplayFilter | None:
    """Return the filter that the options ask for; None: everything is displayed."""
    typed = _typed(options)
    if not typed:
        return None
    from vramtop.monitor.board.display_filter import ONLY_WORDS, DisplayFilter, parse_devices

    words = set(_parts(typed.get("only", "")))
    users = set(_parts(typed["user"])) if "user" in typed else None
    if "mine" in words:
        users = {_viewer()} if users is None else users & {_viewer()}
    return DisplayFilter(
        text=" ".join(f"{_said_by(options, name)} {value}" for name, value in typed.items()),
        users=None if users is None else frozenset(users),
        devices=parse_devices(typed["gpu"]) if "gpu" in typed else None,
        only=frozenset(word for word in ONLY_WORDS if word in words),
    )


def _said_by(options: argparse.Namespace, name: str) -> str:
    """Return the flag that hides something, or the setting."""
    setting = f"dashboard.{name}"
    settings: SettingsInForce | None = getattr(options, "settings", None)
    return f"--{name}" if settings is None or settings.origins[setting].startswith("--") else setting


def require_none_typed(options: argparse.Namespace) -> None:
    """Refuse the options before a command, where they would have no effect.

    Raises:
        InputError: one of them was typed.
    """
    for name, value in _typed(options).items():
        where = f"; put it behind {options.command}" if hasattr(options, name) else ""
        raise InputError(f"--{name} {value} filters the dashboard and --once{where}")


def _typed(options: argparse.Namespace) -> dict[str, str]:
    """Return the options with their texts; an empty one displays everything, whatever the settings say."""
    values = {name: getattr(options, f"display_{name}", None) for name in ("user", "gpu", "only")}
    return {name: value for name, value in values.items() if value}


def _checked(check: Callable[[str], object]) -> Callable[[str], str]:
    """Return an argument type that keeps the text, and turns an InputError into one of the parser."""

    def parse(text: str) -> str:
        try:
            if text:
                check(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(error.message) from None
        return text

    return parse


def _names(text: str) -> None:
    if not all(_parts(text)):
        raise InputError(f"{text!r} is not a list of users: give names, such as ann or ann,bob")


def _devices(text: str) -> None:
    from vramtop.monitor.board.display_filter import parse_devices

    parse_devices(text)


def _only_words(text: str) -> None:
    from vramtop.monitor.board.display_filter import ONLY_WORDS

    for word in _parts(text):
        if word not in ONLY_WORDS:
            raise InputError(f"{word!r} is not one of: {', '.join(ONLY_WORDS)}")


def _parts(text: str) -> Sequence[str]:
    return [part.strip() for part in text.split(",")]


def _viewer() -> str:
    """Return the user who runs vramtop, as the process table names him."""
    return user_name(os.getuid())
