"""Memory snapshots of processes with the probe, in real child processes beside a stub of torch's CUDA interface.

The stub keeps torch's order: calls queued by ``_lazy_call`` run when CUDA is initialized, observers are called before
the exception, and both would be errors if they came from anywhere else.
"""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from json_schemas import valid_json
from waiting import until

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.crash.snapshot.snapshot_reader import parse_snapshot
from vramtop.monitor.probe import ask_snapshot as ask, snapshots
from vramtop.monitor.probe.launch import probed_environment
from vramtop.monitor.probe.probe_reader import ProbeReader
from vramtop.tui.cli.main import main

TORCH = """
    import sys, types
    class OutOfMemoryError(RuntimeError): pass
    class C:
        observers = []
        recording = None
        @staticmethod
        def _cuda_isHistoryEnabled(): return C.recording is not None
        @staticmethod
        def _cuda_attach_out_of_memory_observer(observer):
            assert cuda.has_context, "this would create a CUDA context"
            C.observers.append(observer)
    _C = C
    class memory:
        @staticmethod
        def _record_memory_history(enabled="all", **options):
            assert cuda.has_context, "this would create a CUDA context"
            C.recording = options
        @staticmethod
        def _snapshot():
            frames = [{"filename": "/u/train.py", "line": 7, "name": "forward"}] if C.recording else []
            block = {"address": 4096, "size": 2097152, "requested_size": 2097152, "state": "active_allocated",
                     "frames": frames}
            trace = [{"action": "oom", "size": 999424, "device_free": 5, "stream": 0, "frames": frames}]
            return {"segments": [{"device": 0, "address": 4096, "total_size": 4194304, "blocks": [block]}],
                    "device_traces": [trace if C.recording else []]}
    class cuda:
        has_context = initialized = False
        queue = []
        memory = memory
        @staticmethod
        def is_initialized(): return cuda.initialized
        @staticmethod
        def _lazy_call(call): call() if cuda.initialized else cuda.queue.append(call)
        @staticmethod
        def init():
            cuda.has_context = True
            for call in cuda.queue: call()
            cuda.initialized = True
        @staticmethod
        def device_count(): return 1
        @staticmethod
        def get_device_properties(index): return types.SimpleNamespace(uuid="abc", total_memory=8 << 30)
        @staticmethod
        def memory_stats_as_nested_dict(index):
            return {"allocated_bytes": {"all": {"current": 5, "peak": 5}},
                    "reserved_bytes": {"all": {"current": 7, "peak": 9}}, "active_bytes": {"all": {"current": 6}}}
    def fail():
        for observer in C.observers: observer(0, 999424, 8 << 30, 5)
        raise OutOfMemoryError("CUDA out of memory")
    __version__ = "2.99"
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, start_python: Start) -> Start:
    """Start Python code in ``work`` beside the stub, in ``vramtop run``'s environment."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(textwrap.dedent(TORCH))
    (tmp_path / "work").mkdir()

    def start_code(code: str, *, folder: str | None = None, probed: bool = True) -> "subprocess.Popen[str]":
        environ = {**os.environ, "PYTHONPATH": str(tmp_path), "RANK": "3"}
        environ = probed_environment(environ, snapshot_folder=folder) if probed else environ
        return start_python(code, cwd=tmp_path / "work", env=environ)

    return start_code


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


CRASH = "import torch; torch.cuda.init(); print('begun'); torch.fail()"


