"""Arguments about several hosts."""

import argparse
from typing import TYPE_CHECKING

from .shared_flags import positive_seconds, rare_group

if TYPE_CHECKING:
    from .parser import Parser


def add_stream_arguments(parser: "Parser") -> None:
    """Add the arguments of ``vramtop stream``."""
    parser.epilog = (
        "The first field of each line is the version of its schema; vramtop --host reads versions that differ by one. "
        "It ends when standard input or output is closed, so nothing is left running when a connection breaks."
    )
    text = "Attach to training processes automatically (default), or not: the lines have no budgets then."
    parser.add_argument("--attach", action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
    text = "Time between readings (default: 1)."
    parser.add_argument("--interval", type=positive_seconds, default=1.0, metavar="SECONDS", help=text)


def add_host_arguments(parser: argparse.ArgumentParser, *, suppress_defaults: bool = False) -> None:
    """Add ``--host``, ``--hosts`` and ``--bootstrap``, and ``--prometheus`` with its files.

    Args:
        parser: of vramtop itself or of a command.
        suppress_defaults: True for a command, whose defaults would overwrite what stood before the command.
    """
    one: object = argparse.SUPPRESS if suppress_defaults else None
    several: object = argparse.SUPPRESS if suppress_defaults else []
    group = rare_group(
        parser,
        "several hosts, over ssh",
        "vramtop stream runs on each, by your own configuration of ssh; VRAMTOP_SSH names another command. Nothing is "
        "copied.",
    )
    group.add_argument(
        "--host", action="append", default=several, metavar="HOST[,HOST]",
        help="read this host (repeatable): a, ann@b, a list as of Slurm, node[01-16,20], or @NAME, a group of yours",
    )  # fmt: skip
    text = "read the hosts of a file, one or a list per line"
    group.add_argument("--hosts", metavar="FILE", default=one, help=text)
    text = "what runs vramtop on a host where it is not installed: uvx downloads it there"
    group.add_argument("--bootstrap", choices=("uvx",), default=one, help=text)
    group = rare_group(
        parser,
        "many hosts, from a Prometheus",
        "From vramtop export on the hosts, or other GPU exporters. A user and a password are taken from "
        "VRAMTOP_PROMETHEUS_USER and VRAMTOP_PROMETHEUS_PASSWORD.",
    )
    text = "read the hosts that this Prometheus scrapes; without URL, that of your settings"
    group.add_argument("--prometheus", nargs="?", const="", metavar="URL", default=one, help=text)
    text = "a bearer token to authenticate with"
    group.add_argument("--prometheus-token-file", metavar="FILE", default=one, help=text)
    text = "certificates of the authority of its TLS certificate, in place of the system's"
    group.add_argument("--prometheus-ca", metavar="FILE", default=one, help=text)
