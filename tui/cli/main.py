"""The command line: parses, runs one command, and turns failures into one sentence and an exit code."""

import argparse
import gc
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from vramtop.estimator.common.errors import InputError, VramtopError

from ..draw.text_output import printable
from .streams import flush_output, open_closed_streams, report_write_error

_COMMANDS = {
    "estimate": "what a training job will take, by phase and component",
    "fit": "whether a job fits on these GPUs as they are now (exit code 0 yes, 1 no, 3 cannot tell, 4 tight)",
    "preflight": "whether all that a job needs is there (exit code 0 nothing fails, 1 something does, 3 cannot tell)",
    "attach": "read a running training process and hold it against its budget",
    "run": "start a command unchanged, with a probe in its Python processes that import torch",
    "record": "record the GPUs to a file that --replay plays",
    "doctor": "one page about this machine for a bug report (exit code 3: the driver does not answer)",
}

_WITH_VALUE = ("--replay", "--pid", "--job", "--interval", "--python", "--signal-fit", "--on-fit")
"""Options before the command that take a value."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run vramtop; the exit code of the process."""
    open_closed_streams()
    try:
        return flush_output(_main(list(sys.argv[1:] if argv is None else argv)))
    except SystemExit as end:  # of the parser, after help or a complaint
        return flush_output(end.code if isinstance(end.code, int) else 0)
    except VramtopError as error:
        print(f"vramtop: {printable(error.message)}", file=sys.stderr)
        return flush_output(error.exit_code)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - whatever it is, a user gets a sentence
        if isinstance(error, OSError) and error.filename is None:  # a file has a name, a stream has none
            return report_write_error(error)
        from .crash_report import report_crash

        return flush_output(report_crash(error))


def _main(words: list[str]) -> int:
    launch = None
    if "--" in words:
        at = words.index("--")
        words, launch = words[:at], words[at + 1 :]
    return _run(build_parser(_command_in(words)).parse_args(words), launch)


def _command_in(words: Sequence[str]) -> str | None:
    """The command among the words, before they are parsed: a value of an option is none."""
    values = {at + 1 for at, word in enumerate(words) if word in _WITH_VALUE}
    return next((word for at, word in enumerate(words) if word in _COMMANDS and at not in values), None)


def _run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    asked = [f"--{name}" for name in ("demo", "replay") if getattr(options, name)]
    if asked and (options.command or options.once):
        raise InputError(f"{asked[0]} is for the dashboard; {options.command or '--once'} looks at this machine")
    if options.command:
        return int(importlib.import_module(f".commands.{options.command}", __package__).run(options, launch))
    if launch is not None:
        raise InputError("a launch line after -- goes with a command, such as vramtop fit -- torchrun train.py ...")
    if options.json and not options.once:
        raise InputError("--json goes with --once or with a command")
    name = "once" if options.once else "dashboard"
    gc.disable()  # a start makes 100,000 objects and no garbage; the dashboard enables it once it is drawn
    try:
        return int(importlib.import_module(f".commands.{name}", __package__).run(options))
    finally:
        gc.freeze()  # nor need the interpreter look through all of them at its end
        gc.enable()


class _Parser(argparse.ArgumentParser):
    """Errors in one sentence, exit code 2."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def build_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands and options.

    Args:
        chosen: the command whose own arguments are needed: making them takes imports that the dashboard can do without.
    """
    parser = _Parser(
        prog="vramtop",
        description="Live GPU memory beside a predicted training budget. Without a command: the dashboard.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--demo", action="store_true", help="play the demo recording")
    source.add_argument("--replay", metavar="FILE", help="play a recording")
    parser.add_argument("--pid", type=_pid, help="attach to this process")
    parser.add_argument("--job", action="append", default=[], metavar="FILE", help="a job that waits (repeatable)")
    parser.add_argument("--interval", type=_seconds, default=1.0, metavar="SECONDS", help="time between readings")
    words = "how to tell that a job that waits begins or ceases to fit"
    parser.add_argument("--signal-fit", choices=("none", "bell", "desktop"), default="none", help=words)
    words = (
        "run this in a shell when a job that waits begins to fit, with VRAMTOP_JOB and VRAMTOP_GPUS in its environment"
    )
    parser.add_argument("--on-fit", metavar="COMMAND", help=words)
    parser.add_argument("--read-only", action="store_true", help="the dashboard ends no process")
    parser.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    parser.add_argument("--once", action="store_true", help="print one reading and exit")
    _add_common(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, words in _COMMANDS.items():
        command = commands.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
        if name == chosen:
            globals()[f"_{name}_arguments"](command)
            _add_common(command)
    return parser


def _estimate_arguments(parser: argparse.ArgumentParser) -> None:
    from ..job.load_job import add_job_arguments

    add_job_arguments(parser)
    _machine_arguments(parser)
    _method_argument(parser)


def _fit_arguments(parser: argparse.ArgumentParser) -> None:
    _estimate_arguments(parser)
    _host_argument(parser)
    words = "the largest micro-batch is one with which some accumulation keeps the sequences per step"
    parser.add_argument("--keep-global-batch", action="store_true", help=words)
    group = parser.add_argument_group("waiting")
    group.add_argument(
        "--wait", action="store_true", help="wait until it fits on GPUs of this machine; then exit code 0"
    )
    group.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", help="give up after so long, with the verdict's code"
    )
    group.add_argument("--interval", type=_seconds, default=2.0, metavar="SECONDS", help="time between looks")
    words = "then become this command (the rest of the line; without one, the launch line), on the GPUs that were found"
    group.add_argument("--exec", nargs=argparse.REMAINDER, metavar="COMMAND", help=words)


