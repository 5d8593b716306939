"""The command line: parse the arguments, run one command, and turn errors into one sentence and an exit code."""

import argparse
import gc
import importlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from vramtop.estimator.common.errors import ExitCode, InputError, VramtopError
from vramtop.estimator.common.process_limit import caused_by_process_limit
from vramtop.estimator.common.secrets import show_secrets

from ..draw.text_output import printable
from .display_options import add_display_arguments, require_none_typed
from .parsing.parser import CommandParser, Parser
from .parsing.shared_arguments import add_host_arguments, add_output_arguments, positive_seconds, process_id
from .standard_streams import flush_output, open_closed_streams, report_write_error

COMMANDS = {
    "estimate": "predict a training job's memory, by phase and component",
    "fit": "check whether a job fits on these GPUs now, or on others",
    "program": "print the training script that a described job stands for",
    "wait": "wait until a job fits on this machine, then start it",
    "preflight": "check everything a job needs before it starts",
    "models": "list the models known by name, with parameters and bytes",
    "attach": "read a running training process and compare it with its budget",
    "explain": "explain why a run ran out of memory, from a log or snapshot",
    "snapshot": "make a process with the probe write a memory snapshot",
    "run": "start a command unchanged, with a memory probe",
    "rehearse": "run your program without a GPU to predict its memory on one",
    "measure": "run real steps of a job and compare them with the prediction",
    "history": "list, export or forget the runs that correct estimates",
    "stream": "write one line of JSON per reading (vramtop --host reads it)",
    "record": "record the GPUs to a file, for --replay",
    "export": "serve GPU memory, budgets and verdicts as Prometheus metrics",
    "report": "write a recording as one HTML file",
    "serve": "show the dashboard in a browser, read-only by default",
    "doctor": "print a page about this machine for a bug report",
    "config": "show the settings and where each comes from, or change one",
    "completion": "print shell completions or the manual page",
}
"""Commands and their help.

Each is a module of ``commands`` with ``run(options, launch)``, which takes the parsed options and the launch line after
``--`` and returns the exit code; the function of its name in ``parsing/arguments.py`` adds its arguments.
"""
_MAX_LINES = 40
"""Lines of the output of a program that failed, from its end."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run vramtop and return the exit code of the process."""
    open_closed_streams()
    if argv is None:  # the process is this command's own
        gc.disable()  # starting up makes 100,000 objects and no garbage; commands enable it
    try:
        return flush_output(_main(list(sys.argv[1:] if argv is None else argv)))
    except SystemExit as end:  # raised by the parser after help or an error
        return flush_output(end.code if isinstance(end.code, int) else 0)
    except VramtopError as error:
        shown = [*error.output.splitlines()[-_MAX_LINES:], f"vramtop: {error.message}"]
        print("\n".join(map(printable, shown)), file=sys.stderr)
        return flush_output(error.exit_code)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the user gets a sentence, the traceback goes to a file
        if limit := caused_by_process_limit(error):
            print(f"vramtop: {limit.message}", file=sys.stderr)
            return flush_output(limit.exit_code)
        if isinstance(error, OSError) and error.filename is None:  # an error of a stream: one of a file names the file
            return report_write_error(error)
        from .crash_report import crash_sentence

        print(f"vramtop: {crash_sentence(error)}", file=sys.stderr)
        return flush_output(ExitCode.INTERNAL_ERROR)
    finally:
        if argv is None:
            gc.freeze()  # at exit the interpreter need not search all objects for garbage
            gc.enable()


def _main(arguments: list[str]) -> int:
    launch = None
    if "--" in arguments:
        at = arguments.index("--")
        arguments, launch = arguments[:at], arguments[at + 1 :]
    elif arguments[:1] and arguments[0] in COMMANDS.keys() - _WITHOUT_LAUNCH_LINE:
        from .parsing.first_word import before_launch_line

        start = before_launch_line(arguments)
        arguments, launch = arguments[:start], None if start is None else arguments[start:]
    parser = build_parser()
    if arguments and arguments[0] not in COMMANDS:
        from .parsing.first_word import with_command

        arguments = with_command(arguments, tuple(COMMANDS), parser.flags_with_value())
    if arguments[:1] == ["__complete"]:  # asked by the completions, for words that they cannot know
        from .commands.completion import dynamic_words

        print("\n".join(dynamic_words(*arguments[1:2])))
        return 0
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.reject(unknown)
    return _run(options, launch)


