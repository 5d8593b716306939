"""Temporary memory of torchao's optimizers: buffers of compiled steps, and steps within the backward pass."""

import re
from typing import Any

import pytest
from model_configs import llama_config

from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.rules.optimizers.table import OPTIMIZERS

CONFIG = llama_config(hidden=512, mlp=1024, layers=8, heads=8, vocab=64000, tie_word_embeddings=False)
WIDTHS = {"float32": 4, "int64": 8, "uint8": 1}


def backward_of(optimizer: str) -> int:
    training = {
        "framework": "torchtune",
        "precision": "bf16",
        "optimizer": optimizer,
        "optimizer_in_backward": True,
        "sequence_length": 64,
    }
    budget = estimate(job_from_mapping({"model": {"config": CONFIG}, "training": training}, where="test"))
    return next(phase.allocated_bytes for phase in budget.phases if phase.name == "backward") - sum(
        phase.components.optimizer for phase in budget.phases if phase.name == "backward"
    )


def test_a_step_within_the_backward_pass_meets_the_activations() -> None:
    head = CONFIG["vocab_size"] * CONFIG["hidden_size"]
    plain, torchao = backward_of("sgd"), backward_of("adamw-8bit-torchao")
    assert torchao - plain > head  # more than a byte an element of the largest parameter, which steps first


@pytest.mark.slow
@pytest.mark.parametrize(("name", "row"), [("AdamW8bit", "adamw-8bit-torchao"), ("AdamW4bit", "adamw-4bit")])
def test_buffers_of_a_compiled_step(name: str, row: str) -> None:
    """Runs where torchao is installed: bytes per element of all buffers of the code that inductor writes."""
    optim: Any = pytest.importorskip("torchao.optim")
    import torch
    from torch._inductor.utils import run_and_get_code

    parameter = torch.nn.Parameter(torch.randn(1024, 1024))
    parameter.grad = torch.randn_like(parameter)
    _, (code, *_) = run_and_get_code(getattr(optim, name)([parameter], lr=1e-3).step)
    found = 0
    for sizes, dtype in re.findall(r"empty_strided_\w+\(\(([\d, ]+)\), \([\d, ]+\), torch\.(\w+)\)", code):
        elements = 1
        for size in re.findall(r"\d+", sizes):
            elements *= int(size)
        found += elements * WIDTHS[dtype]
    assert 4 * OPTIMIZERS[row].step_tensors == pytest.approx(found / parameter.numel(), rel=0.25)
