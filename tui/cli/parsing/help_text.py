"""The help of a command as text of at most 80 columns: usage, examples, arguments, and its flags in groups.

``--help`` has the flags that people use, and says how many more ``--help-all`` has. Completion and the manual page are
made from the same facts about flags.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import fill, wrap
from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common.records import replace

from .exit_codes import exit_codes_sentence
from .shared_arguments import EVERY_COMMAND

if TYPE_CHECKING:
    from vramtop.estimator.job.field_help import FieldHelp


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


_MAX_CHOICES = 12
"""Choices that are listed; of more the first few."""
_FIRST_CHOICES = 6


@dataclass(frozen=True)  # not slotted: the meaning is cached
class FlagFacts:
    """One flag or positional argument."""

    action: argparse.Action

    @property
    def names(self) -> tuple[str, ...]:
        """Its names, the usual one first; empty for a positional argument."""
        return tuple(self.action.option_strings)

    @cached_property
    def _field(self) -> "FieldHelp | None":
        """The job's key whose flag it is; only then the job's module is loaded."""
        key = getattr(self.action, "key", None)
        if key is None:
            return None
        from vramtop.estimator.job.field_help import field_help

        return field_help(key)

    @property
    def _is_switch(self) -> bool:
        from ...job.flags.job_flags import value_alone

        return self._field is not None and value_alone(self._field.key) == "true"

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that its value may be; empty if it is no choice of words."""
        if self._field is not None:
            return self._field.choices or (("true", "false") if self._is_switch else ())
        familiar = getattr(self.action, "familiar", None)  # another tool's name of a setting
        return tuple(str(choice) for choice in (familiar or self.action).choices or ())

    @property
    def placeholder(self) -> str:
        """What stands for its value: ``N``, ``[true|false]``; empty if it takes none."""
        if self.action.nargs == 0:
            return ""
        if self._field is not None:
            word = "true|false" if self._is_switch else self._field.placeholder
        else:
            metavar = self.action.metavar
            word = metavar if isinstance(metavar, str) else self.action.dest.upper()
            if not metavar and self.action.choices:
                word = "|".join(self.choices)
        return f"[{word}]" if self.action.nargs == "?" and self.names else word

    @property
    def meaning(self) -> str:
        """The sentence that explains it."""
        text = self._field.sentence if self._field is not None else self.action.help or ""
        return text if text.endswith(".") or not text else f"{text[0].upper()}{text[1:]}."

    def text(self, *, all_choices: bool = False) -> str:
        """Return the meaning with choices and default.

        Args:
            all_choices: list each of them, however many there are.
        """
        field = self._field
        if field is None:
            return self.meaning
        choices = field.choices if field.placeholder != "NAMES" else ()
        few = all_choices or len(choices) <= _MAX_CHOICES
        listed = ", ".join(choices if few else choices[:_FIRST_CHOICES])
        more = "" if few else f" and {len(choices) - _FIRST_CHOICES} more, see vramtop completion man"
        default = "" if field.default_text in (None, "no") else f" (default: {field.default_text})"
        return f"{self.meaning}{f' Choices: {listed}{more}' if choices else ''}{default}"


class FlagGroup(msgspec.Struct, frozen=True):
    """Flags under one heading."""

    heading: str
    flags: tuple[FlagFacts, ...]
    text: str = ""
    """What is true of all of them."""
    is_rare: bool = False
    """Few people use them: each sets a key of the job file, or is another tool's name of such a flag."""


def flag_groups(parser: argparse.ArgumentParser) -> tuple[FlagGroup, ...]:
    """Return the flags of a parser by heading, those that are hidden left out."""
    return tuple(group for group in _groups(parser) if group.flags)


def positionals(parser: argparse.ArgumentParser) -> tuple[FlagFacts, ...]:
    """Return the arguments without a name; of vramtop itself there are none but the command."""
    plain = [action for action in parser._actions if not action.option_strings]
    return tuple(FlagFacts(action) for action in plain if not isinstance(action, argparse._SubParsersAction))


def _groups(parser: argparse.ArgumentParser) -> Iterator[FlagGroup]:
    """Yield the groups: of a job's command its settings first; last what every command takes."""
    takes_job = "JOB [" in (parser.usage or "")
    titled = [group for group in parser._action_groups if group is not parser._optionals]
    own = [group for group in titled if group.title != EVERY_COMMAND]
    every = [group for group in titled if group.title == EVERY_COMMAND]
    for group in [*own, parser._optionals, *every] if takes_job else [parser._optionals, *own, *every]:
        shown = [each for each in group._group_actions if each.option_strings and each.help is not argparse.SUPPRESS]
        heading = ("others" if takes_job else "flags") if group is parser._optionals else group.title or ""
        flags = tuple(FlagFacts(action) for action in shown)
        yield FlagGroup(heading, flags, group.description or "", is_rare=getattr(group, "is_rare", False))


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
