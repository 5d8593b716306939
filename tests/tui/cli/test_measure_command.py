"""``vramtop measure``: the command, real steps on the CPU, and on GPUs the driver's side of them."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from builders import NoDriver, make_gpu, make_process, make_snapshot
from command_line import vramtop
from json_schemas import valid_json

from vramtop.estimator.common.sizes import GIB, MIB
from vramtop.estimator.trace.measure.measured_step import MeasuredRank, MeasuredStep, OutOfMemory, StepPeak
from vramtop.estimator.trace.measure.real_step import Place
from vramtop.estimator.trace.measure.tiny_job import tiny_job
from vramtop.monitor.history.history import History
from vramtop.monitor.snapshot.snapshot import GpuProcess, GpuReading, Snapshot

GPT2 = ("gpt2", "--batch-size", "2", "--seq-len", "64", "--precision", "bf16-mixed", "--method", "formula")
Answer = Callable[..., tuple[int, dict[str, Any], str]]


def step_of(device: str = "cuda", failed: OutOfMemory | None = None, ranks: int = 1) -> MeasuredStep:
    rank = MeasuredRank(
        pid=4711,
        peaks=[StepPeak(step=1, phase="forward", allocated=3 * GIB, reserved=4 * GIB)],
        components={"weights": GIB, "gradients": GIB, "optimizer": None},
        retries=0,
        out_of_memory=failed,
        versions={"torch": "2.13.0", "transformers": "5.23.0"},
    )
    return MeasuredStep(device=device, ranks=(rank,) * ranks, versions=rank.versions)  # type: ignore[arg-type]


class Gpus:
    """A source in which the ranks appear while they run, and the places that they were given."""

    def __init__(self, idle: Snapshot, busy: Snapshot) -> None:
        self.idle, self.busy, self.running = idle, busy, False
        self.places: Sequence[Place] = ()

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def read(self) -> Snapshot:
        return self.busy if self.running else self.idle


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Return exit code, JSON and complaint of ``vramtop measure --json``, whose ranks hold 5 GiB of GPU 1 in NVML."""

    def ask(*words: str, step: MeasuredStep, others: int = 0, free: float = 70) -> Any:
        def gpus(*more: GpuProcess) -> list[GpuReading]:
            strangers = [make_process(90 + n, 9) for n in range(others)]
            full = make_gpu(0, [make_process(80, 70)], free_bytes=GIB)
            used = 8 * GIB if more else 2 * GIB
            return [full, make_gpu(1, [*strangers, *more], free_bytes=round(free * GIB), used_bytes=used)]

        source = Gpus(make_snapshot(gpus()), make_snapshot(gpus(make_process(4711, 5))))

        def run(_job: object, _model: object, places: Sequence[Place], **options: Any) -> MeasuredStep:
            source.places = places
            for stage in ("ready", "context", "steady"):
                source.running = stage != "ready"
                options["on_stage"](stage, [4711])
            source.running = False
            return step

        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr("vramtop.tui.cli.fitting.machine_gpus.NvmlSource", lambda: source)
        monkeypatch.setattr("vramtop.tui.cli.measuring.measure_job.run_real_step", run)
        code, out, err = vramtop("measure", *GPT2, "--json", *words)
        return code, {**valid_json("measure", out), "places": list(source.places)}, err

    return ask


def test_the_free_gpu_is_measured_and_kept_in_the_history(on_gpus: Answer) -> None:
    code, said, _ = on_gpus(step=step_of())
    assert (code, said["error"], said["device"]) == (0, None, "cuda")
    assert said["measured"]["max_reserved_bytes"] == 4 * GIB
    assert said["measured"]["process_bytes"] == 5 * GIB
    assert said["measured"]["device_bytes"] == 6 * GIB
    assert said["predicted"]["allocated_bytes"] > 0
    assert said["card"] == "NVIDIA H100 80GB HBM3"
    [place] = said["places"]
    assert (place.cuda_device, place.keep_bytes) == ("GPU-00000001", None)
    [kept] = History().list()
    assert (kept.state, kept.observed.reserved_bytes, kept.observed.device_bytes) == ("ended", 4 * GIB, 5 * GIB)
    assert kept.observed.device_source == "measure"
    assert kept.versions["torch"] == "2.13.0"
    assert on_gpus("--no-history", step=step_of())[0] == 0
    assert len(History().list()) == 1


