"""The table of commands: a new command is one row and one module, and no other command's module is imported."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from types import ModuleType

import pytest
from command_line import vramtop

from vramtop.tui.cli.main import COMMANDS, command_module
from vramtop.tui.cli.parsing.arguments import ADD_ARGUMENTS

PREFIX = "vramtop.tui.cli.commands."
SHOW_IMPORTED = f"""
import sys
from vramtop.tui.cli.main import main
main(sys.argv[1:])
print(sorted(name.removeprefix({PREFIX!r}) for name in sys.modules if name.startswith({PREFIX!r})), file=sys.stderr)
"""


def test_a_command_is_added_by_a_row_and_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--times", type=int, default=1)

    class Count(ModuleType):
        @staticmethod
        def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
            sys.stdout.write(f"{options.times} {options.json} {launch}\n")
            return 7

    monkeypatch.setitem(COMMANDS, "count", "count to a number")
    monkeypatch.setitem(ADD_ARGUMENTS, "count", add_arguments)
    monkeypatch.setitem(sys.modules, f"{PREFIX}count", Count("count"))
    assert vramtop("count", "--times", "3", "--json", "--", "a", "b", code=7).out == "3 True ['a', 'b']\n"
    assert "count to a number" in vramtop("--help", code=0).out
    assert "see vramtop count --help" in vramtop("count", "--nope", code=2).err


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [
        (["--help"], []),
        (["--version"], []),
        (["--nope"], []),
        (["doctor", "--help"], []),
        (["estimate", "--help"], []),
        (["--job", "fit", "estimate", "--help"], []),
        (["fit", "--precision"], []),
        (["--once"], ["once"]),
    ],
)
def test_only_the_chosen_command_is_imported(arguments: list[str], imported: list[str]) -> None:
    command = [sys.executable, "-c", SHOW_IMPORTED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == str(imported)


@pytest.mark.parametrize("command", ["fit", "estimate", "wait", "rehearse", "attach"])
def test_what_answers_at_once_does_not_wait_for_the_dashboards_library(command: str) -> None:
    code = f"import sys; from vramtop.tui.cli.main import command_module; command_module({command!r}); "
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print('textual' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_each_command_has_a_module_and_arguments() -> None:
    assert list(ADD_ARGUMENTS) == list(COMMANDS)
    assert all(callable(command_module(name).run) for name in COMMANDS)
