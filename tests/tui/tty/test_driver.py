"""Signals and lost terminals end the dashboard, which restores the terminal. Real processes and terminals."""

import gzip
import json
import os
import signal
import sys

import pytest
from slow_cases import first_quick, quick_every
from waiting import until

from vramtop.monitor.sources.replay import ReplaySource

DRAWN = "Quit"
SANE = {1049: False, 25: True, 1000: False, 1006: False, 1004: False, 2004: False, 7: True}
"""Main screen, cursor seen, no mouse, no focus events, no bracketed paste, lines wrap."""


@pytest.fixture
def demo(on_terminal):
    """Return a function that starts the dashboard and waits until it is drawn."""

    def start(*words: str, **how: object):
        dashboard = on_terminal("--demo", *words, **how)
        dashboard.wait_for(DRAWN)
        return dashboard

    return start


def is_sane(terminal) -> bool:
    return terminal.echoes and {number: terminal.mode(number) for number in SANE} == SANE


@pytest.mark.parametrize("name", quick_every(2, ["SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT"]))
def test_a_signal_ends_the_dashboard_and_restores_the_terminal(demo, name) -> None:
    dashboard, number = demo(), getattr(signal, name)
    os.kill(dashboard.pid, number)
    assert dashboard.end() == 128 + number
    assert is_sane(dashboard)
    assert b"Traceback" not in dashboard.written


def test_a_signal_ends_the_dashboard_even_if_the_terminal_accepts_no_output(demo) -> None:
    """On a stalled connection the output is not read, and the program blocks while it draws."""
    dashboard = demo("--interval", "0.1", size=(400, 100))
    until(lambda: dashboard.type("?\x1b") or dashboard.is_full())
    os.kill(dashboard.pid, signal.SIGTERM)
    until(dashboard.has_ended)
    assert dashboard.code == 128 + signal.SIGTERM
    assert dashboard.echoes


@pytest.mark.parametrize("shell", first_quick(["trap '' HUP; exec {}", "exec {}"]))
def test_a_closed_terminal_ends_the_dashboard_even_under_nohup(on_terminal, shell) -> None:
    command = shell.format(f"{sys.executable} -m vramtop.tui.cli --demo")
    dashboard = on_terminal("-c", command, program=("sh",))
    dashboard.wait_for(DRAWN)
    dashboard.hang_up()
    until(dashboard.has_ended)
    assert dashboard.code == 128 + signal.SIGHUP


@pytest.mark.slow
def test_a_recording_is_complete_after_the_terminal_was_closed(demo, in_folder) -> None:
    dashboard = demo()
    dashboard.type("r")
    dashboard.wait_for("recording")
    dashboard.until(lambda: any(path.stat().st_size > 200 for path in in_folder.glob("*.gz")))  # its first reading
    dashboard.hang_up()
    until(dashboard.has_ended)
    (path,) = in_folder.glob("*.jsonl.gz")
    assert all(json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines())
    source = ReplaySource(path)
    source.open()
    assert source.read().gpus


@pytest.mark.parametrize("key", first_quick(["\x1a", None]))
def test_suspending_restores_the_terminal_and_resuming_redraws_everything(demo, key) -> None:
    dashboard = demo()
    if key:
        dashboard.type(key)
    else:
        os.kill(dashboard.pid, signal.SIGTSTP)
    dashboard.until(dashboard.stopped)
    dashboard.until(lambda: is_sane(dashboard))
    before = len(dashboard.written)
    os.kill(dashboard.pid, signal.SIGCONT)
    dashboard.wait_for(DRAWN, since=before)
    dashboard.wait_for("gpubox-3", since=before)  # also lines that have not changed
    dashboard.until(lambda: dashboard.mode(1049) and not dashboard.echoes)
    dashboard.type("q")
    assert dashboard.end() == 0
    assert is_sane(dashboard)


def test_standard_error_may_be_redirected(on_terminal) -> None:
    command = f"exec {sys.executable} -m vramtop.tui.cli --demo 2> /dev/null"
    dashboard = on_terminal("-c", command, program=("sh",))
    dashboard.wait_for(DRAWN)
    dashboard.type("q")
    assert dashboard.end() == 0


def test_a_terminal_gets_only_queries_that_it_understands(demo) -> None:
    modern, old = demo(), demo(environ={"TERM": "linux"})
    assert b"\x1b[?2026$p" in modern.written
    assert b"$p" not in old.written


def test_continuing_while_the_dashboard_draws_does_not_freeze_it(demo) -> None:
    """A signal may interrupt the drawing anywhere, also inside the lock of the queue of output."""
    dashboard = demo()
    for _ in range(150):
        dashboard.type("\x0c")  # Ctrl-L draws everything
        os.kill(dashboard.pid, signal.SIGCONT)
        dashboard.read(0.002)
    dashboard.type("q")
    assert dashboard.end() == 0


def test_a_key_of_a_terminal_that_is_not_in_utf8_is_lost_and_the_next_one_counts(demo) -> None:
    dashboard = demo()
    os.write(dashboard.terminal, b"\xe9x")
    dashboard.until(lambda: dashboard.has_ended() or dashboard.type("q"))  # what is read at once with it is lost too
    assert dashboard.end() == 0
