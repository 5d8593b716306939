"""The parsers of vramtop and of its commands: help in groups, errors in one sentence."""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from vramtop.estimator.common.secrets import mask_line

from .shared_arguments import add_output_arguments

_ARGUMENT = re.compile(r"^argument (-[-\w]+|[A-Z]+)(/-[-\w]+)*")


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one sentence and exits with 2.

    Args:
        **settings: those of ``ArgumentParser``.
    """

    examples = ""
    """Command lines for the help, indented by two."""
    command = ""
    """The command whose parser it is; empty: vramtop itself."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show every flag and exit")

    def format_help(self) -> str:
        """Return the help: usage, examples, and the flags that people use, in groups."""
        from .help_text import help_text

        return help_text(self)

    def flags_with_value(self) -> dict[str, bool]:
        """Return for each flag whether a value follows it."""
        return {name: action.nargs != 0 for name, action in self._option_string_actions.items()}

    def error(self, message: str) -> NoReturn:
        """Print the sentence and exit; of a flag with several names it has the first."""
        message = _ARGUMENT.sub(r"\1", message)
        self.fail(f"{message}; see {self.prog} --help")

    def fail(self, sentence: str) -> NoReturn:
        """Print a sentence that says what to do, and exit."""
        print(f"{self.prog}: {mask_line(sentence)}", file=sys.stderr)
        raise SystemExit(2)

    def reject(self, unknown: Sequence[str]) -> NoReturn:
        """Report what is left of the command line, with the flag that may be meant."""
        flag = next((word for word in unknown if word.startswith("-")), None)
        dashes_follow = " -- COMMAND" in (self.usage or "")
        if flag is None:
            dashes = "; write the command after --" if dashes_follow else ""
            self.error(f"unexpected: {' '.join(unknown)}{dashes}")
        name = flag.partition("=")[0]
        from ...job.flags.words import flag_names  # not at start-up
        from .job_words import meant_by

        if dashes_follow and name.replace("_", "-") in flag_names():
            own = "a program has its own flags, in the command after --"
            self.fail(f"{name} describes a job for vramtop fit; {own}")
        if (meant := meant_by(name, self._option_string_actions)) is not None:
            self.fail(f"there is no flag {name}; {meant}")
        self.error(f"there is no flag {name}")


class _HelpAll(argparse.Action):
    """Prints the help with every flag."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from .help_text import help_text

        print(help_text(parser, every_flag=True), end="")
        parser.exit()


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
            from . import arguments

            getattr(arguments, self.command)(self)
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
