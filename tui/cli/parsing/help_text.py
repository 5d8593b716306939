"""The help of a command as text of at most 80 columns: usage, examples, arguments, and its flags in groups.

``--help`` has the flags that people use, and says how many more ``--help-all`` has.
"""

import argparse
from collections.abc import Iterator, Sequence
from textwrap import fill, wrap

from vramtop.estimator.common.records import replace

from .exit_codes import exit_codes_sentence
from .flag_facts import FlagGroup, flag_groups, positionals
from .shared_arguments import EVERY_COMMAND

_WIDTH = 80


def help_text(parser: argparse.ArgumentParser, *, every_flag: bool = False) -> str:
    """Return the help.

    Args:
        parser: of vramtop or of a command.
        every_flag: also those that few people use.
    """
    return "\n".join(_lines(parser, every_flag=every_flag)) + "\n"


def _lines(parser: argparse.ArgumentParser, *, every_flag: bool) -> Iterator[str]:
    operands = positionals(parser)
    words = "".join(f"{operand.placeholder} " for operand in operands)
    usage = parser.usage or f"{parser.prog} {words}[FLAG ...]"
    yield from (f"{'       ' if at else 'usage: '}{line.strip()}" for at, line in enumerate(usage.splitlines()))
    yield ""
    yield fill(parser.description or "", _WIDTH)
    yield from _commands(parser)
    examples = getattr(parser, "examples", "")
    if examples:
        yield ""
        yield "examples"
        yield from examples.rstrip("\n").splitlines()
    if operands:
        yield ""
        for operand in operands:
            yield from _entry(operand.placeholder, operand.meaning)
    groups = flag_groups(parser)
    shown = groups if every_flag else tuple(_usual(parser, groups))
    more = sum(len(group.flags) for group in groups) - sum(len(group.flags) for group in shown)
    for group in shown:
        yield ""
        yield group.heading
        if group.text:
            yield fill(group.text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        for flag in group.flags:
            first = 1 if flag.names[0].startswith("--") else 2  # the first long name, and a letter before it
            shown_names = ", ".join(flag.names if every_flag or not more else flag.names[:first])
            value = f" {flag.placeholder}" if flag.placeholder else ""
            *above, last = wrap(f"{shown_names}{value}", _WIDTH - 4, break_on_hyphens=False)
            yield from (f"    {line}" if at else f"  {line}" for at, line in enumerate(above))
            yield from _entry(f"  {last}" if above else last, flag.text())
    if more:
        yield ""
        yield f"{more} more flags: {parser.prog} --help-all"
    if parser.epilog and (every_flag or not more):
        yield ""
        yield fill(" ".join(parser.epilog.split()), _WIDTH, break_on_hyphens=False)
    yield ""
    yield fill(exit_codes_sentence(getattr(parser, "command", "")), _WIDTH, break_on_hyphens=False)


_USUAL = {"--help-all", "--version", "--once", "--demo", "--replay", "--job", "--host", "--prometheus"}
"""Flags of vramtop itself that its short help has."""
_USUAL_OF_EVERY_COMMAND = {"--json", "--python"}


def _usual(parser: argparse.ArgumentParser, groups: Sequence[FlagGroup]) -> Iterator[FlagGroup]:
    """Yield the groups with the flags that people use; of vramtop itself in one group."""
    if not getattr(parser, "command", ""):
        flags = tuple(flag for group in groups for flag in group.flags if not _USUAL.isdisjoint(flag.names))
        yield FlagGroup("flags", flags)
        return
    for group in groups:
        if group.heading == EVERY_COMMAND and any(each.is_rare for each in groups):
            yield replace(group, flags=tuple(each for each in group.flags if _USUAL_OF_EVERY_COMMAND & {*each.names}))
        elif not group.is_rare:
            yield group


_GROUPS = {
    "before launch": ("fit", "estimate", "program", "models", "wait", "preflight", "rehearse", "measure"),
    "while it runs": ("attach", "run", "record", "serve", "export"),
    "afterwards": ("explain", "report"),
    "vramtop itself": ("doctor", "config"),
    "for scripts": ("snapshot", "stream", "history", "completion"),
}
"""Commands by what one wants."""


def _commands(parser: argparse.ArgumentParser) -> Iterator[str]:
    subparsers = next((each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None)
    if subparsers is None:
        return
    meanings = {choice.dest: choice.help or "" for choice in subparsers._choices_actions}
    others = tuple(name for name in meanings if not any(name in names for names in _GROUPS.values()))
    for heading, names in (*_GROUPS.items(), *((("others", others),) if others else ())):
        yield ""
        yield heading
        yield from (f"  {name:<11} {meanings[name]}" for name in names)


_LEFT = 28
"""Column at which meanings begin."""


def _entry(left: str, text: str) -> Iterator[str]:
    """Yield a name and its meaning beside it; below it, if the name is long."""
    lines = wrap(text, _WIDTH - _LEFT, break_on_hyphens=False)
    if len(left) + 4 > _LEFT:
        yield f"  {left}"
    else:
        yield f"  {left:<{_LEFT - 2}}{lines.pop(0) if lines else ''}".rstrip()
    yield from (" " * _LEFT + line for line in lines)
