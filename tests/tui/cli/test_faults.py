"""Commands report unreadable GPUs with a sentence and an exit code, never a traceback."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from builders import NoDriver, ScriptedSource, make_gpu, make_snapshot
from command_line import vramtop
from json_schemas import valid_json

from vramtop.estimator.common.records import replace
from vramtop.monitor.snapshot.figures import NO_ANSWER, Fault
from vramtop.monitor.snapshot.snapshot import GpuReading, Snapshot

WHY = "the NVIDIA driver is installed but its kernel module is not loaded"
HANGS = "the driver hangs on this GPU: nvmlDeviceGetMemoryInfo has not returned for 5 s"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a command on a machine and returns its exit code and output."""

    def call(snapshot: Snapshot | None, *words: str) -> tuple[int, str, str]:
        source = NoDriver(WHY) if snapshot is None else ScriptedSource([snapshot])
        for module in ("commands.once", "commands.attach", "commands.record", "fitting.machine_gpus"):
            monkeypatch.setattr(f"vramtop.tui.cli.{module}.NvmlSource", lambda **_: source)
        return vramtop(*words)

    return call


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.toml"
    path.write_text('[model]\nid = "llama-3.1-8b"\n[lora]\nrank = 16\ntargets = "all-linear"\n')
    return str(path)


def unread(gpu: GpuReading, faults: Sequence[Fault]) -> GpuReading:
    nothing = dict.fromkeys(("total_bytes", "reserved_bytes", "used_bytes", "free_bytes", "processes"))
    return replace(gpu, **nothing, faults=tuple(faults))


def test_without_a_driver_each_command_states_the_reason(run: Run, job: str, tmp_path: Path) -> None:
    recording = tmp_path / "r.jsonl"
    for words in (["--once"], ["--once", "--json"], ["record", str(recording)]):
        assert run(None, *words) == (3, "", f"vramtop: {WHY}\n")
    assert not recording.exists()
    code, out, err = run(None, "fit", job, "--method", "formula")
    assert (code, err) == (3, "")
    assert f"{WHY[4:]}; describe the machine with --gpu-type or --gpu-memory" in " ".join(out.split())
    assert run(None, "fit", job, "--method", "formula", "--gpu-type", "h100-80gb", "--json")[0] == 0
    assert run(None, "estimate", job, "--method", "formula", "--json")[0] == 0


@pytest.fixture
def training(start_script) -> int:
    """The pid of a Python program that sleeps."""
    return start_script().pid


def test_attach_states_why_the_memory_of_a_process_is_unknown(training: int, run: Run) -> None:
    code, out, _ = run(None, "attach", str(training), "--json")
    assert code == 3
    assert valid_json("attach", out)["faults"] == [WHY]
    assert f"warning: {WHY}" in " ".join(run(None, "attach", str(training))[1].split())
    hangs = unread(make_gpu(1), [Fault(field=None, code=NO_ANSWER, message=HANGS)])
    healthy = make_gpu(0, faults=(Fault(field="power_w", code="NOT_SUPPORTED", message="no power"),))
    _, out, _ = run(make_snapshot([healthy, hangs]), "attach", str(training), "--json")
    assert valid_json("attach", out)["faults"] == [f"GPU 1: {HANGS}"]


def test_attach_does_not_blame_gpus_that_do_not_list_the_process(training: int, run: Run) -> None:
    settings = ("model.id=gpt2", "training.sequence_length=64", "training.micro_batch=1")
    sets = (word for setting in settings for word in ("--set", setting))
    words = ("attach", str(training), "--method", "formula", *sets)
    idle = run(make_snapshot([make_gpu(0)]), *words)
    hangs = unread(make_gpu(0), [Fault(field=None, code=NO_ANSWER, message=HANGS)])
    blind = run(make_snapshot([hangs]), *words)
    assert "it is not on a GPU that is visible here" in idle[1]
    assert "vramtop cannot read its memory use" in blind[1]


def test_fit_states_why_available_memory_is_unknown_and_uses_another_gpu(run: Run, job: str) -> None:
    hangs = unread(make_gpu(0), [Fault(field=None, code=NO_ANSWER, message=HANGS)])
    host = ("--host-memory", "1TiB", "--method", "formula")
    code, out, _ = run(make_snapshot([hangs, make_gpu(1)]), "fit", job, *host)
    assert code == 0
    assert "fits on GPU 1" in out
    assert HANGS in out
    code, out, _ = run(make_snapshot([hangs]), "fit", job, *host, "--json")
    assert code == 3
    report = valid_json("fit", out)
    assert report["verdict"] == "unknown"
    assert report["sentence"].endswith(f"the memory available on GPU 0 is unknown: {HANGS}")


def test_once_shows_known_figures_beside_unknown_ones(run: Run) -> None:
    hangs = unread(make_gpu(1), [Fault(field=None, code=NO_ANSWER, message=HANGS)])
    snapshot = make_snapshot([make_gpu(0), hangs])
    code, out, err = run(snapshot, "--once")
    assert (code, err) == (0, "")
    assert f"GPU 1: {HANGS}" in out
    gpus = valid_json("once", run(snapshot, "--once", "--json")[1])["gpus"]
    assert gpus[0]["used_bytes"] == snapshot.gpus[0].used_bytes
    assert gpus[1]["used_bytes"] is gpus[1]["processes"] is None
    assert [fault["code"] for fault in gpus[1]["faults"]] == [NO_ANSWER]


def test_a_recording_without_a_reading_is_reported(monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path) -> None:
    monkeypatch.setattr(ScriptedSource, "read", lambda self: None)
    code, out, err = run(make_snapshot([]), "record", str(tmp_path / "r.gz"), "--seconds", "0.1")
    assert (code, out) == (3, "")
    assert "nothing was recorded" in err


def test_unknown_versions_are_not_invented(run: Run) -> None:
    snapshot = make_snapshot([])
    nameless = replace(snapshot, source=replace(snapshot.source, driver_version=None, cuda_version=None))
    out = run(nameless, "--once")[1]
    assert out.splitlines()[0] == "gpubox-3, 0 GPUs"


@pytest.mark.parametrize(
    "words",
    [("preflight", "gpt2", "--gpu-memory", "8GiB"), ("fit", "--gpu-memory", "8GiB", "--", "python", "train.py")],
)
def test_a_current_folder_that_was_removed_is_said(run, tmp_path, monkeypatch, words) -> None:
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    code, output, errors = run(None, *words)
    assert (code, output) == (2, "")
    assert errors == "vramtop: the current folder no longer exists; change to one that does\n"
