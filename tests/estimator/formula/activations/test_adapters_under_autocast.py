"""Adapters over 16-bit weights, with and without the Trainer's autocast.

The allocated bytes are those of rehearsals (torch 2.13, transformers 5, peft 0.21) of a Llama with 8 blocks of 4,096
and 32,000 words, one sequence of 2,048 tokens, LoRA of rank 16.
"""

from pathlib import Path

import pytest

from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job, Lora, ModelSpec, Parallel, Training
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.readers.launch_line import read_launch

CONFIG = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("targets", "autocast", "checkpointing", "rehearsed_gib"),
    [
        ("all-linear", True, "none", 7.99),
        ("all-linear", None, "none", 9.16),
        (["q_proj", "v_proj"], True, "none", 6.93),
        ("all-linear", True, "full", 4.81),
    ],
)
def test_autocast_saves_their_inputs_in_16_bits(targets, autocast, checkpointing, rehearsed_gib) -> None:
    job = Job(
        model=ModelSpec(config=CONFIG),
        training=Training(precision="bf16", activation_checkpointing=checkpointing),
        lora=Lora(targets=targets, autocast=autocast),
    )
    peak = estimate(job, method="formula").peak
    assert peak.allocated_bytes == pytest.approx(rehearsed_gib * GIB, rel=0.01)


@pytest.mark.parametrize(
    ("strategy", "precision", "autocasts"),
    [("none", "bf16", True), ("ddp", "bf16", True), ("fsdp2", "bf16", False), ("zero2", "bf16", False)],
)
def test_only_where_the_trainer_runs_the_model_itself(strategy: str, precision: str, autocasts: bool) -> None:
    job = Job(
        model=ModelSpec(config=CONFIG),
        training=Training(precision=precision),
        lora=Lora(autocast=True),
        parallel=Parallel(strategy=strategy),
    )
    assert resolve_job(job).adapters.autocasts is autocasts


@pytest.mark.parametrize(("flags", "autocast"), [("--bf16 true", True), ("--bf16 false", None)])
def test_a_launch_line_says_so(tmp_path: Path, flags: str, autocast: bool | None) -> None:
    line = f"trl sft --model_name_or_path gpt2 --dtype bfloat16 --use_peft --dataset_name x {flags}"
    reading = read_launch(line.split(), environ={}, cwd=tmp_path)
    assert reading.value("lora.autocast") is autocast
