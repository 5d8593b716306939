"""The command line: parse the arguments, run one command, and turn errors into one sentence and an exit code."""

import argparse
import gc
import importlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from vramtop.estimator.common import InputError, VramtopError, caused_by_process_limit, mask_line, show_secrets

from ..draw import printable
from .shared_flags import add_output_arguments, positive_seconds, process_id
from .streams import flush_output, open_closed_streams, report_write_error

COMMANDS = {
    "estimate": "predict the memory of a training job, by phase and component",
    "fit": "check whether a job fits on these GPUs now (exit code 0 fits, 1 does not fit, 3 cannot tell, 4 tight)",
    "preflight": "check everything that a job needs (exit code 0 nothing fails, 1 a check fails, 3 cannot tell)",
    "attach": "read a running training process and compare it with its budget",
    "run": "start a command unchanged, with a memory probe in its Python processes that import torch",
    "record": "record the GPUs to a file for --replay",
    "doctor": "print one page about this machine for a bug report (exit code 3: the driver does not answer)",
}
"""Commands and their help.

Each is a module of ``commands`` with ``add_arguments(parser)``, which describes its arguments, and
``run(options, launch)``, which takes the parsed options and the launch line after ``--`` and returns the exit code.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run vramtop and return the exit code of the process."""
    open_closed_streams()
    try:
        return flush_output(_main(list(sys.argv[1:] if argv is None else argv)))
    except SystemExit as end:  # raised by the parser after help or an error
        return flush_output(end.code if isinstance(end.code, int) else 0)
    except VramtopError as error:
        print(f"vramtop: {printable(error.message)}", file=sys.stderr)
        return flush_output(error.exit_code)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - the user gets a sentence, the traceback goes to a file
        if limit := caused_by_process_limit(error):
            print(f"vramtop: {limit.message}", file=sys.stderr)
            return flush_output(limit.exit_code)
        if isinstance(error, OSError) and error.filename is None:  # an error of a stream: one of a file names the file
            return report_write_error(error)
        from .crash_report import report_crash

        return flush_output(report_crash(error))


def _main(arguments: list[str]) -> int:
    launch = None
    if "--" in arguments:
        at = arguments.index("--")
        arguments, launch = arguments[:at], arguments[at + 1 :]
    return _run(build_parser().parse_args(arguments), launch)


def _run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    if options.show_secrets:
        show_secrets()
    recordings = [f"--{name}" for name in ("demo", "replay") if getattr(options, name)]
    if recordings and (options.command or options.once):
        raise InputError(f"{recordings[0]} is for the dashboard; {options.command or '--once'} reads this machine")
    if options.command:
        return int(_command_module(options.command).run(options, launch))
    if launch is not None:
        raise InputError("a launch line after -- needs a command, such as vramtop fit -- torchrun train.py ...")
    if options.json and not options.once:
        raise InputError("--json needs --once or a command")
    gc.disable()  # starting up makes 100,000 objects and no garbage; the dashboard enables it after its first frame
    try:
        return int(_command_module("once" if options.once else "dashboard").run(options))
    finally:
        gc.freeze()  # at exit the interpreter need not search these objects for garbage either
        gc.enable()


def _command_module(name: str) -> Any:
    return importlib.import_module(f".commands.{name}", __package__)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; a command's module is imported when the command is parsed."""
    parser = _Parser(
        prog="vramtop",
        description="Live GPU memory beside a predicted training budget. Without a command: the dashboard.",
        allow_abbrev=False,
    )
    _add_dashboard_arguments(parser)
    add_output_arguments(parser, suppress_defaults=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_CommandParser)
    for name, text in COMMANDS.items():
        commands.add_parser(name, command=name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    return parser


def _add_dashboard_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--demo", action="store_true", help="play the demo recording")
    source.add_argument("--replay", metavar="FILE", help="play a recording")
    parser.add_argument("--pid", type=process_id, help="attach to this process")
    parser.add_argument(
        "--job", action="append", default=[], metavar="FILE", help="job file of a pending job (repeatable)"
    )
    parser.add_argument(
        "--interval", type=positive_seconds, default=1.0, metavar="SECONDS", help="time between readings (default: 1)"
    )
    text = "how to signal that a pending job now fits, or no longer fits (default: none)"
    parser.add_argument("--signal-fit", choices=("none", "bell", "desktop"), default="none", help=text)
    text = "shell command to run when a pending job starts to fit; VRAMTOP_JOB and VRAMTOP_GPUS are in its environment"
    parser.add_argument("--on-fit", metavar="COMMAND", help=text)
    parser.add_argument("--read-only", action="store_true", help="the dashboard cannot end processes")
    parser.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    parser.add_argument("--once", action="store_true", help="print one reading and exit")


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one sentence and exits with 2."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {mask_line(message)}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


class _CommandParser(_Parser):
    """The parser of one command; it imports the command's module and adds its arguments when it is first used.

    Args:
        command: name of the command's module.
        **settings: those of ``ArgumentParser``.
    """

    def __init__(self, *, command: str, **settings: Any) -> None:
        super().__init__(**settings)
        self._command: str | None = command

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as ``ArgumentParser`` does; the parent parser calls this for the command on the command line."""
        if self._command is not None:
            _command_module(self._command).add_arguments(self)
            add_output_arguments(self, suppress_defaults=True)
            self._command = None
            if self.get_default("flags") is not None:
                from ..job.flags import normal_words

                args = normal_words(args)
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:  # the parent parser would refer to its own help
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown


class _Version(argparse.Action):
    """Prints the version, which is looked up only when it is asked for: that takes as long as half of the parser."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("vramtop-budget")
        except PackageNotFoundError:
            number = "(not installed)"
        print(f"vramtop {number}")
        parser.exit()
