"""Deliberate internal errors: the message to the user and the file for a bug report."""

import os
import subprocess
import sys

import pytest

from vramtop.tui.cli.crash_report import save_fault

SCREEN = """
import sys
from vramtop.tui.cli.main import main
from vramtop.tui.screens.dashboard.screen import DashboardScreen

def broken(self, board):
    raise RuntimeError("a screen\\x1b[31m that breaks")

DashboardScreen.show_board = broken
sys.exit(main(["--demo"]))
"""
THREAD = SCREEN.replace("DashboardScreen.show_board = broken", "Watchlist.update = broken").replace(
    "from vramtop.tui.cli.main import main",
    "from vramtop.monitor.board.watchlist import Watchlist\nfrom vramtop.tui.cli.main import main",
)
COMMAND = """
import sys
from vramtop.tui import cli
from vramtop.tui.cli.commands import estimate

def broken(options, launch):
    raise RuntimeError("a command that breaks")

estimate.run = broken
sys.exit(cli.main(["estimate", "gpt2"]))
"""


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "vramtop"


def test_a_crash_of_a_screen_restores_the_terminal_and_prints_one_sentence(on_terminal, data_folder) -> None:
    broken = on_terminal(program=(sys.executable, "-c", SCREEN))
    assert broken.end() == os.EX_SOFTWARE
    assert (broken.echoes, broken.mode(1049), broken.mode(25), broken.mode(1000)) == (True, False, True, False)
    said = broken.written[broken.written.rindex(b"vramtop: ") :].decode()
    (kept,) = data_folder.glob("fault-*.txt")
    assert said.strip().replace("\r\n", "") == (
        "vramtop: internal error (RuntimeError: a screen [31m that breaks); please report it to vramtop's issue"
        f" tracker, with {kept} and the output of vramtop doctor"
    )
    assert "Traceback" in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_crash_of_a_thread_is_shown_on_the_screen(on_terminal, data_folder) -> None:
    broken = on_terminal(program=(sys.executable, "-c", THREAD), size=(200, 40))
    broken.wait_for("internal error")
    broken.type("q")
    assert broken.end() == 0


def test_a_crash_of_a_command_prints_one_sentence_and_is_no_verdict(data_folder) -> None:
    done = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (os.EX_SOFTWARE, "")
    assert done.stderr.startswith("vramtop: internal error (RuntimeError: a command that breaks); please report")
    assert len(done.stderr.splitlines()) == 1


def test_without_a_writable_file_the_sentence_names_the_place_of_the_crash(monkeypatch, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    done = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True, check=False)
    assert "RuntimeError: a command that breaks, in <string>, line 7" in done.stderr


def test_the_file_of_a_crash_has_no_secrets_on_any_of_its_lines(data_folder) -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQ\n-----END PRIVATE KEY-----"
    path = save_fault(f"ValueError: {key}\nhf_token: hunter\nmodel: gpt2\n")
    assert path.read_text().splitlines()[1:] == ["ValueError: ***", "hf_token: ***", "model: gpt2"]
