"""Commands when the system starts no further process or thread (ulimit -u): one sentence, never an internal error."""

import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.process_limit import process_limit_error
from vramtop.estimator.trace.worker_process import Worker
from vramtop.tui.background.latest_only_task import LatestOnlyTask
from vramtop.tui.cli.main import COMMANDS

SENTENCE = "cannot start another process or thread"
REFUSING = """
import _posixsubprocess, errno, os, sys, threading
left = int(sys.argv.pop(1))
def limited(function, error):
    def call(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            raise error
        return function(*args, **kwargs)
    return call
def refuse(module, name, error):
    setattr(module, name, limited(getattr(module, name), error))
fork_error = BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))  # as the system and Python raise them
refuse(os, "fork", fork_error)
refuse(_posixsubprocess, "fork_exec", fork_error)
import subprocess
subprocess._fork_exec = _posixsubprocess.fork_exec
for name in ("_start_new_thread", "_start_joinable_thread"):  # until Python 3.13, and from 3.13 on
    if hasattr(threading, name):
        refuse(threading, name, RuntimeError("can't start new thread"))
from vramtop.tui.cli import main
sys.exit(main())
"""
JOB = '[model]\nid = "tiny"\n[model.config]\nmodel_type = "llama"\nhidden_size = 64\nintermediate_size = 128\n' + (
    "num_hidden_layers = 2\nnum_attention_heads = 4\nnum_key_value_heads = 2\nvocab_size = 1000\n"
)
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "attach": ("PID",),
    "record": ("r.jsonl.gz", "--seconds", "0.1"),
    "run": ("--", "true"),
    "doctor": (),
}
"""Arguments by command; every other command gets a job. PID is that of the tests."""
LINES = [(name, *ARGUMENTS.get(name, ("job.toml",))) for name in COMMANDS]
LINES += [("--once",), ("--once", "--json"), ("fit", "job.toml", "--method", "exact", "--gpu-type", "h100-80gb")]


def run(folder: Path, line: Sequence[str], allowed: int) -> tuple[int, str, str]:
    (folder / "job.toml").write_text(JOB)
    (folder / "main.py").write_text(REFUSING)
    environ = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "XDG_DATA_HOME": str(folder / "data")}
    done = subprocess.run(
        [sys.executable, "main.py", str(allowed), *(str(os.getpid()) if each == "PID" else each for each in line)],
        cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def check(answer: tuple[int, str, str]) -> None:
    code, output, errors = answer
    assert code in (0, 1, 2, 3, 4), errors
    assert "internal error" not in errors
    assert "Traceback" not in errors + output
    assert "Exception in thread" not in errors
    assert "cannot be written" not in errors


@pytest.mark.parametrize("line", [("estimate", "job.toml", "--method", "exact"), ("doctor",), ("--once",)], ids=str)
def test_at_the_limit_a_command_says_so(tmp_path: Path, line: tuple[str, ...]) -> None:
    answer = run(tmp_path, line, 0)
    check(answer)
    assert answer[0] == 3
    assert SENTENCE in " ".join("".join(answer[1:]).split())
    assert "raise the limit" in " ".join("".join(answer[1:]).split())


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_no_command_takes_the_limit_for_a_fault_of_its_own(tmp_path: Path, line: tuple[str, ...], allowed: int) -> None:
    check(run(tmp_path, line, allowed))


def _become_a_user_at_the_limit() -> None:
    os.setgid(54321)
    os.setuid(54321)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(each.stat().st_mode & 1 for each in Path(sys.executable).resolve().parents),
    reason="only root can become a user without processes, who must be able to run this Python",
)
def test_a_real_limit_is_recognised() -> None:
    program = "from vramtop.tui.cli import main; main(['--once'])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        preexec_fn=_become_a_user_at_the_limit,
        capture_output=True,
        text=True,
        check=False,
    )
    assert SENTENCE in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: can't start new thread",
        "libgomp: Thread creation failed: Resource temporarily unavailable",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 8: Resource temporarily unavailable\nkilled",
    ],
)
def test_a_worker_at_the_limit_says_so(tmp_path: Path, text: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import sys\nsys.stdin.readline()\nsys.exit({text!r})\n")
    with Worker(Path(sys.executable), program) as worker, pytest.raises(CannotTellError, match=SENTENCE):
        worker.request({}, 30)


def test_other_errors_are_not_the_limit() -> None:
    assert process_limit_error(RuntimeError("odd")) is None
    assert process_limit_error(OSError(2, "no such file")) is None
    assert process_limit_error(ValueError("can't start new thread")) is None
    assert process_limit_error("ImportError: libcudart.so") is None


def test_a_task_of_a_screen_reports_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def refuse(*args: object, **kwargs: object) -> None:
        raise RuntimeError("can't start new thread")

    task = LatestOnlyTask[int]("test", lambda function, *args: bool(function(*args)) or True, print, shown.append)
    monkeypatch.setattr("threading.Thread.start", refuse)
    task.submit(lambda: 1)
    assert SENTENCE in shown[0]
    monkeypatch.undo()
    results: list[int] = []
    again = LatestOnlyTask[int]("test", lambda function, *args: bool(function(*args)) or True, results.append)
    again.submit(lambda: 1)