def test_beside_others_some_memory_stays_free_and_the_difference_on_the_gpu_is_not_known(on_gpus: Answer) -> None:
    _, said, _ = on_gpus("--gpu", "1", "--memory", "20GiB", step=step_of(), others=1)
    [place] = said["places"]
    assert (place.keep_bytes, place.limit_bytes) == (512 * MIB, 20 * GIB)
    assert said["measured"]["process_bytes"] == 5 * GIB
    assert said["measured"]["device_bytes"] is None


def test_out_of_memory_is_a_result_with_its_own_exit_code(on_gpus: Answer) -> None:
    failed = OutOfMemory(
        step=1, phase="backward", message="CUDA out of memory.", allocated_bytes=GIB, reserved_bytes=GIB
    )
    code, said, _ = on_gpus(step=step_of(failed=failed))
    assert (code, said["error"]) == (1, "out of memory in the backward of step 1: CUDA out of memory.")
    assert [kept.state for kept in History().list()] == ["out_of_memory"]


def test_more_ranks_than_gpus_are_refused(on_gpus: Answer) -> None:
    code, said, complaint = on_gpus("--fsdp", "8", step=step_of())
    assert code == 3
    assert said["error"] in complaint
    assert said["error"].startswith("the job has 8 ranks, and 2 GPUs are usable here; give it fewer")


def test_without_a_gpu_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramtop.tui.cli.fitting.machine_gpus.NvmlSource", NoDriver)
    assert "there is no driver; --cpu runs a tiny model on the CPU instead" in vramtop("measure", *GPT2, code=3).err


def test_a_tiny_job_keeps_the_kind_of_model_and_its_settings() -> None:
    from vramtop.estimator.job.job import Job
    from vramtop.estimator.job.settings import ModelSpec
    from vramtop.estimator.model.find_config import resolve_model

    job = Job(model=ModelSpec(id="meta-llama/Llama-3.1-8B"))
    tiny = tiny_job(job, resolve_model(job.model))
    config = tiny.model.config or {}
    assert (config["model_type"], config["num_hidden_layers"], config["vocab_size"]) == ("llama", 2, 256)
    assert tiny.training.precision == job.training.precision
    assert tiny.name == "tiny Llama-3.1-8B"


@pytest.mark.slow
def test_the_whole_command_on_the_cpu_shows_null_where_a_cpu_knows_nothing() -> None:
    command = [sys.executable, "-m", "vramtop.tui.cli", "measure", *GPT2, "--cpu", "--ascii"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tiny gpt2: 3 steps on the CPU (a tiny model); torch ")
    rows = {line[:26].strip(): line[26:].split() for line in done.stdout.splitlines()}
    assert float(rows["allocated"][0]) > 0
    assert not {"reserved", "device (NVML)"} & rows.keys()
    for name in ("allocated", "allocated, forward", "allocated, backward", "allocated, optimizer step", "weights"):
        seen, told = map(float, rows[name][:2])
        assert seen == pytest.approx(told, rel=0.1)  # both without what only a GPU has
    result = valid_json("measure", vramtop("measure", *GPT2, "--cpu", "--json", code=0).out)
    measured = result["measured"]
    assert measured["max_allocated_bytes"] > measured["components"]["weights"] > 0
    assert [measured[name] for name in ("max_reserved_bytes", "process_bytes", "device_bytes", "retries")] == [None] * 4
    predicted = result["predicted"]
    assert predicted["allocated_bytes"] == pytest.approx(measured["max_allocated_bytes"], rel=0.1)
    assert predicted["device_bytes"] is predicted["reserved_bytes"] is predicted["components"]["context"] is None
    assert (result["card"], result["driver"], History().list()) == (None, None, ())
