"""A parser of vramtop's words: help in groups, errors in one sentence."""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from vramtop.estimator.common.secrets import mask_line

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
        from .unknown_flag import describes_job, meant_by  # not at start-up

        if dashes_follow and describes_job(name):
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
