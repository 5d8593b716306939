"""A suite (``make gpu``): the table, the rows that are kept, and jobs that have one GPU in turn."""

import functools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import make_gpu, make_process, make_snapshot
from suite import chosen_parts, main, read_suite
from waiting import until

from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job
from vramtop.estimator.trace.installed_packages import (
    InstalledPackages,
    Interpreter,
    TorchBuild,
    installed_packages,
    torch_build,
)
from vramtop.estimator.trace.measure.measured_step import MeasuredRank, MeasuredStep, OutOfMemory, StepPeak
from vramtop.estimator.trace.measure.real_step import Place
from vramtop.monitor.snapshot.snapshot import Snapshot

TABLE = """
[job.training]
precision = "bf16"
[models.small]
id = "gpt2"
[models.own]
id = "vision:Net"
task = "image-classification"
[[part]]
name = "steps"
steps = 6
jobs = [
    { model = "small", training = { micro_batch = 4, sequence_length = 64, optimizer = "adamw-8bit" } },
    { model = "small", attention = "eager", training = { micro_batch = 2, sequence_length = 32 } },
]
[[part]]
name = "others"
programs = [{ name = "says", file = "says.py", arguments = ["--much"], seconds = 20 }]
"""
SAYS = """
import json, os, sys
print(json.dumps({"name": "arguments", "given": sys.argv[1:], "torch": bool(os.environ["VRAMTOP_TORCH_PYTHON"])}))
print("not JSON")
print('{"name": ' + "[" * 5000)
sys.exit("it breaks here")
"""
pytestmark = pytest.mark.slow
PYTHON = sys.executable
Suite = Callable[..., tuple[int, Any, str]]


@pytest.fixture(scope="module", autouse=True)
def _quick_python(python_with_torch: str) -> Iterator[None]:
    """Measure under a Python that has imported torch already, and ask it about its torch once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", python_with_torch)
        patch.setattr("suite.torch_build", functools.cache(torch_build))
        yield


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "says.py").write_text(SAYS)
    path = tmp_path / "suite.toml"
    path.write_text(TABLE)
    return path


@pytest.fixture
def without_bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let bitsandbytes not be installed."""

    def without(*args: Any, **kwargs: Any) -> InstalledPackages:
        found = installed_packages(*args, **kwargs)
        versions = {name: number for name, number in found.versions.items() if name != "bitsandbytes"}
        return msgspec.structs.replace(found, versions=versions)

    monkeypatch.setattr("suite.installed_packages", without)


@pytest.fixture
def measured(table: Path, capsys: pytest.CaptureFixture[str]) -> Suite:
    """Return exit code, results and progress of the suite."""

    def run(*words: str) -> tuple[int, Any, str]:
        code = main([str(table), "--json", *words])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else None, err

    return run


def test_jobs_have_their_tables_settings_and_names_that_say_them(table: Path) -> None:
    steps, others = read_suite(table)
    eight, eager = steps.jobs
    assert (eight.name, eager.name) == ("small b4 s64 bf16 adamw-8bit", "small b2 s32 eager bf16")
    assert (eight.job.training.precision, eight.job.training.optimizer) == ("bf16", "adamw-8bit")
    assert (eight.needs, eager.needs) == (("transformers", "bitsandbytes"), ("transformers",))
    assert eager.job.model.attention == "eager"
    assert [program.arguments for program in others.programs] == [["--much"]]
    assert chosen_parts((steps, others), ["2", "steps"]) == (others, steps)
    assert chosen_parts((steps, others), []) == (steps, others)


