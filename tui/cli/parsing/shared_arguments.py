"""Arguments that several commands share, and the types of their values."""

import argparse
import re
from typing import Any

EVERY_COMMAND = "flags of every command"
"""Heading of the flags that the dashboard and all commands take."""
JOB_USAGE = "vramtop {0} JOB [FLAG ...]\n       vramtop {0} [FLAG ...] -- LAUNCH LINE"
"""Usage of a command that takes a job; ``{0}`` is its name."""


def positive_seconds(text: str) -> float:
    """Parse a duration between 0.1 s and one day."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 86400 seconds")
    return seconds


def process_id(text: str) -> int:
    """Parse a pid."""
    return _positive_integer(text, "pid")


_MAX_STEPS = 1000


def step_count(text: str) -> int:
    """Parse a number of steps that may be run."""
    count = _positive_integer(text, "number of steps")
    if count > _MAX_STEPS:
        raise argparse.ArgumentTypeError(
            f"{text} is more than {_MAX_STEPS} steps; from the second step on, memory repeats"
        )
    return count


_MAX_DIGITS = 10


def _positive_integer(text: str, quantity: str) -> int:
    if not text.isdecimal() or len(text) > _MAX_DIGITS or not 1 <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text[:80]} is not a valid {quantity}")
    return int(text)


def flag(parser: argparse._ActionsContainer, words: str, text: str, **more: Any) -> None:
    """Add an argument.

    Args:
        parser: of a command, or a group of its flags.
        words: its names and what stands for its value, such as ``-o --out FILE``; without that it is a switch.
        text: its help.
        more: further settings of ``add_argument``.
    """
    *names, last = words.split()
    if last.startswith("-"):
        parser.add_argument(*names, last, help=text, **({"action": "store_true"} | more))
    else:
        parser.add_argument(*names, metavar=last, help=text, **more)


def rare_group(parser: argparse.ArgumentParser, heading: str, text: str | None = None) -> "argparse._ArgumentGroup":
    """Return a new group of flags that the short help leaves out."""
    group = parser.add_argument_group(heading, text)
    group.is_rare = True  # type: ignore[attr-defined]
    return group


def add_output_arguments(parser: argparse.ArgumentParser, *, suppress_defaults: bool) -> None:
    """Add the flags that stand before or after the command, such as ``--json`` and ``--config``.

    Args:
        parser: of vramtop itself or of a command.
        suppress_defaults: True for a command, whose defaults would overwrite what stood before the command.
    """
    switch, other = (argparse.SUPPRESS, argparse.SUPPRESS) if suppress_defaults else (False, None)
    group = parser.add_argument_group(EVERY_COMMAND)
    flag(group, "--json", "Print JSON.", default=switch)
    text = "Draw with ASCII characters only (default: depends on the locale)."
    group.add_argument("--ascii", action=argparse.BooleanOptionalAction, default=other, help=text)
    text = "Show tokens, keys and passwords in command lines; recordings never have them."
    flag(group, "--show-secrets", text, default=switch)
    text = "Correct estimates by your measured runs and save new ones (default), or neither."
    group.add_argument("--history", action=argparse.BooleanOptionalAction, default=other, help=text)
    text = "Settings file (default: the one that vramtop config names); '' for none."
    flag(group, "--config FILE", text, default=other)
    text = "Python interpreter of the job, with torch and transformers: for exact counts, traces and versions."
    flag(group, "--python PATH", text, default=other)


def add_described_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the machine, and the job with all of its settings."""
    from ...job.flags.gpu_flags import GPU_TYPE_FLAGS, GpuAction, GpuCountAction, GpuTypeAction
    from ...job.flags.job_flags import add_job_arguments

    parser.usage = JOB_USAGE.format(parser.prog.partition(" ")[2])
    group = parser.add_argument_group("machine (default: this one)")
    gpu = group.add_mutually_exclusive_group()
    text = "A GPU by its usual name: 4090, h100, a100-80gb, RTX 3090; 8xh100: eight of them."
    gpu.add_argument(*GPU_TYPE_FLAGS, action=GpuTypeAction, metavar="NAME", help=text)
    text = "GPUs of this size, such as 24, 80GiB or 81559MiB; GB is GiB."
    flag(gpu, "--gpu-memory --vram --gpu-mem GIB", text, type=size_in_gib)
    flag(gpu, "--gpu INDEX[,INDEX]|NAME", "Only these GPUs of this machine, such as 0,1.", action=GpuAction)
    text = "Number of GPUs for --zero, --fsdp, --ddp and --strategy (default: one per rank)."
    flag(group, "--gpus N", text, action=GpuCountAction)
    add_job_arguments(parser)