_WITHOUT_LAUNCH_LINE = {
    *("models", "attach", "snapshot", "history", "stream", "record", "export", "report", "doctor", "config"),
    "completion",
}
"""Commands that are about no job."""


def _run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    if options.show_secrets:
        show_secrets()
    from .option_settings import fill_in_settings  # help needs no settings

    fill_in_settings(options)
    fleet = options.prometheus or options.host
    recordings = [f"--{name}" for name in ("demo", "replay") if getattr(options, name)]
    if recordings and (options.command or options.once):
        raise InputError(f"{recordings[0]} is for the dashboard; {options.command or '--once'} reads this machine")
    if options.command:
        require_none_typed(options)
        if launch is not None and options.command in _WITHOUT_LAUNCH_LINE:
            raise InputError(f"{options.command} takes no launch line; vramtop fit -- COMMAND checks one")
        if fleet:
            name = "--prometheus" if options.prometheus else "--host"
            raise InputError(f"{name} is for the dashboard and --once; {options.command} reads this machine")
        return int(_started(options.command).run(options, launch))
    if launch is not None:
        raise InputError("a launch line after -- needs a command, such as vramtop fit -- torchrun train.py ...")
    if options.json and not options.once:
        raise InputError("--json needs --once or a command")
    if options.view_only and (options.once or fleet):
        raise InputError("--view-only is for the dashboard of this machine")
    if not options.prometheus and (options.prometheus_token_file or options.prometheus_ca):
        raise InputError("--prometheus-token-file and --prometheus-ca need --prometheus URL")
    if fleet:
        return int(_started("fleet").run(options))
    return int(command_module("once" if options.once else "dashboard").run(options))  # the dashboard enables gc later


def _started(name: str) -> Any:
    """Return the module of a command, with the search for garbage on from now on."""
    command = command_module(name)
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    return command


def command_module(name: str) -> Any:
    """Return the module of a command."""
    return importlib.import_module(f".commands.{name}", __package__)


_EXAMPLES = """\
  vramtop                                     the dashboard
  vramtop 48213                               attach to a process
  vramtop llama-3.1-8b --qlora --gpu-type 4090    does it fit? (vramtop fit)
  vramtop job.toml                            the same for a job file
  vramtop --once --json                       one reading, for scripts
  vramtop --host 'node[01-16]'                several hosts, over ssh
"""


def build_parser() -> Parser:
    """Return the parser of all commands; the arguments of a command are added when it is parsed."""
    parser = Parser(
        prog="vramtop",
        description="Live GPU memory beside a predicted training budget.",
        usage="vramtop [FLAG ...]\n       vramtop COMMAND [FLAG ...]\n       vramtop PID | JOB",
        allow_abbrev=False,
    )
    parser.examples = _EXAMPLES
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.add_argument("--once", action="store_true", help="print one reading and exit")
    text = "time between readings (default: 1; with --prometheus 5)"
    parser.add_argument("--interval", type=positive_seconds, metavar="SECONDS", help=text)
    switch = argparse.BooleanOptionalAction
    text = "use the mouse (default), or leave it to the terminal"
    parser.add_argument("--mouse", action=switch, default=None, help=text)
    parser.add_argument("--read-only", action=switch, default=None, help="the dashboard cannot end processes")
    text = "the dashboard ends, starts, opens, saves and sets nothing"
    parser.add_argument("--view-only", action="store_true", help=text)
    source = parser.add_argument_group("recordings").add_mutually_exclusive_group()
    source.add_argument("--demo", action="store_true", help="play the demo recording")
    source.add_argument("--replay", metavar="FILE", help="play a recording")
    jobs = parser.add_argument_group("jobs")
    jobs.add_argument("--pid", type=process_id, help="attach to this process")
    text = "attach to training processes automatically (default), or not"
    jobs.add_argument("--attach", action=switch, default=None, help=text)
    text = "job file of a pending job, or another tool's configuration (repeatable)"
    jobs.add_argument("--job", action="append", default=[], metavar="FILE", help=text)
    add_display_arguments(parser)
    add_host_arguments(parser)
    add_output_arguments(parser, suppress_defaults=False)
    commands = parser.add_subparsers(prog="vramtop", dest="command", metavar="COMMAND", parser_class=CommandParser)
    for name, text in COMMANDS.items():
        commands.add_parser(name, command=name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    return parser


class _Version(argparse.Action):
    """Prints the version, which is looked up only when it is asked for: that takes as long as half of the parser."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from vramtop.estimator.common.version import version_number

        number = version_number() or "(not installed)"
        print(f"vramtop {number}")
        parser.exit()
