"""No other command's module is imported than that of the chosen one."""

import subprocess
import sys

import pytest

PREFIX = "vramtop.tui.cli.commands."
SHOW_IMPORTED = f"""
import sys
from vramtop.tui.cli.main import main
main(sys.argv[1:])
print(sorted(name.removeprefix({PREFIX!r}) for name in sys.modules if name.startswith({PREFIX!r})), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [
        (["--help"], []),
        (["doctor", "--help"], []),
        (["--job", "fit", "estimate", "--help"], []),
        (["fit", "--precision"], []),
        (["--once"], ["once"]),
    ],
)
def test_only_the_chosen_command_is_imported(arguments: list[str], imported: list[str]) -> None:
    command = [sys.executable, "-c", SHOW_IMPORTED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == str(imported)


@pytest.mark.parametrize("command", ["fit", "attach"])
def test_what_answers_at_once_does_not_wait_for_the_dashboards_library(command: str) -> None:
    code = f"import sys; from vramtop.tui.cli.main import command_module; command_module({command!r}); "
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print('textual' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
