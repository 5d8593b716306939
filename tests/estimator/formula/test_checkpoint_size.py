"""Checkpoints hold the states that the estimate counts."""

import pytest

from vramtop.estimator import Job, ModelSpec, Training, estimate
from vramtop.estimator.formula.checkpoint_size import checkpoint_bytes
from vramtop.estimator.job.rules.optimizers import OPTIMIZERS

UNSHARDED = [name for name, rules in OPTIMIZERS.items() if rules.steps and not rules.paged and not rules.factored]


@pytest.mark.parametrize("name", [name for name in UNSHARDED if not OPTIMIZERS[name].eight_bit])
def test_a_checkpoint_holds_the_states_of_one_rank(name: str) -> None:
    """On one GPU a checkpoint has the weights and the complete optimizer state, for muon too."""
    budget = estimate(Job(model=ModelSpec(id="gpt2"), training=Training(precision="bf16", optimizer=name)))
    weights = 2 * budget.model.parameters
    assert checkpoint_bytes(budget) - weights == budget.peak.components.optimizer


def test_eight_bit_states_take_a_byte_each() -> None:
    training = Training(precision="bf16", optimizer="adamw-8bit")
    budget = estimate(Job(model=ModelSpec(id="gpt2"), training=training))
    assert checkpoint_bytes(budget) == (2 + 2) * budget.model.parameters
