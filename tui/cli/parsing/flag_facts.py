"""The facts about a parser's arguments, as help, completion and the manual page need them."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from .shared_arguments import EVERY_COMMAND

if TYPE_CHECKING:
    from vramtop.estimator.job.field_help import FieldHelp


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
