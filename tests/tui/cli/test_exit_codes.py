"""The exit codes of commands are those that help, manual page and documentation give for them."""

import pytest
from command_line import vramtop

from vramtop.tui.cli.parsing.exit_codes import exit_codes_of


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("estimate gpt2 --method formula", 0),
        ("estimate no-such-model", 2),
        ("fit gpt2 --gpu-type h100 --method formula", 0),
        ("fit gpt2 --gpu-memory 1GiB --method formula", 1),
        ("fit llama-3.1-70b --no-such-flag", 2),
        ("attach 2147483646", 2),
        ("history", 0),
        ("history zzzz", 2),
        ("report no-such-file", 2),
        ("run -- /no/such/program", 2),
        ("completion bash", 0),
    ],
)
def test_a_command_ends_with_the_exit_code_that_is_written(arguments: str, code: int) -> None:
    vramtop(*arguments.split(), code=code)
    assert code in exit_codes_of(arguments.split(maxsplit=1)[0])
