"""Write completions for bash, zsh and fish, by shtab, and the manual page (``make completion``)."""

import argparse
import sys
from collections.abc import Sequence

import shtab
from reference.manual_page import man_page

from vramtop.estimator.job.field_help import field_help
from vramtop.estimator.job.gpu_catalogue import catalogue
from vramtop.estimator.job.job_file.table_fields import job_keys
from vramtop.monitor.storage.settings.schema import SETTINGS, TABLES, find_setting
from vramtop.tui.cli.commands.completion import FILES, FOLDER
from vramtop.tui.cli.main import build_parser
from vramtop.tui.cli.parsing.help_text import FlagFacts
from vramtop.tui.cli.parsing.parser import subcommands

_MODELS = shtab.cmd("vramtop __complete models 2>/dev/null")
_COMPLETED = {
    "MODEL": _MODELS,
    "PID": shtab.cmd("vramtop __complete pids 2>/dev/null"),
    "FILE": shtab.FILE,
    "PATH": shtab.FILE,
    "FOLDER": shtab.DIRECTORY,
    "JOB": {
        "bash": "_vramtop_jobs",
        "zsh": "_vramtop_jobs",
        "fish": "(vramtop __complete models 2>/dev/null; __fish_complete_path (commandline -ct))",
        "preamble": {
            "bash": """
_vramtop_jobs() {
  compgen -W "$(vramtop __complete models 2>/dev/null)" -- "$1"
  compgen -f -- "$1"
}""",
            "zsh": """
_vramtop_jobs() {
  local -a found
  found=(${(f)"$(vramtop __complete models 2>/dev/null)"})
  compadd -a found
  _files
}""",
        },
    },
}
"""What completes a value, by the word that stands for it in the help."""


def shell_text(kind: str) -> str:
    """Return the completion of a shell, or with ``man`` the manual page."""
    parser = build_parser()
    if kind == "man":
        return man_page(parser)
    for each in (parser, *(sub for _, _, sub in subcommands(parser))):
        for action in each._actions:
            if not isinstance(action, argparse._SubParsersAction) and action.help is not argparse.SUPPRESS:
                _describe(action)
    return f"{shtab.complete(parser, kind).rstrip()}\n"


def _describe(action: argparse.Action) -> None:
    """Give an argument the short help, the words and the names that completions offer."""
    flag = FlagFacts(action)
    words = _words(flag)
    word = flag.placeholder.strip("[]")
    action.help = flag.meaning.partition("; ")[0].partition(" (default")[0].rstrip(".")
    action.option_strings = action.option_strings[
        : 1 if getattr(action, "familiar", None) else 2
    ]  # further names are read, too
    if words:
        action.choices = list(words)
    elif word in _COMPLETED:
        action.complete = _COMPLETED[word]  # type: ignore[attr-defined]


def _words(flag: FlagFacts) -> Sequence[str]:
    word = flag.placeholder.strip("[]")
    if "--gpu-type" in flag.names:
        return [gpu.name for gpu in catalogue()]
    if "--optim" in flag.names:
        return field_help("training.optimizer").choices
    if word == "SETTING":
        return [*(name for name in TABLES if find_setting(name) is None), *(setting.name for setting in SETTINGS)]
    if word == "KEY=VALUE":
        return [f"{key}=" for key in job_keys() if "." in key]
    return flag.choices if flag.action.nargs != 0 else ()


def main() -> int:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for kind, name in FILES.items():
        (FOLDER / name).write_text(shell_text(kind), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