def test_a_run_that_dies_of_memory_leaves_a_snapshot_and_is_otherwise_unchanged(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    plain = ended(start(CRASH))
    code, out, err = ended(start(CRASH, folder=str(folder)))
    (file,) = folder.iterdir()
    said, rest = err.split("\n", 1)
    assert (code, out, rest) == plain
    assert said.startswith(f"vramtop: out of GPU memory; a snapshot is in {file} (")
    assert said.endswith(f"vramtop explain {file}")
    assert file.name.startswith("vramtop-oom-rank3-")
    assert file.stat().st_mode & 0o777 == 0o600
    with file.open("rb") as opened:
        found = parse_snapshot(opened)
    assert (found.failed.tried_bytes, found.failed.free_bytes, found.total_bytes) == (999424, 5, 8 << 30)
    assert str(found.groups[0].place) == "u/train.py:7 forward"
    assert main(["explain", str(file)]) == 0


def test_without_the_flag_nothing_is_recorded_and_nothing_written(start: Start, tmp_path: Path) -> None:
    code, _, err = ended(start("import torch; torch.cuda.init(); print(torch.C.recording); torch.fail()"))
    assert (code, "vramtop" in err) == (1, False)
    assert not list((tmp_path / "work").iterdir())


def test_the_history_is_bounded_and_begins_only_once_the_program_uses_the_gpu(start: Start, tmp_path: Path) -> None:
    code = """
    import torch
    assert torch.C.recording is None and not torch.C.observers
    torch.cuda.init()
    print(torch.C.recording["max_entries"], torch.C.recording["stacks"], len(torch.C.observers))
    """
    assert ended(start(code, folder=str(tmp_path)))[:2] == (0, f"{snapshots.MAX_ENTRIES} python 1\n")


@pytest.mark.parametrize(
    "code",
    [
        "print('no torch'); raise SystemExit(7)",
        "import torch; print('no GPU'); raise SystemExit(7)",
        "import torch; torch.cuda.init(); print('ends well'); raise SystemExit(7)",
        "import torch; del torch.cuda._lazy_call; print('another torch'); raise SystemExit(7)",
        "import torch; torch._C = None; torch.cuda.init(); print('another torch'); raise SystemExit(7)",
    ],
)
def test_programs_that_do_not_run_out_of_memory_are_unchanged(start: Start, tmp_path: Path, code: str) -> None:
    assert ended(start(code, folder=str(tmp_path / "work"))) == ended(start(code, probed=False))
    assert not list((tmp_path / "work").iterdir())


def test_a_history_that_the_program_records_stays_its_own(start: Start, tmp_path: Path) -> None:
    code = """
    import torch
    torch.cuda.queue.insert(0, lambda: torch.cuda.memory._record_memory_history("all", max_entries=5))
    torch.cuda.init()
    print(torch.C.recording, len(torch.C.observers))
    """
    assert ended(start(code, folder=str(tmp_path)))[1] == "{'max_entries': 5} 1\n"


def test_a_program_that_fails_again_and_again_writes_one_snapshot(start: Start, tmp_path: Path) -> None:
    code = """
    import torch
    torch.cuda.init()
    for _ in range(50):
        try:
            torch.fail()
        except torch.OutOfMemoryError:
            pass
    """
    code_of_exit, _, err = ended(start(code, folder=str(tmp_path / "work")))
    assert (code_of_exit, err.count("out of GPU memory")) == (0, 1)
    assert len(list((tmp_path / "work").iterdir())) == 1


def test_a_snapshot_that_fails_leaves_the_programs_own_exception(start: Start, tmp_path: Path) -> None:
    broken = "import torch; torch.cuda.init(); torch.memory._snapshot = None; torch.fail()"
    code, _, err = ended(start(broken, folder=str(tmp_path / "work")))
    assert (code, err.splitlines()[-1]) == (1, "torch.OutOfMemoryError: CUDA out of memory")
    assert "TypeError" not in err


def test_what_cannot_be_written_in_the_folder_goes_to_that_for_temporary_files(monkeypatch, tmp_path) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: True, memory=SimpleNamespace(_snapshot=lambda: {"segments": []}))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    monkeypatch.setitem(snapshots.settings, "folder", "/proc/nowhere")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path, size = snapshots.dump("oom")
    assert Path(path).parent == tmp_path
    assert Path(path).stat().st_size == size
    monkeypatch.setattr(snapshots, "MAX_FILE_BYTES", 10)
    with pytest.raises(snapshots.CannotDumpError, match="more than"):
        snapshots.dump("large")
    assert not [each for each in tmp_path.iterdir() if "large" in each.name]
    monkeypatch.setenv("TMPDIR", "/proc/nowhere")
    monkeypatch.setattr(snapshots, "MAX_FILE_BYTES", 1000)
    with pytest.raises(snapshots.CannotDumpError, match="cannot be written"):
        snapshots.dump("oom")


def probe_is_up(pid: int) -> bool:
    return ProbeReader(pid).read() is not None


@pytest.mark.slow
def test_a_running_process_writes_a_snapshot_when_asked(start, tmp_path, capsys) -> None:
    process = start("import torch; torch.cuda.init(); input()")
    until(lambda: (sample := ProbeReader(process.pid).read()) and sample.devices)
    assert main(["snapshot", str(process.pid), "--json"]) == 0
    said = valid_json("snapshot", capsys.readouterr().out)
    (file,) = (tmp_path / "work").iterdir()
    assert (said["pid"], said["file"], said["bytes"]) == (process.pid, str(file), file.stat().st_size)
    assert main(["snapshot", str(process.pid)]) == 0  # again: the same file anew
    assert f"vramtop explain {file}" in capsys.readouterr().out
    with file.open("rb") as opened:
        found = parse_snapshot(opened)
    assert (found.allocated_bytes, found.has_stacks) == (2 << 20, False)
    process.stdin.write("\n")  # type: ignore[union-attr]
    assert ended(process)[0] == 0


def test_who_cannot_be_asked(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no process 999999999"):
        ask.ask_for_snapshot(999_999_999, timeout=1)
    with pytest.raises(CannotTellError, match="has no probe: start the run with vramtop run"):
        ask.ask_for_snapshot(os.getpid(), timeout=1)
    process = start("import torch; input()")
    until(lambda: probe_is_up(process.pid))
    with pytest.raises(CannotTellError, match="has not used a GPU through torch's own allocator"):
        ask.ask_for_snapshot(process.pid, timeout=1)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(CannotTellError, match="belongs to another user"):
        ask.ask_for_snapshot(process.pid, timeout=1)


@pytest.mark.slow
def test_a_process_that_does_not_answer_or_cannot(start: Start) -> None:
    process = start("import torch; torch.cuda.init(); torch.memory._snapshot = None; input()")
    until(lambda: (sample := ProbeReader(process.pid).read()) and sample.devices)
    with pytest.raises(CannotTellError, match="torch cannot make it: TypeError"):
        ask.ask_for_snapshot(process.pid, timeout=60)
    clock = iter(range(100))
    with pytest.raises(CannotTellError, match="has not answered within 3 s"):
        ask.ask_for_snapshot(process.pid, timeout=3, wait=lambda _: None, now=lambda: next(clock))


def test_a_folder_that_cannot_be_written_to_is_wrong_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--snapshot-on-oom", "/proc/nowhere", "--", "true"]) == 2
    assert "is not a writable folder" in capsys.readouterr().err


def test_run_starts_its_command_with_the_folder(tmp_path: Path) -> None:
    shown = [sys.executable, "-c", "import os; print(os.environ['VRAMTOP_SNAPSHOT_ON_OOM'])"]
    ran = subprocess.run(
        [sys.executable, "-m", "vramtop.tui.cli", "run", "--snapshot-on-oom", "--", *shown],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout.strip() == str(tmp_path)