def _preflight_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Exit codes: 0 nothing fails, though there may be warnings, a tight fit among them; 1 a check fails: the job "
        "would not run; 2 wrong input; 3 nothing fails, but the driver, the memory or the model's files, without "
        "which nobody can say that the job may start, could not be told. A check of anything else that could not be "
        "told, or not in time, is a warning. --python names the interpreter that will run the job; else it is that of "
        "the launch line, of the active environment, or vramtop's own. What only preflight asks stands in the job "
        "file's [run] table: output_dir, save_total_limit, logging_dir, report_to, inference_endpoint, inference_key, "
        "required_environment."
    )
    _estimate_arguments(parser)
    _host_argument(parser)
    words = "so long each check may take at most (else its own limit, 30 to 120 s)"
    parser.add_argument("--timeout", type=_seconds, default=None, metavar="SECONDS", help=words)


def _attach_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("process", type=_pid, metavar="PID", help="any process of the run: a rank or its launcher")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="fill in or correct a setting")
    trusted = "model.trust_remote_code=true"
    parser.add_argument(
        "--trust-remote-code", action="append_const", dest="set", const=trusted, help="run code in the model's folder"
    )
    _method_argument(parser)


def _record_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the recording, such as run.jsonl.gz")
    parser.add_argument("--seconds", type=_seconds, default=None, help="end after so many seconds")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it is there")
    parser.add_argument("--interval", type=_seconds, default=1.0, metavar="SECONDS", help="time between readings")


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Names of people and hosts, command lines and secrets are left out."


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "vramtop run -- COMMAND [ARGUMENT ...]"


def _machine_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the machine (this one when left out)")
    card = group.add_mutually_exclusive_group()
    card.add_argument("--gpu-type", metavar="NAME", help="a card of the catalogue, such as h100-80gb")
    card.add_argument("--gpu-memory", metavar="SIZE", help="a card of this size, such as 80GiB or 81559MiB")
    card.add_argument("--gpu", metavar="INDEX[,INDEX]", help="these GPUs of this machine only")
    group.add_argument("--gpus", type=_count, metavar="N", help="so many of them (as many as the job has ranks)")


def _host_argument(parser: argparse.ArgumentParser) -> None:
    words = "RAM that the machine can give, such as 256GiB (this machine's own when left out; else not looked at)"
    parser.add_argument("--host-memory", metavar="SIZE", help=words)


def _method_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--method",
        choices=("auto", "formula", "exact", "traced"),
        default="auto",
        help="formula: from the shape; exact: parameters counted on the built model; auto: the deepest that can be had",
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    # a command's own default would overwrite what was said before the command
    flag, path = (False, None) if parser.prog == "vramtop" else (argparse.SUPPRESS, argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", default=flag, help="print JSON")
    ascii_default = None if parser.prog == "vramtop" else argparse.SUPPRESS
    words = "ASCII characters only, or all; as the locale has it when left out"
    parser.add_argument("--ascii", action=argparse.BooleanOptionalAction, default=ascii_default, help=words)
    words = "interpreter with torch and transformers, for exact counts"
    parser.add_argument("--python", metavar="PATH", default=path, help=words)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 86400 seconds")
    return seconds


def _count(text: str) -> int:
    return _whole(text, "number of GPUs")


def _pid(text: str) -> int:
    return _whole(text, "pid")


def _whole(text: str, what: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:10]) < 2**31:
        raise argparse.ArgumentTypeError(f"{text} is no {what}")
    return int(text)


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: that takes as long as half of the parser."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("vramtop-budget")
        except PackageNotFoundError:
            number = "(not installed)"
        print(f"vramtop {number}")
        parser.exit()
