"""A trace's fake tensors beside the same steps on real ones: torch's own CPU kernels, wrappers and gloo ranks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slow_cases import slow_every

from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.trace.interpreters import find_interpreters
from vramtop.estimator.trace.measure import Place, rank_count, run_real_step
from vramtop.estimator.trace.traced_step import trace_request
from vramtop.estimator.trace.worker_process import Worker

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 256,
    "tie_word_embeddings": False,
}
MIXTURE = {**CONFIG, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
LORA = {"rank": 8, "targets": "all-linear"}
JOBS: dict[str, dict[str, Any]] = {
    "fp16, accumulated": {"training": {"precision": "fp16-mixed", "gradient_accumulation": 3}},
    "adapters, checkpointed": {"lora": LORA, "training": {"precision": "bf16", "activation_checkpointing": "full"}},
    "eager": {"model": {"config": CONFIG, "attention": "eager"}, "training": {"precision": "bf16"}},
    "experts": {"model": {"config": MIXTURE}, "training": {"precision": "bf16"}},
    "ddp": {"parallel": {"strategy": "ddp", "data_replicate": 2, "gradient_as_bucket_view": True}},
    "fsdp1": {"parallel": {"strategy": "fsdp1", "data_shard": 2}},
    "fsdp2, checkpointed": {
        "parallel": {"strategy": "fsdp2", "data_shard": 2},
        "training": {"precision": "bf16", "activation_checkpointing": "full"},
    },
    "tensor parallel": {"parallel": {"tensor": 2}},
}
TOLERANCE = 0.005
"""Buffers of torch's generator and of the parallel wrappers, in a model of half a MiB."""
OF_GLOO = {"fsdp2, checkpointed": 0.06, "tensor parallel": 0.02}
"""Gloo's thread lets go of what a collective has read a little later."""
RUNS = 4
"""Of jobs with several ranks: by chance gloo's thread keeps more for longer; the lowest peaks are the step's."""


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(Path(find_interpreters(None, {})[0])) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_every(3, JOBS))
def test_a_trace_has_the_peaks_of_real_steps(name: str, worker: Worker) -> None:
    tables = JOBS[name]
    training = {"micro_batch": 2, "sequence_length": 32, "precision": "bf16-mixed", **tables.get("training", {})}
    job = job_from_mapping({"model": {"config": CONFIG}, **tables, "training": training}, where=name)
    model = resolve_model(job.model)
    traced = worker.request({**trace_request(job, model), "cpu_kernels": True}, 300)["phases"]
    expected = {
        phase: pytest.approx(traced[phase]["allocated"], rel=OF_GLOO.get(name, TOLERANCE))
        for phase in ("forward", "backward", "optimizer step")
    }
    seen: dict[str, int] = {}
    for _ in range(RUNS):
        real = run_real_step(job, model, [Place()] * rank_count(job), device="cpu", steps=2).ranks[0]
        peaks = {phase: real.phases[phase].allocated for phase in expected}
        seen = {phase: min(peak, seen.get(phase, peak)) for phase, peak in peaks.items() if peak is not None}
        if seen == expected or rank_count(job) == 1:
            break
    assert seen == expected
