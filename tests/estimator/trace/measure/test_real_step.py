"""Real steps in processes of their own, on the CPU, beside plain loops, torch's own wrappers and processes that die."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from model_configs import llama_config
from waiting import until

from vramtop.estimator.common.cancellation import CancelToken
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.trace.measure.measured_step import MeasuredStep
from vramtop.estimator.trace.measure.real_step import Place, _environment, rank_count, run_real_step

CONFIG = llama_config(hidden=64, layers=2, heads=4, kv_heads=2, mlp=96, vocab=256, tie_word_embeddings=True)
PARAMETERS = 256 * 64 + 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96 + 2 * 64) + 64
"""Embedding, and for each block q, o, k, v, the MLP and two norms, and the last norm; the head is tied."""
BUFFERS = 2 * 8
"""``inv_freq`` and its original."""
LOOP = """
import sys
sys.path.insert(0, {tests!r})
import torch, transformers
from storage_counter import StorageCounter
config = transformers.LlamaConfig(**{config!r})
config.use_cache = False
with StorageCounter() as counter:
    model = transformers.AutoModelForCausalLM.from_config(config)
    optimizer = torch.optim.AdamW(model.parameters())
    peaks = []
    for _ in range(3):
        counter.reset_peak()
        tokens, labels = torch.randint(0, 256, (2, 32)), torch.randint(0, 256, (2, 32))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(input_ids=tokens, labels=labels)
        outputs.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        peaks.append(counter.peak)
print(peaks)
"""
HANGING = """
import os, pathlib, threading, torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def forward(self, input_ids, labels=None):
        folder = pathlib.Path({folder!r})
        (folder / f"pid{{os.environ.get('RANK', '0')}}").write_text(str(os.getpid()))
        {action}
        return {{"loss": self.layer(torch.ones(1, 8)).sum()}}
