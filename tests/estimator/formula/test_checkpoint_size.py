"""Checkpoints hold the states that the estimate counts."""

import pytest
from slow_cases import quick_every

from vramtop.estimator.estimation import estimate
from vramtop.estimator.formula.checkpoint_saving import checkpoint_bytes
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.rules.optimizers.table import OPTIMIZERS
from vramtop.estimator.job.settings import ModelSpec, Training


@pytest.mark.parametrize("name", quick_every(8, [name for name, rules in OPTIMIZERS.items() if not rules.elsewhere]))
def test_a_checkpoint_holds_the_states_of_one_rank(name: str) -> None:
    """On one GPU a checkpoint has the weights and the complete optimizer state."""
    budget = estimate(Job(model=ModelSpec(id="gpt2"), training=Training(precision="bf16", optimizer=name)))
    weights = 2 * budget.model.parameters
    assert checkpoint_bytes(budget) - weights == budget.peak.components.optimizer


def test_paged_states_are_in_the_checkpoint() -> None:
    sizes = [
        checkpoint_bytes(estimate(Job(model=ModelSpec(id="gpt2"), training=Training(optimizer=name))))
        for name in ("paged-adamw", "adamw")
    ]
    assert sizes[0] == sizes[1]


def test_eight_bit_states_take_a_byte_and_a_constant_each() -> None:
    """The Trainer keeps those of embeddings in fp32."""
    embeddings = (50257 + 1024) * 768
    budget = estimate(Job(model=ModelSpec(id="gpt2"), training=Training(precision="bf16", optimizer="adamw-8bit")))
    states = checkpoint_bytes(budget) - 2 * budget.model.parameters
    rest = budget.model.parameters - embeddings
    assert states == pytest.approx(2 * (4 * embeddings + (1 + 4 / 256) * rest), rel=0.01)
