"""Arguments that several commands share, and the types of their values."""

import argparse
import re

_MAX_DIGITS = 10
_MAX_STEPS = 1000
_BYTES_DIGITS = 5
"""Digits from which a number without a unit is bytes."""
_GIGABYTES = re.compile(r"\s*gb?$", re.IGNORECASE)
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


def step_count(text: str) -> int:
    """Parse a number of steps that may be run."""
    count = _positive_integer(text, "number of steps")
    if count > _MAX_STEPS:
        raise argparse.ArgumentTypeError(f"{text} is more than {_MAX_STEPS} steps; from the second on they repeat")
    return count


def _positive_integer(text: str, quantity: str) -> int:
    if not text.isdecimal() or len(text) > _MAX_DIGITS or not 1 <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text[:80]} is not a valid {quantity}")
    return int(text)


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
    json, other = (argparse.SUPPRESS, argparse.SUPPRESS) if suppress_defaults else (False, None)
    group = parser.add_argument_group(EVERY_COMMAND)
    group.add_argument("--json", action="store_true", default=json, help="Print JSON.")
    text = "Draw with ASCII characters only (default: depends on the locale)."
    group.add_argument("--ascii", action=argparse.BooleanOptionalAction, default=other, help=text)
    text = "Show tokens, keys and passwords of command lines, which are masked otherwise (recordings never have them)."
    group.add_argument("--show-secrets", action="store_true", default=json, help=text)
    text = "Correct estimates by your measured runs, and keep measurements (default), or neither (vramtop history)."
    group.add_argument("--history", action=argparse.BooleanOptionalAction, default=other, help=text)
    text = "The settings file, in place of that of vramtop config --path; '' for none."
    group.add_argument("--config", metavar="FILE", default=other, help=text)
    text = "Python interpreter with torch and transformers, for exact counts and traces."
    group.add_argument("--python", metavar="PATH", default=other, help=text)


def add_estimate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the machine, the job with all of its settings, and the method of the estimate."""
    from ...job.flags import add_job_arguments

    _add_machine_arguments(parser)
    add_job_arguments(parser)
    add_method_argument(parser)


def add_method_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--method``."""
    parser.add_argument(
        "--method",
        choices=("auto", "formula", "exact", "traced"),
        default=None,
        help="formula: closed form, parameters counted from the config; exact: closed form, parameters counted on the "
        "built model; traced: one training step traced; auto: the most accurate that is available (default: auto).",
    )


def add_host_memory_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--host-memory``."""
    text = "Available CPU RAM, such as 256GiB (default: that of this machine; not checked for other machines)."
    parser.add_argument("--host-memory", "--host-ram", "--ram", metavar="GIB", type=size_in_gib, help=text)


def add_verbose_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--verbose``."""
    text = "List the assumptions of the estimate."
    parser.add_argument("-v", "--verbose", action="store_true", help=text)


def add_name_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--name`` of a command that serves something."""
    text = "Another name by which this machine is asked, such as a proxy's (repeatable)."
    parser.add_argument("--name", action="append", default=[], metavar="NAME", help=text)


def size_in_gib(text: str) -> str:
    """Return a size with its unit; a number alone is GiB, and so are GB, as cards and RAM are sold."""
    text = _GIGABYTES.sub("", text)
    return f"{text}GiB" if text.replace(".", "", 1).isdecimal() and len(text) < _BYTES_DIGITS else text


def _add_machine_arguments(parser: argparse.ArgumentParser) -> None:
    from ...job.flags import GPU_TYPE_FLAGS, GpuAction, GpuTypeAction, gpu_count

    group = parser.add_argument_group("machine (default: this one)")
    gpu = group.add_mutually_exclusive_group()
    text = "A GPU of the catalogue, by its usual name: 4090, h100, a100-80gb, RTX 3090; 8xh100: eight of them."
    gpu.add_argument(*GPU_TYPE_FLAGS, action=GpuTypeAction, metavar="NAME", help=text)
    text = "GPUs of this size, such as 24, 80GiB or 81559MiB; a number alone, or GB, is GiB."
    gpu.add_argument("--gpu-memory", "--vram", "--gpu-mem", metavar="GIB", type=size_in_gib, help=text)
    text = "Only these GPUs of this machine, such as 0,1; the name of a card is read as --gpu-type reads it."
    gpu.add_argument("--gpu", action=GpuAction, metavar="INDEX[,INDEX]|NAME", help=text)
    text = "Number of GPUs, over which --zero, --fsdp, --ddp and --strategy are spread (default: one for each rank)."
    group.add_argument("--gpus", type=gpu_count, metavar="N", help=text)
