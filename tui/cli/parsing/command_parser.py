"""The parsers of the commands: each adds its arguments when it is first used."""

import argparse
from typing import Any

from .parser import Parser
from .shared_arguments import add_output_arguments


class CommandParser(Parser):
    """The parser of one command; its arguments are added when it is first used.

    Args:
        command: the command's name.
        **settings: those of ``ArgumentParser``.
    """

    def __init__(self, *, command: str, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)
        self.command = command
        self._is_complete = False

    def complete(self) -> None:
        """Add the command's arguments, once."""
        if not self._is_complete:
            from .arguments import ADD_ARGUMENTS

            ADD_ARGUMENTS[self.command](self)
            add_output_arguments(self, suppress_defaults=True)
            self._is_complete = True

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as ``ArgumentParser`` does; the parent parser calls this for the command on the command line."""
        self.complete()
        if self.get_default("flags") is not None:
            from ...job.flags.words import normal_words

            args = normal_words(args, self._option_string_actions)
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:  # the parent parser would refer to its own help
            takes_job = any(action.dest == "job" and not action.option_strings for action in self._actions)
            if takes_job and not any(word.startswith("-") for word in unknown):
                from .job_words import not_one_job

                self.fail(not_one_job([options.job, *unknown], self._option_string_actions))
            self.reject(unknown)
        return options, unknown


def subcommands(parser: argparse.ArgumentParser) -> list[tuple[str, str, CommandParser]]:
    """Return name, help and parser of each command, with its arguments."""
    action = next(each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    found = []
    for choice in action._choices_actions:
        sub = action.choices[choice.dest]
        sub.complete()
        found.append((choice.dest, choice.help or "", sub))
    return found
