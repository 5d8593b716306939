"""The parsers of vramtop and of its commands: help in groups, errors in one sentence, arguments added on first use."""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from vramtop.estimator.common import mask_line

_LENGTH_OR_BATCH = re.compile(r"seq|ctx|cont|len|tok|batch|window")
"""Words of flags about the size of a step, for which none is suggested that splits the job over GPUs."""
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
        if flag is None:
            dashes = "; write the command after --" if " -- COMMAND" in (self.usage or "") else ""
            self.error(f"unexpected: {' '.join(unknown)}{dashes}")
        name = flag.partition("=")[0]
        import difflib  # not at start-up

        sizes = _LENGTH_OR_BATCH.search(name) and "par" not in name
        known = [
            each
            for each, action in self._option_string_actions.items()
            if not (sizes and getattr(action, "splits_job", False))
        ]
        begun = sorted((each for each in known if each.startswith(name)), key=len)
        alike = difflib.get_close_matches(name, known, n=5, cutoff=0.6)
        near = begun or [each for each in alike if each[:3] == name[:3]]  # a typing error is rarely in the first letter
        if near:
            self.fail(f"there is no flag {name}; did you mean {near[0]}?")
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
            from .arguments import ADD_ARGUMENTS
            from .shared_flags import add_output_arguments

            ADD_ARGUMENTS[self.command](self)
            add_output_arguments(self, suppress_defaults=True)
            self._is_complete = True

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as ``ArgumentParser`` does; the parent parser calls this for the command on the command line."""
        self.complete()
        if self.get_default("flags") is not None:
            from ...job.flags import normal_words

            args = normal_words(args)
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:  # the parent parser would refer to its own help
            takes_job = any(action.dest == "job" and not action.option_strings for action in self._actions)
            if takes_job and not any(word.startswith("-") for word in unknown):
                from .first_word import not_one_job

                self.fail(not_one_job([options.job, *unknown], self._option_string_actions))
            self.reject(unknown)
        return options, unknown