"""


def job_of(**changes: Any) -> Job:
    training = {"micro_batch": 2, "sequence_length": 32, "precision": "bf16-mixed", **changes.pop("training", {})}
    return job_from_mapping({"model": {"config": CONFIG}, "training": training, **changes}, where="the test")


def measure(job: Job, *, limit: int | None = None, **options: Any) -> MeasuredStep:
    places = [Place(limit_bytes=limit)] * rank_count(job)
    return run_real_step(job, resolve_model(job.model), places, device="cpu", **options)


@pytest.fixture
def own_model(tmp_path: Path) -> Callable[..., Job]:
    """Return a function that makes a job with a model that does something in its forward pass."""

    def make(action: str, **tables: Any) -> Job:
        (tmp_path / "own_model.py").write_text(HANGING.format(folder=str(tmp_path), action=action))
        model = {"id": "own_model:Model", "code_folder": str(tmp_path)}
        return job_from_mapping(
            {"model": model, "training": {"micro_batch": 1, "precision": "fp32"}, **tables}, where="the test"
        )

    return make


def ended(path: Path) -> bool:
    status = Path(f"/proc/{path.read_text()}/status")
    try:
        return "State:\tZ" in status.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.slow
def test_a_step_takes_what_a_plain_training_loop_takes() -> None:
    found = measure(job_of(training={"optimizer": "adamw"}), steps=3)
    config = {name: value for name, value in CONFIG.items() if name != "model_type"}
    code = LOOP.format(tests=str(Path(__file__).parents[3]), config=config)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    peaks = eval(done.stdout)  # noqa: S307 - our own list
    rank = found.highest
    assert rank.allocated_bytes == pytest.approx(max(peaks), rel=0.03)
    assert rank.allocated_by_step_bytes == pytest.approx(peaks, rel=0.03)
    assert rank.components == {
        "weights": 4 * PARAMETERS + BUFFERS * 4,
        "gradients": 4 * PARAMETERS,
        "optimizer": 8 * PARAMETERS + 4 * 20,  # and a step counter for each of the 20 tensors
    }
    assert rank.reserved_bytes is None
    assert found.to_json()["max_reserved_bytes"] is None
    assert found.versions["torch"]


@pytest.mark.slow
def test_each_step_has_its_phases() -> None:
    peaks = measure(job_of(), steps=3).highest.peaks
    assert [(each.step, each.phase) for each in peaks] == [
        (0, "loading"),
        *((step, phase) for step in (1, 2, 3) for phase in ("forward", "backward", "optimizer step")),
    ]
    first, second = (next(each for each in peaks if each.step == step) for step in (1, 2))
    assert (second.allocated or 0) - (first.allocated or 0) == pytest.approx(8 * PARAMETERS, rel=0.1)  # states exist


@pytest.mark.slow
def test_two_ranks_of_torchrun_run_for_many_copies() -> None:
    stages: list[tuple[str, int]] = []
    found = measure(
        job_of(parallel={"strategy": "ddp", "data_replicate": 8}, training={"gradient_accumulation": 2}),
        steps=2,
        on_stage=lambda stage, pids: stages.append((stage, len(set(pids)))),
    )
    assert len(found.ranks) == 2
    assert stages == [("ready", 2), ("context", 2), ("first step", 2), ("steady", 2)]
    for rank in found.ranks:
        assert rank.components["gradients"] == pytest.approx(4 * PARAMETERS, rel=0.01)
        assert rank.components["weights"] == pytest.approx(4 * PARAMETERS, rel=0.01)
        assert rank.components["optimizer"] == pytest.approx(8 * PARAMETERS, rel=0.01)
        assert all(each.allocated for each in rank.phases.values())


@pytest.mark.slow
def test_adapters_over_checkpointed_16_bit_weights_are_measured() -> None:
    found = measure(job_of(lora={"rank": 8}, training={"precision": "bf16", "activation_checkpointing": "full"}))
    adapters = 2 * 8 * (64 + 64 + 64 + 32)  # on q and v of both blocks
    assert found.highest.components == {
        "weights": 2 * PARAMETERS + 4 * adapters + 4 * BUFFERS,
        "gradients": 4 * adapters,
        "optimizer": 8 * adapters + 4 * 8,
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nf4", "nf4-double", "int8"])
def test_quantized_weights_are_bitsandbytes_own(kind: str) -> None:
    job = job_of(lora={"rank": 8, "quantization": kind}, training={"precision": "bf16"})
    if find_spec("bitsandbytes") is None:
        with pytest.raises(CannotTellError, match="No module named 'bitsandbytes'"):
            measure(job)
        return
    linear = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96)
    other = 2 * (PARAMETERS - linear) + 4 * BUFFERS + 4 * 2 * 8 * (64 + 64 + 64 + 32)
    packed = (measure(job).highest.components["weights"] or 0) - other
    tables = 14 * 4 * 280  # of 16 and 256 values for each linear layer
    assert linear / 2 < packed < 0.6 * linear + tables if kind != "int8" else linear < packed < 1.1 * linear


@pytest.mark.slow
def test_a_job_that_runs_out_of_memory_is_a_result() -> None:
    found = measure(job_of(), limit=1_000_000)
    failed = found.out_of_memory
    assert failed.place == "in the forward of step 1"
    assert failed.message.startswith("Tried to allocate ")
    assert 0 < (failed.allocated_bytes or 0) <= 1_000_000
    assert failed.reserved_bytes is None
    assert found.highest.components["gradients"] is None


@pytest.mark.slow
def test_one_rank_out_of_memory_ends_the_others() -> None:
    job = job_of(parallel={"strategy": "ddp", "data_replicate": 2})
    places = [Place(), Place(limit_bytes=500_000)]
    found = run_real_step(job, resolve_model(job.model), places, device="cpu")
    assert found.out_of_memory is not None
    assert found.highest.out_of_memory is found.out_of_memory


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named(own_model: Callable[..., Job], tmp_path: Path) -> None:
    job = own_model(
        "os.environ.get('RANK') == '1' and os.kill(os.getpid(), 9)", parallel={"strategy": "ddp", "data_replicate": 2}
    )
    with pytest.raises(CannotTellError, match=r"rank 1 was killed by signal 9 \(SIGKILL\); the machine's RAM may"):
        measure(job)
    until(lambda: ended(tmp_path / "pid0"))


@pytest.mark.slow
def test_a_model_that_prints_much_does_not_hang(own_model: Callable[..., Job]) -> None:
    assert measure(own_model("print('x' * (1 << 20))"), steps=1).highest.allocated_bytes


@pytest.mark.usefixtures("quick_rehearsals")
def test_inference_is_one_step_of_forward_passes() -> None:
    rank = measure(job_of(training={"mode": "inference", "precision": "bf16"})).highest
    assert list(rank.phases) == ["loading", "forward"]
    assert rank.components["weights"]
    assert (rank.components["gradients"], rank.components["optimizer"]) == (None, None)


@pytest.mark.slow
def test_a_model_that_raises_gives_its_sentence(own_model: Callable[..., Job]) -> None:
    with pytest.raises(CannotTellError, match="no gradient today"):
        measure(own_model("raise ValueError('no gradient today')"))


@pytest.mark.slow
def test_a_model_of_the_users_that_runs_out_of_memory_is_a_result_too(own_model: Callable[..., Job]) -> None:
    failed = measure(own_model("torch.ones(1_000_000)"), limit=100_000).out_of_memory
    assert failed.place == "in the forward of step 1"


@pytest.mark.slow
def test_a_run_that_takes_too_long_is_ended_with_its_ranks(own_model: Callable[..., Job], tmp_path: Path) -> None:
    job = own_model("threading.Event().wait()", parallel={"strategy": "ddp", "data_replicate": 2})
    token, failure = CancelToken(), list[BaseException]()

    def run() -> None:
        try:
            with token.scope():
                measure(job)
        except CannotTellError as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: all((tmp_path / f"pid{rank}").exists() for rank in (0, 1)))
    token.cancel()
    thread.join()
    assert len(failure) == 1
    assert all(ended(tmp_path / f"pid{rank}") for rank in (0, 1))
    with pytest.raises(CannotTellError, match=r"no result within 1 s .*; allow more with --timeout SECONDS"):
        measure(job, timeout=1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_processes_end_with_vramtop(number: int, own_model: Callable[..., Job], tmp_path: Path) -> None:
    own_model("threading.Event().wait()")
    words = ["measure", "own_model:Model", "--set", f"model.code_folder={tmp_path}", "--cpu", "--method", "exact"]
    command = [sys.executable, "-m", "vramtop.tui.cli", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        until(lambda: (tmp_path / "pid0").exists() or process.poll() is not None)
        assert process.poll() is None, process.stderr and process.stderr.read()
        process.send_signal(number)
        assert process.wait(60) == (130 if number == signal.SIGINT else -number)
    until(lambda: ended(tmp_path / "pid0"))


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"parallel": {"strategy": "zero3", "data_shard": 2}}, "zero3 shards over GPUs alone"),
        (
            {"training": {"framework": "torchtitan"}},
            "no program can be written for this job yet: it trains with torchtitan",
        ),
        ({"parallel": {"pipeline": 2}}, "it splits stages, sequences or experts"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_process_starts(tables: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CannotTellError, match=sentence):
        run_real_step(job_of(**tables), resolve_model(job_of().model), [Place()], device="cpu", python="/bin/false")


def test_a_measurement_within_a_run_is_none_of_its_ranks() -> None:
    environ = {"RANK": "3", "LOCAL_WORLD_SIZE": "8", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x", "HOME": "/home/a"}
    found = _environment(environ, [Place(cuda_device="GPU-1"), Place(cuda_device="GPU-2")])
    assert found == {"HOME": "/home/a", "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}
    assert _environment({"PYTORCH_ALLOC_CONF": "x"}, [Place()]) == {"CUDA_VISIBLE_DEVICES": ""}
