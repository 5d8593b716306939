"""Standard streams that are closed, full or unread, with real processes under a real shell."""

import subprocess
import sys

import pytest
from slow_cases import first_quick, quick_every

VRAMTOP = f"{sys.executable} -m vramtop.tui.cli"
ESTIMATE = f"{VRAMTOP} estimate gpt2 --method formula"
UNTIL_WRITTEN = (
    f"ended=$(mktemp -u); mkfifo $ended; trap 'rm $ended' EXIT; ({ESTIMATE}; code=$?; echo > $ended; exit $code)"
)
"""The estimate; the pipe ``$ended`` can be read once it has ended."""


def in_shell(line: str) -> "subprocess.CompletedProcess[str]":
    command = ["bash", "-c", f"set -o pipefail; {line}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("line", "code"),
    quick_every(
        3,
        [
            (f"{UNTIL_WRITTEN} | cat $ended > /dev/null", 0),  # it is not read, but it fits into the pipe
            (f"{ESTIMATE} | true", 141),
            (f"{ESTIMATE} --json | true", 141),
            (f"{UNTIL_WRITTEN} | (head -n 1 > /dev/null; cat $ended > /dev/null)", 0),
            (f"{ESTIMATE} >&-", 0),
            (f"{ESTIMATE} <&- >&- 2>&-", 0),
            (f"{VRAMTOP} estimate no/such-model >&- 2>&-", 2),
            (f"{VRAMTOP} --version | true", 141),
            (f"{VRAMTOP} estimate no/such-model 2> /dev/full", 2),
            (f"{VRAMTOP} --no-such-flag 2> /dev/full", 2),
            (f"{VRAMTOP} estimate no/such-model 2< /dev/null", 2),  # open, and not for writing
            (f"{ESTIMATE} > /dev/full 2> /dev/full", 3),
        ],
        start=1,
    ),
)
def test_output_that_is_not_read_is_no_error(line, code) -> None:
    done = in_shell(line)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize("words", first_quick(["estimate gpt2 --method formula", "--version"]))
def test_output_that_cannot_be_written_is_an_error(words) -> None:
    done = in_shell(f"{VRAMTOP} {words} > /dev/full")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "vramtop: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("around", quick_every(3, ["{} < /dev/null", "echo | {}", "{} <&-", "{} >&-", "{} | cat"]))
def test_the_dashboard_without_a_terminal_is_a_usage_error(around) -> None:
    done = in_shell(around.format(VRAMTOP))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "--once" in done.stderr


@pytest.mark.parametrize(
    "words",
    quick_every(
        6,
        [
            "estimate gpt2 --method formula",
            "fit gpt2 --method formula --gpu-memory 8GiB",
            "preflight gpt2 --method formula --gpu-memory 8GiB --timeout 5",
            "doctor",
            "--help",
            "fit --help",
        ],
        start=1,
    ),
)
def test_a_pipe_gets_plain_text_unless_colour_is_forced(words) -> None:
    plain = in_shell(f"TERM=xterm-256color COLORTERM=truecolor {VRAMTOP} {words} | cat")
    assert plain.stdout
    assert "\x1b" not in plain.stdout + plain.stderr
    if words.startswith("fit gpt2"):
        assert "\x1b[" in in_shell(f"TERM=xterm FORCE_COLOR=1 {VRAMTOP} {words} | cat").stdout
