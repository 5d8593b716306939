"""Words that can be completed: the commands, their flags, and what may follow each."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vramtop.estimator.job import catalogue, choices_of_key, is_switch, job_keys
from vramtop.monitor.board import ONLY_WORDS
from vramtop.monitor.storage.settings import SETTINGS, TABLES, find_setting

from ..parsing import CommandParser, FlagFacts, Parser, flag_groups, positionals

Source = Literal["", "models", "pids", "files", "folders", "jobs", "keys", "commands"]
"""Where further words come from: ``models`` and ``pids`` from vramtop itself, ``jobs`` are models or files."""
_SOURCES: Mapping[str, Source] = {
    "MODEL": "models",
    "JOB": "jobs",
    "FILE": "files",
    "PATH": "files",
    "FOLDER": "folders",
    "PID": "pids",
    "KEY=VALUE": "keys",
    "COMMAND": "commands",
}
"""Source by the word that stands for a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag, or an argument without a name."""

    names: tuple[str, ...]
    meaning: str
    takes_value: bool
    value_optional: bool = False
    words: tuple[str, ...] = ()
    """Words that its value may be."""
    source: Source = ""
    familiar: bool = False
    """It has another tool's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command; an empty name is vramtop itself."""

    name: str
    help: str
    flags: tuple[Flag, ...]
    operands: tuple[Flag, ...]


def completable(parser: Parser) -> tuple[Command, ...]:
    """Return vramtop itself and all commands."""
    return (_command("", "", parser), *(_command(name, text, sub) for name, text, sub in subcommands(parser)))


def subcommands(parser: Parser) -> list[tuple[str, str, CommandParser]]:
    """Return name, help and parser of each command, with its arguments."""
    action = next(each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    found = []
    for choice in action._choices_actions:
        sub = action.choices[choice.dest]
        sub.complete()
        found.append((choice.dest, choice.help or "", sub))
    return found


def words_by_job_key() -> dict[str, tuple[str, ...]]:
    """Return each key of the job file for ``--set``, with the words that it may be set to."""
    keys = [key for key in job_keys() if "." in key]
    return {key: choices_of_key(key) or (("true", "false") if is_switch(key) else ()) for key in keys}


def _command(name: str, text: str, parser: Parser) -> Command:
    return Command(
        name=name,
        help=text,
        flags=tuple(_flag(flag) for group in flag_groups(parser) for flag in group.flags),
        operands=tuple(_flag(operand) for operand in positionals(parser)),
    )


def _flag(facts: FlagFacts) -> Flag:
    words = facts.choices
    if "--gpu-type" in facts.names:
        words = tuple(gpu.name for gpu in catalogue())
    elif "--optim" in facts.names:
        words = choices_of_key("training.optimizer")
    elif "--only" in facts.names:
        words = ONLY_WORDS
    word = facts.placeholder.strip("[]")
    if word == "SETTING":
        words = (*(name for name in TABLES if find_setting(name) is None), *(setting.name for setting in SETTINGS))
    return Flag(
        names=facts.names,
        meaning=facts.first_sentence,
        takes_value=facts.takes_value,
        value_optional=facts.placeholder.startswith("["),
        words=words,
        source=_SOURCES.get(word, "") if not words else "",
        familiar=facts.is_familiar,
    )