def add_estimate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the machine, the job with all of its settings, and the method of the estimate."""
    add_described_job_arguments(parser)
    add_method_argument(parser)
    add_rehearse_argument(parser)


def add_rehearse_argument(parser: argparse.ArgumentParser, when: str = "") -> None:
    """Add ``--rehearse``, ``--read-only``, ``--offline`` and ``--data``."""
    group = parser.add_mutually_exclusive_group()
    text = "Run the program without a GPU (-- or [program])."
    flag(group, "--rehearse", f"{when}{text}", default=None)
    text = "Only read the program; do not ask to run it."
    group.add_argument("--read-only", action="store_false", dest="rehearse", default=None, help=f"{when}{text}")
    add_run_arguments(rare_group(parser, "with --rehearse"))


def add_run_arguments(parser: "argparse._ActionsContainer") -> None:
    """Add ``--offline`` and ``--data``."""
    text = "Run the program without network access."
    parser.add_argument("--offline", action="append_const", dest="set", const="program.offline=true", help=text)
    text = "Use stand-ins for missing data sets: synthetic[,words=2048][,image=1024x1024]."
    flag(parser, "--data synthetic[,SIZES]", text, action="append", dest="set", type="program.data='{}'".format)


def add_method_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--method``."""
    parser.add_argument(
        "--method",
        choices=("auto", "formula", "exact", "traced"),
        default=None,
        help=(
            "formula: closed form, parameters counted from the config; exact: on the built model; traced: one traced "
            "training step; auto (default): the most accurate available."
        ),
    )


def add_host_memory_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--host-memory``."""
    text = "Available CPU RAM, such as 256GiB (default: this machine's; of other machines: not checked)."
    flag(parser, "--host-memory --host-ram --ram GIB", text, type=size_in_gib)


def add_verbose_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--verbose``."""
    flag(parser, "-v --verbose", "List the assumptions of the estimate.")


def add_name_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--name`` of a command that serves something."""
    text = "Another accepted host name of this machine, such as a proxy's (repeatable)."
    flag(parser, "--name NAME", text, action="append", default=[])


_BYTES_DIGITS = 5
"""Digits from which a number without a unit is bytes."""
_GIGABYTES = re.compile(r"\s*gb?$", re.IGNORECASE)


def size_in_gib(text: str) -> str:
    """Return a size with its unit; a number alone is GiB, and so are GB, as cards and RAM are sold."""
    text = _GIGABYTES.sub("", text)
    return f"{text}GiB" if text.replace(".", "", 1).isdecimal() and len(text) < _BYTES_DIGITS else text


def add_reading_arguments(parser: argparse.ArgumentParser, interval: float | str = 1.0) -> None:
    """Add ``--attach`` and ``--interval``."""
    text = "Attach to training processes automatically (default), or not."
    parser.add_argument("--attach", action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
    flag(parser, "--interval SECONDS", "Time between readings (default: 1).", type=positive_seconds, default=interval)


def add_host_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--host``, and ``--prometheus`` with its files."""
    group = rare_group(
        parser,
        "several hosts, over ssh",
        "vramtop stream runs on each host, by your own ssh (or VRAMTOP_SSH). Nothing is copied.",
    )
    group.add_argument(
        "--host", action="append", default=[], metavar="HOST[,HOST]",
        help="read this host (repeatable): a, ann@b, or a Slurm-style list, node[01-16,20]",
    )  # fmt: skip
    group = rare_group(
        parser,
        "many hosts, from Prometheus",
        "User and password come from VRAMTOP_PROMETHEUS_USER and VRAMTOP_PROMETHEUS_PASSWORD.",
    )
    text = "read the hosts that this Prometheus scrapes (default URL: from your settings)"
    flag(group, "--prometheus URL", text, nargs="?", const="")
    flag(group, "--prometheus-token-file FILE", "a bearer token to authenticate with")
    flag(group, "--prometheus-ca FILE", "CA certificates for its TLS certificate (default: the system's)")
