"""The manual page ``vramtop.1``, in the macros of ``man``, from the parsers."""

import re
from collections.abc import Iterator, Sequence

from vramtop.estimator.common.version import version_number
from vramtop.tui.cli.parsing.exit_codes import exit_codes_sentence
from vramtop.tui.cli.parsing.help_text import FlagGroup, flag_groups
from vramtop.tui.cli.parsing.parser import CommandParser, Parser, subcommands
from vramtop.tui.cli.parsing.shared_arguments import EVERY_COMMAND

from .commands import OF_EVERY_COMMAND
from .settings import ENVIRONMENT

_OF_A_JOB = ("estimate", "fit", "wait", "preflight")
"""Commands whose flags describe a job."""
_DESCRIPTION = """\
vramtop shows the memory that NVIDIA GPUs hold, beside the memory that training jobs should hold. Without a command it \
opens the dashboard; ? there lists its keys. A word that is no command is a process to attach to, if it is a number, \
and otherwise a job for vramtop fit."""
_JOB = """\
JOB is a job file (TOML), the configuration of another tool (axolotl, LLaMA-Factory, ms-swift, torchtune, torchtitan, \
NeMo Automodel, LitGPT, Megatron-LM, TRL, TrainingArguments, accelerate, DeepSpeed), a script or notebook, a model \
(built-in name, hub id in the local cache, folder with a config.json, module:callable), or a launch line after --. \
Flags may be written with _ in place of -."""


def man_page(parser: Parser) -> str:
    """Return the page."""
    return "\n".join(_lines(parser)) + "\n"


def _lines(parser: Parser) -> Iterator[str]:
    commands = subcommands(parser)
    number = version_number()
    yield f'.TH VRAMTOP 1 "" "vramtop{f" {number}" if number else ""}" "User Commands"'
    yield ".nh"
    yield ".SH NAME"
    yield _text("vramtop - live GPU memory beside a predicted training budget")
    yield ".SH SYNOPSIS"
    for line in (parser.usage or "").splitlines():
        yield _text(line.strip())
        yield ".br"
    yield ".SH DESCRIPTION"
    yield _text(_DESCRIPTION)
    yield from _examples(parser.examples)
    yield ".SH COMMANDS"
    for name, text, _ in commands:
        yield from _entry(f"vramtop {name}", _sentence(text))
    yield ".SH FLAGS OF THE DASHBOARD"
    yield from _groups(flag_groups(parser), headings=True)
    yield from _job_commands({name: sub for name, _, sub in commands})
    for name, _, sub in commands:
        if name not in _OF_A_JOB:
            yield from _command(name, sub)
    yield ".SH EXIT STATUS"
    for code, text in OF_EVERY_COMMAND.items():
        yield from _entry(code, text)
    yield ".SH ENVIRONMENT"
    for names, text in ENVIRONMENT.items():
        yield from _entry(names, text)


def _job_commands(commands: dict[str, CommandParser]) -> Iterator[str]:
    """Yield the commands that take a job: their flags once, and those that only some of them have."""
    yield ".SH ESTIMATE, FIT, WAIT, PREFLIGHT"
    yield _text(_JOB)
    yield from _groups(flag_groups(commands["fit"]), headings=True)
    known = set(commands["fit"]._option_string_actions)
    for name in _OF_A_JOB:
        yield f".SS vramtop {name}"
        sub = commands[name]
        for group in flag_groups(sub):
            own = tuple(flag for flag in group.flags if known.isdisjoint(flag.names))
            yield from _groups([FlagGroup("", own)], headings=False)
        yield from _examples(sub.examples)
        yield from _closing(sub)


def _command(name: str, sub: CommandParser) -> Iterator[str]:
    yield f".SH VRAMTOP {name.upper()}"
    yield _text((sub.usage or f"vramtop {name} [FLAG ...]").splitlines()[0])
    yield ".PP"
    yield _text(sub.description or "")
    yield from _examples(sub.examples)
    own = [group for group in flag_groups(sub) if group.heading != EVERY_COMMAND]  # those are with the dashboard's
    yield from _groups(own, headings=False)
    yield from _closing(sub)


def _closing(sub: CommandParser) -> Iterator[str]:
    for text in (" ".join((sub.epilog or "").split()), exit_codes_sentence(sub.command)):
        if text:
            yield ".PP"
            yield _text(text)


def _groups(groups: Sequence[FlagGroup], *, headings: bool) -> Iterator[str]:
    for group in groups:
        if headings:
            yield f'.SS "{_escaped(group.heading)}"'
            if group.text:
                yield _text(group.text)
        for flag in group.flags:
            value = f" {flag.placeholder}" if flag.placeholder else ""
            yield from _entry(f"{', '.join(flag.names)}{value}", flag.text(all_choices=True))


def _entry(term: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield f'.B "{_escaped(term)}"'
    yield _text(text)


def _examples(examples: str) -> Iterator[str]:
    if examples:
        yield ".PP"
        yield ".nf"
        yield from (_text(line) for line in examples.rstrip("\n").splitlines())
        yield ".fi"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _text(line: str) -> str:
    """Return a line that is no request: those begin with a dot or an apostrophe."""
    escaped = _escaped(line)
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _escaped(text: str) -> str:
    return re.sub(r"-", r"\\-", text.replace("\\", "\\e").replace('"', "\\(dq"))
