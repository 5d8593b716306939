"""The help of a command as text of at most 80 columns: usage, examples, arguments, and its flags in groups."""

import argparse
from collections.abc import Iterator
from textwrap import fill, wrap

from .exit_codes import exit_codes_sentence
from .parser_facts import FlagFacts, flag_groups, positionals

_WIDTH = 80
_LEFT = 28
"""Column at which meanings begin."""


def help_text(parser: argparse.ArgumentParser) -> str:
    """Return the help."""
    return "\n".join(_lines(parser)) + "\n"


def _lines(parser: argparse.ArgumentParser) -> Iterator[str]:
    usage = parser.usage or f"{parser.prog} {_operands(parser)}[FLAG ...]"
    yield from (f"{'       ' if at else 'usage: '}{line.strip()}" for at, line in enumerate(usage.splitlines()))
    yield ""
    yield fill(parser.description or "", _WIDTH)
    yield from _commands(parser)
    examples = getattr(parser, "examples", "")
    if examples:
        yield ""
        yield "examples"
        yield from examples.rstrip("\n").splitlines()
    operands = positionals(parser)
    if operands:
        yield ""
        for operand in operands:
            yield from _entry(operand.placeholder, operand.meaning)
    for group in flag_groups(parser):
        yield ""
        yield group.heading
        if group.text:
            yield fill(group.text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        for flag in group.flags:
            yield from _flag(flag)
    if parser.epilog:
        yield ""
        yield fill(" ".join(parser.epilog.split()), _WIDTH, break_on_hyphens=False)
    yield ""
    yield fill(exit_codes_sentence(getattr(parser, "command", "")), _WIDTH, break_on_hyphens=False)


def _operands(parser: argparse.ArgumentParser) -> str:
    return "".join(f"{operand.placeholder} " for operand in positionals(parser))


def _commands(parser: argparse.ArgumentParser) -> Iterator[str]:
    subparsers = next((each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None)
    if subparsers is None:
        return
    yield ""
    yield "commands (vramtop COMMAND --help for the flags of each)"
    for choice in subparsers._choices_actions:
        yield from _entry(choice.dest, f"{choice.help or ''}")


def _flag(flag: FlagFacts) -> Iterator[str]:
    value = f" {flag.placeholder}" if flag.placeholder else ""
    names = wrap(f"{', '.join(flag.names)}{value}", _WIDTH - 4, break_on_hyphens=False)
    yield from (f"  {line}" if not at else f"    {line}" for at, line in enumerate(names[:-1]))
    yield from _entry(f"  {names[-1]}" if len(names) > 1 else names[-1], flag.text())


def _entry(left: str, text: str) -> Iterator[str]:
    """Yield a name and its meaning beside it; below it, if the name is long."""
    lines = wrap(text, _WIDTH - _LEFT, break_on_hyphens=False)
    if len(left) + 4 > _LEFT:
        yield f"  {left}"
    else:
        yield f"  {left:<{_LEFT - 2}}{lines.pop(0) if lines else ''}".rstrip()
    yield from (" " * _LEFT + line for line in lines)
