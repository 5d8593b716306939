"""The user's own commands, as real processes: facts only in the environment, bounded, ended with vramtop."""

import os
from pathlib import Path

import pytest
from waiting import until

from vramtop.tui.background.user_command import AlertCommand


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]


def test_facts_are_never_part_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VRAMTOP_EXPORT_PASSWORD", "hunter2")
    said: list[str] = []
    queue = AlertCommand('echo "$VRAMTOP_JOB" >> told; env > all', said.append)
    names = ["a'; touch planted; '", "$(touch planted)", '"`touch planted`']
    for name in names:
        queue.add({"VRAMTOP_JOB": name})
    told = tmp_path / "told"
    until(lambda: told.exists() and len(told.read_text().splitlines()) == 3)
    assert told.read_text().splitlines() == names  # one after the other, in order
    until(lambda: "VRAMTOP_JOB" in (tmp_path / "all").read_text())
    assert not (tmp_path / "planted").exists()
    assert "hunter2" not in (tmp_path / "all").read_text()
    assert said == []
    queue.end()


def test_a_name_that_no_variable_can_hold_keeps_no_event_from_the_command(tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = AlertCommand(f'echo "${{VRAMTOP_JOB}}" | head -c 20 >> {told}; echo >> {told}', print)
    for name in ("a\0b", "\ud800", "x" * 2_000_000):
        assert command.run({"VRAMTOP_JOB": name}) is None
    assert told.read_text().split() == ["a", "b", "?", "x" * 20]


def test_a_failure_is_one_notice(tmp_path: Path) -> None:
    said: list[str] = []
    done = tmp_path / "done"
    queue = AlertCommand(f'echo >> {done}; [ -n "$FINE" ]', said.append)
    for fine in ("", "", "1", ""):
        queue.add({"FINE": fine})
    until(lambda: len(said) == 2)
    assert said == [f"--on-alert {queue._command}: it ended with exit code 1"] * 2
    assert done.read_text() == "\n" * 4
    queue.end()


def test_a_command_that_takes_too_long_is_ended_with_what_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    for seconds in (0.3, 3.0, 30.0):  # a busy machine needs longer to start the shell
        command = AlertCommand(f"sleep 600 & echo $! > {pid}; wait", lambda _: None, seconds=seconds)
        assert command.run({}) == f"--on-alert {command._command}: it was killed after {seconds:g} s"
        if pid.exists() and pid.read_text():
            break
    until(lambda: gone(int(pid.read_text())))


def test_it_ends_with_vramtop(tmp_path: Path) -> None:
    said: list[str] = []
    pid = tmp_path / "pid"
    queue = AlertCommand(f"echo $$ >> {pid}; exec sleep 600", said.append)
    queue.add({})
    queue.add({})
    until(lambda: pid.exists() and pid.read_text().endswith("\n"))
    queue.end()
    (started,) = pid.read_text().split()
    until(lambda: gone(int(started)))
    assert pid.read_text().split() == [started]  # the second one was never started
    assert said == []


def test_events_that_nobody_can_handle_in_time_are_left_out_with_one_notice(tmp_path: Path) -> None:
    said: list[str] = []
    pid = tmp_path / "pid"
    queue = AlertCommand(f"echo $$ > {pid}; exec sleep 600", said.append)
    for _ in range(60):
        queue.add({})
    assert said == ["--on-alert: 50 events are waiting for the command; further events are dropped"]
    queue.end()
