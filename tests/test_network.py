"""Commands that read this machine and estimate jobs open no connection, nor do the processes that they start."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
EVENTS = "connect bind sendto sendmsg getaddrinfo gethostbyname".split()
def hook(event, arguments):
    if event.partition(".")[::2] in {("socket", name) for name in EVENTS}:
        sys.__stderr__.write(f"NETWORK {event} {arguments[1:]}\\n")
sys.addaudithook(hook)
from vramtop.tui.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
SCRIPT = "from transformers import Trainer, TrainingArguments\nTrainer('gpt2', TrainingArguments('out'))\n"
LOG = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
COMMANDS = [
    "--once",
    "doctor --json",
    "models llama",
    "estimate llama-3.1-8b --method formula --json",
    "fit llama-3.1-8b --gpu-type h100 --method formula",
    "estimate --method formula -- python train.py --max_length 1024",
    "explain run.log",
    "history --json",
]


def environment(folder: Path) -> dict[str, str]:
    places = {name: str(folder / name) for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "HF_HOME")}
    offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # vramtop must not need them
    return {**{name: text for name, text in os.environ.items() if name not in offline}, **places}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "run.log").write_text(LOG)
    return tmp_path


def calls(folder: Path, command: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command.split()],
        cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "internal error" not in done.stderr
    return re.findall(r"^NETWORK .*", done.stderr, re.MULTILINE)


def test_the_hook_sees_a_connection(folder: Path) -> None:
    assert calls(folder, "--prometheus http://127.0.0.1:9 --once")


@pytest.mark.parametrize("command", COMMANDS[:3])
def test_a_command_opens_no_connection(command: str, folder: Path) -> None:
    assert calls(folder, command) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS[3:])
def test_no_other_command_opens_one(command: str, folder: Path) -> None:
    assert calls(folder, command) == []


def may_trace() -> bool:
    strace = shutil.which("strace")
    return (
        bool(strace) and not subprocess.run([strace or "", "-qq", "true"], capture_output=True, check=False).returncode
    )


def addresses(folder: Path, command: str) -> list[str]:
    """Return the calls of a command, and of all that it starts, that name an address, as the kernel sees them."""
    seen = folder / "seen"
    strace = [str(shutil.which("strace")), "-f", "-qq", "-e", "trace=connect,bind,sendto,sendmsg", "-o", str(seen)]
    program = [sys.executable, "-m", "vramtop.tui.cli", *command.split()]
    done = subprocess.run([*strace, *program], cwd=folder, env=environment(folder), capture_output=True, check=False)
    assert done.returncode == 0 or not command.startswith("estimate"), done.stderr
    return [line for line in seen.read_text().splitlines() if "AF_INET" in line]


@pytest.mark.slow
@pytest.mark.skipif(not may_trace(), reason="needs strace")
@pytest.mark.parametrize(
    "command",
    ["estimate gpt2 --method exact", "estimate gpt2 --method traced --sequence-length 64", "doctor", "--once"],
)
def test_processes_that_a_command_starts_open_none_either(command: str, folder: Path) -> None:
    """With the worker that imports torch and transformers."""
    assert addresses(folder, command) == []