@pytest.mark.usefixtures("without_bitsandbytes")
def test_a_suite_on_the_cpu_keeps_every_row_and_goes_on_where_it_stopped(measured: Suite, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    code, first, progress = measured("--cpu", "--part", "1", "--out", str(out))
    assert (code, first["card"], first["machine"]["cores"] > 0) == (0, None, True)
    lacking, ran = first["rows"]
    assert (lacking["error"], lacking["lacks"], lacking["measured"]) == ("needs bitsandbytes", ["bitsandbytes"], None)
    step = ran["measured"]["measured"]
    assert (ran["name"], ran["error"], ran["measured"]["device"]) == ("small b2 s32 eager bf16", None, "cpu")
    assert {each["phase"] for each in step["by_step"]} == {"loading", "forward", "backward", "optimizer step"}
    assert max(each["allocated"] for each in step["by_step"]) == step["max_allocated_bytes"]
    for told in (ran["formula"], ran["measured"]["predicted"]):
        assert told["allocated_bytes"] == pytest.approx(step["max_allocated_bytes"], rel=0.1)
    assert (ran["formula"]["method"], ran["measured"]["predicted"]["method"]) == ("formula", "traced")
    assert "steps: small b2 s32 eager bf16; allocated " in progress

    _, second, progress = measured("--cpu", "--out", str(out))
    assert json.loads(out.read_text()) == second
    assert "1 of them measured before" in progress
    assert {row["name"]: row for row in second["rows"]}["small b2 s32 eager bf16"] == ran
    says = second["rows"][-1]
    assert (says["part"], says["error"]) == ("others", "it ended with code 1: it breaks here")
    given, other, deep = says["figures"]
    assert given == {"name": "arguments", "given": ["--much", "--cpu"], "torch": True}
    assert other["error"].endswith("not JSON")
    assert "nested too deeply" in deep["error"]


def test_results_of_another_card_or_no_results_are_not_overwritten(measured: Suite, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    out.write_text("{}")
    code, _, complaint = measured("--cpu", "--out", str(out))
    assert (code, "not the results of a suite" in complaint, out.read_text()) == (2, True, "{}")
    other = {"card": "NVIDIA A100", "driver": None, "started": "", "machine": {}, "versions": {}, "rows": []}
    out.write_text(json.dumps(other))
    code, _, complaint = measured("--cpu", "--out", str(out))
    assert (code, "has the results of NVIDIA A100; give another file" in complaint) == (2, True)


def test_a_program_that_hangs_is_ended_with_its_children_and_its_figures_stay(
    table: Path, measured: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python_with_torch: str
) -> None:
    monkeypatch.setattr(sys, "executable", PYTHON)  # the other one ends the children itself
    pid = tmp_path / "pid"
    table.with_name("says.py").write_text(
        "import json, pathlib, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(child.pid))\n"
        "print(json.dumps({'name': 'first'}), flush=True)\ntime.sleep(600)\n"
    )
    table.write_text(TABLE.replace("seconds = 20", "seconds = 2"))
    code, found, _ = measured("--cpu", "--part", "others", "--python", python_with_torch)
    [row] = found["rows"]
    assert (code, row["error"], row["figures"]) == (0, "it was killed after 2 s", [{"name": "first"}])
    until(
        lambda: (
            not Path(f"/proc/{pid.read_text()}").exists()
            or "\nState:\tZ" in Path(f"/proc/{pid.read_text()}/status").read_text()
        )
    )


def test_what_there_is_no_time_for_is_left_and_said(table: Path, measured: Suite) -> None:
    table.write_text(TABLE.replace('name = "others"', 'name = "others"\nminutes = 0.2'))  # the program may take 20 s
    code, found, progress = measured("--cpu", "--part", "others")
    assert (code, found["rows"]) == (3, [])
    assert "others: no time left for 1; run the same command again to continue" in progress


class OneGpu:
    """A source with one GPU, on which the processes hold what they were given."""

    def __init__(self) -> None:
        self.held: dict[int, float] = {}

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def read(self) -> Snapshot:
        processes = [make_process(pid, size) for pid, size in self.held.items()]
        used = round((1 + sum(self.held.values())) * GIB)
        return make_snapshot([make_gpu(0, processes, used_bytes=used, free_bytes=79 * GIB)])


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> OneGpu:
    """A machine with a GPU, an interpreter with torch for CUDA and everything else, and no steps that are run."""
    source = OneGpu()
    suite = "suite"
    versions = {"torch": "2.11.0+cu130", "transformers": "5.17.0", "bitsandbytes": "0.50"}
    found = InstalledPackages(python="3.12.3", versions=versions, modules=(), requirements=())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("vramtop.tui.cli.fitting.machine_gpus.NvmlSource", lambda: source)
    interpreter = Interpreter(path=Path("/opt/python"), torch="2.11.0", transformers="5.17.0")
    monkeypatch.setattr(f"{suite}.choose_interpreter", lambda *_: interpreter)
    monkeypatch.setattr(f"{suite}.installed_packages", lambda *_, **__: found)
    monkeypatch.setattr(f"{suite}.torch_build", lambda *_: TorchBuild(version="2.11.0", cuda="13.0"))
    monkeypatch.setattr(f"{suite}.transformers_has_torch", lambda _: True)
    monkeypatch.setattr(f"{suite}._try_gpu", lambda _: None)
    return source


def steps_of(pid: int, failed: OutOfMemory | None = None) -> MeasuredStep:
    peaks = [StepPeak(step=1, phase="forward", allocated=2 * GIB, reserved=3 * GIB)]
    rank = MeasuredRank(
        pid=pid, peaks=peaks, components={}, retries=0, out_of_memory=failed, versions={"torch": "2.11"}
    )
    return MeasuredStep(device="cuda", ranks=(rank,), versions=rank.versions)


def test_jobs_have_the_gpu_one_after_another_and_each_is_compared_with_the_empty_gpu(
    one_gpu: OneGpu, table: Path, measured: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Job] = []
    both_prepared = threading.Barrier(2, timeout=60)
    running, most = 0, 0

    def run(job: Job, _model: object, places: Sequence[Place], **options: Any) -> MeasuredStep:
        nonlocal running, most
        jobs.append(job)
        both_prepared.wait()  # the second is prepared while nothing has run yet
        assert places[0].keep_bytes is None  # the GPU is the suite's alone, also while a job of it runs
        pid = 4711 + len(jobs)
        options["on_stage"]("ready", [pid])
        running, most = running + 1, max(most, running + 1)
        for stage, size in (("context", 0.5), ("first step", 4), ("steady", 5)):
            one_gpu.held = {pid: size}
            options["on_stage"](stage, [pid])
        one_gpu.held = {}
        running -= 1
        failed = OutOfMemory(step=1, phase="backward", message="full", allocated_bytes=GIB, reserved_bytes=GIB)
        return steps_of(pid, failed if job.training.micro_batch == 4 else None)

    monkeypatch.setattr("vramtop.tui.cli.measuring.measure_job.run_real_step", run)
    code, found, _ = measured("--part", "steps", "--method", "formula")
    assert (code, found["card"], most) == (0, "NVIDIA H100 80GB HBM3", 1)
    assert {job.software.torch for job in jobs} == {"2.11.0"}  # predictions are about what runs
    rows = {row["name"]: row for row in found["rows"]}
    for row in rows.values():
        step = row["measured"]["measured"]
        assert (step["process_bytes"], step["device_bytes"], step["context_bytes"]) == (5 * GIB, 5 * GIB, GIB // 2)
        assert step["stages"]["first step"] == {"process_bytes": 4 * GIB, "device_bytes": 4 * GIB}
    full = rows["small b4 s64 bf16 adamw-8bit"]
    assert full["error"] == "out of memory in the backward of step 1: full"
    assert full["measured"]["measured"]["out_of_memory"]["phase"] == "backward"
    [path] = table.parent.glob("h100-80gb-hbm3-*.json")
    assert msgspec.json.decode(path.read_bytes())["card"] == "NVIDIA H100 80GB HBM3"
    yesterday = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86_400))
    path.rename(path.with_name(f"h100-80gb-hbm3-{yesterday}.json"))  # it was begun before midnight
    _, _, progress = measured("--part", "steps", "--method", "formula")
    assert "steps: 2 jobs, 0 programs, 2 of them measured before" in progress
