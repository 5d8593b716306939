"""The exit codes of real processes are those that help, manual page and documentation give for the command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vramtop.tui.cli.main import COMMANDS
from vramtop.tui.cli.parsing.exit_codes import OF_COMMANDS, exit_codes_of, exit_codes_sentence

CASES = (
    ("estimate gpt2", 0),
    ("estimate no-such-model", 2),
    ("fit gpt2 --gpu-type h100", 0),
    ("fit llama-3.1-70b --bf16 --gpu-type 4090", 1),
    ("fit llama-3.1-70b --no-such-flag", 2),
    ("attach 2147483646", 2),
    ("history", 0),
    ("history zzzz", 2),
    ("report no-such-file", 2),
    ("run -- /no/such/program", 2),
    ("run -- sh -c 'exit 7'", 7),
    ("completion bash", 0),
)


def vramtop(arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    environ = os.environ | {f"XDG_{kind}_HOME": str(folder / kind) for kind in ("CONFIG", "DATA", "CACHE")}
    script = Path(sys.executable).with_name("vramtop")
    command = ["sh", "-c", f"exec '{script}' {arguments}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environ, cwd=folder)


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "code"), CASES)
def test_a_command_ends_with_the_exit_code_that_is_written(arguments: str, code: int, tmp_path: Path) -> None:
    done = vramtop(arguments, tmp_path)
    assert done.returncode == code, done.stderr
    assert code in exit_codes_of(arguments.split(maxsplit=1)[0]) or arguments.startswith("run")


def test_every_command_has_its_exit_codes() -> None:
    assert OF_COMMANDS.keys() == {"", *COMMANDS}
    assert all({0, 2} <= exit_codes_of(command).keys() for command in OF_COMMANDS)


def test_codes_are_written_as_numbers() -> None:
    """On each Python: the text of an enumeration's members has changed."""
    assert exit_codes_sentence("fit").startswith("Exit codes: 0 it fits; 1 it does not fit; 2 wrong input; 3 unknown")
