"""``TrainerCallback``: memory in a real Trainer's logs, and the end of a training that takes too much."""

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.probe.trainer_guard import Limit, TrainerMemory

needs_torch = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
TRAINING = """
    import json, os, sys, torch, transformers
    from vramtop.monitor import TrainerCallback
    from vramtop.monitor.probe import publisher
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                                      num_attention_heads=2)
    data = [{"input_ids": torch.ones(8, dtype=torch.long), "labels": torch.ones(8, dtype=torch.long)}] * 8
    seen = []
    class Integration(transformers.TrainerCallback):
        # stands where wandb's stands: before the user's callbacks
        def on_log(self, args, state, control, logs=None, **kwargs):
            seen.append(dict(logs))
    def train(callback, steps=4):
        arguments = transformers.TrainingArguments(
            output_dir="out", per_device_train_batch_size=2, max_steps=steps, use_cpu=True, report_to=[],
            save_strategy="no", logging_steps=1, disable_tqdm=True)
        trainer = transformers.Trainer(
            transformers.LlamaForCausalLM(config), arguments, train_dataset=data, callbacks=[Integration(), callback])
        output = trainer.train()
        return trainer, output
"""


class Counters:
    """Stands for the probe's publisher."""

    def __init__(self, *peaks: int) -> None:
        self.peaks = peaks

    def device_counters(self, _cuda: object) -> list[dict[str, Any]]:
        return [{"index": n, "reserved_peak_bytes": p, "allocated_peak_bytes": p - 1} for n, p in enumerate(self.peaks)]


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that runs code after TRAINING and returns the JSON that it prints last, and its errors."""

    def run(code: str, command: Sequence[str] = (sys.executable,)) -> tuple[Any, str]:
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(TRAINING) + textwrap.dedent(code))
        environ = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, str(script)], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.strip().splitlines()[-1]), done.stderr

    return run


@pytest.mark.parametrize(
    ("given", "kind", "number"),
    [
        (0.95, "gpu", 0.95),
        ("95%", "gpu", 0.95),
        ("90 % of the GPU", "gpu", 0.9),
        (70 * GIB, "bytes", 70 * GIB),
        ("70GiB", "bytes", 70 * GIB),
        ("110% of predicted", "predicted", 1.1),
        ("110 % of the prediction", "predicted", 1.1),
    ],
)
def test_a_limit_is_bytes_or_a_share_of_the_gpu_or_of_the_prediction(given: object, kind: str, number: float) -> None:
    found = Limit.parse(given)
    assert (found.kind, found.number) == (kind, pytest.approx(number))


@pytest.mark.parametrize("given", [0, -1, 1.1, 95, "much", "0%", True, None, float("nan"), [1], "95% of the sky"])
def test_what_is_no_limit_is_refused_in_a_sentence(given: object) -> None:
    with pytest.raises((ValueError, TypeError), match="give bytes"):
        Limit.parse(given)


def test_more_than_the_whole_gpu_is_refused_since_training_would_never_stop() -> None:
    with pytest.raises(ValueError, match="of the prediction, give '110% of predicted'"):
        Limit.parse("110%")


def test_any_gpu_beyond_the_limit_counts(make_budget: Callable[..., Budget]) -> None:
    budget = make_budget()
    reserved = budget.peak.reserved_bytes

    def excess(limit: object, *peaks: int) -> str | None:
        return TrainerMemory(Counters(*peaks), Limit.parse(limit), budget, {}).excess()

    assert excess(2 * GIB, GIB, 2 * GIB) is None
    assert excess("2GiB", GIB, 3 * GIB) == (
        "torch has reserved 3.00 GiB on GPU 1, more than the 2.00 GiB of stop_when_over"
    )
    assert excess("100% of predicted", reserved) is None
    assert excess("100% of predicted", reserved + 1) is not None
    assert excess(2 * GIB) is None  # no GPU: nothing is known
    unknown = TrainerMemory(Counters(GIB), Limit.parse("100% of predicted"), None, {})
    assert unknown.excess() is None
    assert unknown.needs_prediction


def test_logs_have_what_is_known_and_nothing_else(make_budget: Callable[..., Budget]) -> None:
    budget = make_budget()
    found = TrainerMemory(Counters(GIB, 3 * GIB), None, budget, {}).logs()
    assert found["vramtop/reserved_peak_gib"] == 3
    assert found["vramtop/predicted_reserved_gib"] == round(budget.peak.reserved_bytes / GIB, 4)
    assert found["vramtop/host_gib"] > 0
    assert list(TrainerMemory(Counters(), None, None, {}).logs()) == ["vramtop/host_gib"]


@pytest.mark.slow
@needs_torch
def test_training_goes_on_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    memory = TrainerMemory(Counters(GIB), None, None, {})
    memory.ask()
    assert memory.asking is None
    assert "no prediction of this training: can't start new thread" in caplog.text


@pytest.mark.slow
def test_a_real_trainer_on_a_cpu_logs_host_memory_and_the_prediction_and_no_zeros(trained: Callable[..., Any]) -> None:
    code = """
        callback = TrainerCallback("90%", settings={"training.sequence_length": 8})
        class Waits(transformers.TrainerCallback):
            def on_train_begin(self, args, state, control, **kwargs):
                callback.memory.asking.join()
        original = transformers.Trainer.__init__
        def init(self, *args, callbacks, **kwargs):
            original(self, *args, callbacks=[*callbacks, Waits()], **kwargs)
        transformers.Trainer.__init__ = init
        trainer, output = train(callback)
        state = trainer.state
        print(json.dumps([seen, state.log_history, output.metrics, callback.stopped, state.global_step]))
    """
    (seen, history, metrics, stopped, steps), errors = trained(code)
    assert (stopped, steps) == (None, 4)
    assert len(seen) == 5
    for logs in (*seen, *history):
        assert {name for name in logs if name.startswith("vramtop/")} == {
            "vramtop/host_gib",
            "vramtop/predicted_allocated_gib",
            "vramtop/predicted_reserved_gib",
            "vramtop/predicted_device_gib",
        }
        assert logs["vramtop/predicted_device_gib"] > logs["vramtop/predicted_reserved_gib"] > 0
    assert not any("vramtop" in name for name in metrics)
    assert "epoch" in metrics
    assert errors.count("stop_when_over has no effect: this process has no memory on a GPU") == 1


@pytest.mark.slow
@needs_torch
def test_a_real_training_stops_after_the_step_that_takes_too_much(trained: Callable[..., Any]) -> None:
    code = """
        steps = []
        def counters(_cuda):
            steps.append(1)
            return [{"index": 0, "reserved_peak_bytes": 2**30 + 2**20 * len(steps), "allocated_peak_bytes": 2**29}]
        publisher.device_counters = counters
        callback = TrainerCallback(stop_when_over="1030MiB", log=False)
        trainer, output = train(callback, steps=20)
        print(json.dumps([callback.stopped, trainer.state.global_step, seen[0]]))
    """
    (stopped, step, logs), errors = trained(code)
    assert 1 < step < 20
    assert stopped.startswith(f"after step {step}: torch has reserved 1.01 GiB on GPU 0, more than the 1.01 GiB of ")
    assert f"training stops after step {step}: " in errors
    assert not any(name.startswith("vramtop/") for name in logs)


@pytest.mark.slow
@needs_torch
def test_all_ranks_stop_when_one_takes_too_much(trained: Callable[..., Any], tmp_path: Path) -> None:
    code = """
        rank = int(os.environ["RANK"])
        publisher.device_counters = lambda _cuda: [
            {"index": 0, "reserved_peak_bytes": 2**31 if rank else 2**20, "allocated_peak_bytes": 2**20}]
        callback = TrainerCallback(stop_when_over=2**30, log=False)
        trainer, output = train(callback, steps=20)
        with open(f"rank{rank}", "w") as file:
            file.write(f"{trainer.state.global_step} {callback.stopped}")
        print(json.dumps(None))
    """
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    trained(code, command)
    first, second = ((tmp_path / f"rank{rank}").read_text() for rank in (0, 1))
    assert first == "1 after step 1: another rank has reserved more than stop_when_over"
    assert second.startswith("1 after step 1: torch has reserved 2.00 GiB on GPU 0, more than the 1.00 GiB")
