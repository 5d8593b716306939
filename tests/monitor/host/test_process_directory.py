"""Facts about real processes: alive, ended, zombies, reused pids, hostile names."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import until

from vramtop.monitor.host.plain_text import sanitize_line
from vramtop.monitor.host.process_directory import (
    ENDED_NOTE,
    GONE_NOTE,
    HIDDEN_NOTE,
    STATE_INTERVAL_TICKS,
    ZOMBIE_NOTE,
    ProcessDirectory,
)

NO_SUCH_PID = 2**22 - 1
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


@pytest.fixture
def start(start_python):
    """Start Python code, and wait until its command line can be read, a moment later."""

    def run(code="import time; time.sleep(60)", *words, **more):
        process = start_python(code, *words, **more)
        until(lambda: psutil.Process(process.pid).cmdline())
        return process

    return run


@pytest.fixture
def sleeper(start):
    return start("import time; time.sleep(60)", "--config", "a b")


def wait_for_zombie(pid):
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_pid_without_process_has_only_a_note():
    facts = ProcessDirectory().describe(NO_SUCH_PID)
    assert (facts.start_time, facts.user, facts.name, facts.command, facts.note) == (None, None, None, None, GONE_NOTE)


def test_an_ended_process_keeps_its_facts_while_the_driver_lists_it(sleeper):
    directory = ProcessDirectory()
    before = directory.describe(sleeper.pid)
    directory.end_tick()
    sleeper.kill()
    sleeper.wait()
    after = directory.describe(sleeper.pid)
    assert (after.start_time, after.command, after.note) == (before.start_time, before.command, ENDED_NOTE)
    directory.end_tick()
    directory.end_tick()  # a tick without a query
    assert directory.describe(sleeper.pid).note == GONE_NOTE


def test_a_zombie_is_noted_within_a_few_ticks(sleeper):
    directory = ProcessDirectory()
    start_time = directory.describe(sleeper.pid).start_time
    sleeper.send_signal(signal.SIGKILL)
    wait_for_zombie(sleeper.pid)
    notes = []
    for _ in range(STATE_INTERVAL_TICKS):
        directory.end_tick()
        facts = directory.describe(sleeper.pid)
        assert facts.start_time == start_time
        notes.append(facts.note)
    assert notes[-1] == ZOMBIE_NOTE
    assert ProcessDirectory().describe(sleeper.pid).note == ZOMBIE_NOTE


def test_a_reused_pid_is_another_process(sleeper, start):
    directory = ProcessDirectory()
    before = directory.describe(sleeper.pid)
    directory.end_tick()
    sleeper.kill()
    sleeper.wait()
    start_under(sleeper.pid, start)
    after = directory.describe(sleeper.pid)
    assert after.note is None
    assert after.start_time >= before.start_time
    assert after.command != before.command


def start_under(pid, start):
    """Start a process with exactly this pid, which requires root."""
    for _ in range(200):
        try:
            LAST_PID.write_text(str(pid - 1))
        except OSError:
            pytest.skip("only root can choose the next pid")
        process = start("import time; time.sleep(60)", "--another")
        if process.pid == pid:
            return
        process.kill()
        process.wait()
    pytest.skip("other processes took the pid each time")


def test_a_process_is_read_again_after_exec(start):
    code = "import os, sys; sys.stdin.read(); os.execvp('sleep', ['sleep', '60'])"
    directory = ProcessDirectory()
    process = start(code)
    before = directory.describe(process.pid)
    process.stdin.close()
    until(lambda: psutil.Process(process.pid).cmdline() == ["sleep", "60"])
    for _ in range(STATE_INTERVAL_TICKS):
        directory.end_tick()
        after = directory.describe(process.pid)
    assert before.command.endswith("'60'])")
    assert (after.name, after.command) == ("sleep", "sleep 60")
    assert after.start_time == before.start_time


def test_control_characters_in_command_lines_are_removed(start):
    hostile = "\x1b]0;owned\x07\x1b[31mred\x1b[0m\nnew\tline\x9b2J\u202egnp.exe"
    command = ProcessDirectory().describe(start("import time; time.sleep(60)", hostile).pid).command
    assert command.isprintable()
    assert command.endswith("time.sleep(60) red new line gnp.exe")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("python train.py", "python train.py"),
        ("  a \n b\tc  ", "a b c"),
        ("\x1b[1;31mloud\x1b[0m", "loud"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("torn \x1b", "torn"),
        ("bad \udcff byte", "bad byte"),
        ("größe=1", "größe=1"),
        ("z" + "\u0301" * 200 + "algo", "z\u0301\u0301\u0301algo"),
        ("हिन्दी 模型", "हिन्दी 模型"),
        ("fill\u3164\u115f\uffa0er zero\u200bwidth\ufe0f\u034f", "filler zero width"),
        ("tag\U000e0041 iso\u2066late\u2069", "tag iso late"),
        ("\x00\x07", None),
        ("", None),
    ],
)
def test_untrusted_text_becomes_one_printable_line(text, shown):
    assert sanitize_line(text) == shown


def test_an_unreadable_process_still_has_an_owner(monkeypatch, sleeper):
    def refuse(path, flags):
        raise PermissionError(path)

    monkeypatch.setattr(os, "open", refuse)  # like a /proc that is mounted with hidepid=1
    facts = ProcessDirectory().describe(sleeper.pid)
    assert (facts.user, facts.note, facts.start_time) == (psutil.Process(sleeper.pid).username(), HIDDEN_NOTE, None)


def test_the_parent_is_updated_after_the_first_one_ended(start_python):
    code = "import os, time\nif os.fork():\n os._exit(0)\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
    process = start_python(code)
    orphan = int(process.stdout.readline())
    process.wait()
    assert ProcessDirectory().describe(orphan).parent == psutil.Process(orphan).ppid() != process.pid


def test_the_job_of_a_scheduler_is_read_with_the_process(start):
    environ = {**os.environ, "SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "sft \x1b[31mllama"}
    place = ProcessDirectory().describe(start(env=environ).pid).runs_in
    assert place.startswith("Slurm job 4711 (sft ")
    assert "\x1b" not in place


def test_the_program_that_asks_is_no_process_of_the_run_that_started_it() -> None:
    """``vramtop attach $$``: the shell's only Python program would be vramtop itself."""
    asked = (
        "import os; from vramtop.monitor.host.process_info import descendants, read_process; "
        "print([each.pid for each in descendants(read_process(os.getppid())) if each.pid == os.getpid()])"
    )
    command = ["sh", "-c", f'"{sys.executable}" -c "{asked}"; true']
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip() == "[]"
