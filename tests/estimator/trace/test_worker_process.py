"""Requests to worker programs in real processes: the shipped program, and small broken ones."""

import ast
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.trace.worker_process import WORKER_PROGRAM, Worker, beside_worker

PYTHON = Path(sys.executable)


def program(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "program.py"
    file.write_text(text)
    return file


def ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_requests_and_answers_in_turn(tmp_path: Path) -> None:
    echo = program(tmp_path, "import sys\nfor line in sys.stdin: print(line, end='', flush=True)\n")

    with Worker(PYTHON, echo) as worker:
        answers = [worker.request({"op": "echo", "text": "ä" * size}, 10) for size in (1, 100_000, 2)]

    assert [(answer["id"], len(answer["text"])) for answer in answers] == [(1, 1), (2, 100_000), (3, 2)]
    assert ended(worker.pid)


def test_work_beside_a_worker_begins_once_it_has_the_request(tmp_path: Path) -> None:
    waiting = "import sys, time, pathlib\nfor line in sys.stdin:\n"
    waiting += "    while not pathlib.Path('began').exists(): time.sleep(0.01)\n    print(line, end='', flush=True)\n"
    began = tmp_path / "began"
    with Worker(PYTHON, program(tmp_path, waiting.replace("'began'", repr(str(began))))) as worker:
        with beside_worker(began.touch):
            assert worker.request({}, 60)["id"] == 1  # answered only because the work was done meanwhile
        began.unlink()
        began.touch()
        assert worker.request({}, 60)["id"] == 2


def test_worker_that_is_too_slow_is_killed(tmp_path: Path) -> None:
    sleeper = program(tmp_path, "import time\ntime.sleep(60)\n")

    with Worker(PYTHON, sleeper) as worker, pytest.raises(CannotTellError, match=r"no answer within 0\.1 s"):
        worker.request({}, 0.1)

    assert ended(worker.pid)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("raise SystemExit('out of patience')", r"ended: out of patience$"),
        ("import os; os.kill(os.getpid(), 9)", r"was killed; the machine's RAM.* run out$"),
        ("print('no JSON', flush=True); sys.stdin.readline()", "ended"),
    ],
)
def test_a_worker_that_ends_or_answers_nonsense_is_told_in_a_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    broken = program(tmp_path, f"import sys\nsys.stdin.readline()\n{text}\n")
    with Worker(PYTHON, broken) as worker, pytest.raises(CannotTellError, match=sentence):
        worker.request({}, 10)


def test_closing_from_another_thread_ends_a_waiting_request(tmp_path: Path) -> None:
    sleeper = program(tmp_path, "import time\ntime.sleep(60)\n")

    with Worker(PYTHON, sleeper) as worker:
        threading.Timer(0.1, worker.close).start()
        with pytest.raises(CannotTellError, match=r"ended$"):  # by vramtop, not for lack of RAM
            worker.request({}, 30)


def test_python_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(CannotTellError, match="cannot be started"):
        Worker(tmp_path / "python9")


@pytest.mark.slow
def test_shipped_program_reports_failures_in_one_sentence_and_continues() -> None:
    llama = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    requests = [
        ({"op": "inventory", "config": {"model_type": "brandnew"}, "task": "causal-lm"}, "does not know .* 'brandnew'"),
        ({"op": "inventory", "config": {**llama}, "task": "masked-lm"}, "no masked-lm head for .* 'llama'"),
        ({"op": "inventory", "config": {**llama, "hidden_size": "x"}, "task": "causal-lm"}, "hidden_size"),
        ({"op": "dance"}, "dance"),
    ]
    with Worker(PYTHON) as worker:
        for request, words in requests:
            with pytest.raises(CannotTellError, match=words):
                worker.request(request, 120)
        counted = worker.request({"op": "inventory", "config": llama, "task": "causal-lm"}, 120)
    assert counted["layers"] == 2


def test_output_printed_by_libraries_does_not_disturb_the_answers(tmp_path: Path) -> None:
    """Both Python's prints and output of native code to file descriptor 1."""
    (tmp_path / "torch.py").write_text(
        "import os\nprint('hello')\nos.write(1, b'native\\n')\n__version__, _C, version = '9', None, None\n"
    )

    with Worker(PYTHON, environ={"PYTHONPATH": str(tmp_path)}) as worker:
        answer = worker.request({"op": "torch"}, 30)

    assert answer["version"] == "9"


def test_shipped_program_runs_no_code_that_came_with_a_model(tmp_path, ask_worker) -> None:
    (tmp_path / "modeling_evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config = {
        "model_type": "evil",
        "_name_or_path": str(tmp_path),
        "auto_map": {"AutoConfig": "modeling_evil.C", "AutoModelForCausalLM": "modeling_evil.M"},
    }

    with pytest.raises(CannotTellError, match="its own code; give --trust-remote-code"):
        ask_worker({"op": "inventory", "config": config, "task": "causal-lm"})

    assert not (tmp_path / "ran").exists()


def test_worker_programs_keep_to_python_3_9() -> None:
    for file in WORKER_PROGRAM.parent.rglob("*.py"):
        ast.parse(file.read_text(encoding="utf-8"), str(file), feature_version=(3, 9))


def test_a_busy_worker_ends_with_the_program(tmp_path: Path) -> None:
    """A daemon thread waits for the worker, as in the dashboard's screens, so no code closes it."""
    busy = tmp_path / "busy.py"
    busy.write_text("import time\ntime.sleep(600)\n")
    holder = (
        "import sys, threading, time\n"
        "from pathlib import Path\n"
        "from vramtop.estimator.trace.worker_process import Worker\n"
        "worker = Worker(Path(sys.executable), Path(sys.argv[1]))\n"
        "threading.Thread(target=lambda: worker.request({'op': 'ping'}, 600), daemon=True).start()\n"
        "time.sleep(0.2)\n"
        "print(worker.pid)\n"
    )
    command = [sys.executable, "-c", holder, str(busy)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert not Path(f"/proc/{int(done.stdout)}").exists() or "Z" in Path(f"/proc/{int(done.stdout)}/stat").read_text()
