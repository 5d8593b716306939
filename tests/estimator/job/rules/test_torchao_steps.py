"""Temporary memory of torchao's optimizers in steps within the backward pass."""

from model_configs import llama_config

from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping

CONFIG = llama_config(hidden=512, mlp=1024, layers=8, heads=8, vocab=64000, tie_word_embeddings=False)


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
