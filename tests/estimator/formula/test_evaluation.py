"""The phase "evaluation": a forward pass without a graph, compared with what torch allocates for one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from storage_counter import allocated_by
from transformers import AutoConfig, AutoModelForCausalLM

from vramtop.estimator.budget import Budget
from vramtop.monitor.board.budget_bounds import reaches_budget

BudgetOf = Callable[..., Budget]
SIZES = {"training.micro_batch": 2, "training.sequence_length": 64}


def allocated_in_evaluation(config: dict[str, Any], sequences: int) -> int:
    """Return the most bytes that torch allocates at once for a forward pass with its loss, beside the weights."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32).eval()
    tokens = torch.zeros(sequences, SIZES["training.sequence_length"], dtype=torch.int64)
    with torch.no_grad():
        return allocated_by(lambda: model(input_ids=tokens, labels=tokens, use_cache=False))[0]


@pytest.mark.parametrize("vocabulary", [128, 32_000])
def test_a_forward_pass_takes_as_much_as_torch_allocates(
    budget_of: BudgetOf, tiny_llama: dict[str, Any], vocabulary: int
) -> None:
    config = tiny_llama | {"vocab_size": vocabulary, "hidden_size": 256, "intermediate_size": 1024}
    settings = SIZES | {"training.precision": "fp32", "training.evaluation_batch": 32}
    evaluation = budget_of(config, settings).phase("evaluation")
    assert evaluation is not None
    parts = evaluation.components
    assert parts.gradients == 0
    passing, allocated = parts.activations + parts.logits, allocated_in_evaluation(config, 32)
    assert allocated <= 1.001 * passing < 1.15 * allocated


def test_a_large_evaluation_batch_is_the_peak_by_every_method(budget_of: BudgetOf, tiny_llama: dict[str, Any]) -> None:
    config = tiny_llama | {"vocab_size": 32_000}
    without, counted = (budget_of(config, SIZES | more) for more in ({}, {"training.evaluation_batch": 64}))
    assert counted.peak.phase == "evaluation"
    assert counted.peak.device_bytes > without.peak.device_bytes
    assert (without.not_counted, counted.not_counted) == (
        "This figure does not include evaluation or saving.",
        "This figure does not include saving.",
    )
    small = budget_of(config, SIZES | {"training.evaluation_batch": 1})
    assert small.peak.device_bytes == without.peak.device_bytes


@pytest.mark.parametrize(("sequences", "more"), [(512, {}), (4, {"num_hidden_layers": 24, "hidden_size": 512})])
def test_a_run_that_has_not_evaluated_yet_is_not_below_its_budget(
    budget_of: BudgetOf, tiny_llama: dict[str, Any], sequences: int, more: dict[str, int]
) -> None:
    config, sizes = tiny_llama | {"vocab_size": 32_000} | more, SIZES | {"training.sequence_length": 512}
    training = budget_of(config, sizes).peak.device_bytes
    budget = budget_of(config, sizes | {"training.evaluation_batch": sequences})
    assert budget.peak.phase == ("backward" if more else "evaluation")
    assert budget.peak.low_bytes > training
    assert reaches_budget(budget, training)


def test_the_loss_of_evaluation_may_be_another(budget_of: BudgetOf, tiny_llama: dict[str, Any]) -> None:
    def logits(loss: str, evaluation: str) -> int:
        more = {"training.loss": loss, "training.evaluation_loss": evaluation, "training.evaluation_batch": 64}
        found = budget_of(tiny_llama, SIZES | more).phase("evaluation")
        return found.components.logits if found is not None else 0

    assert logits("full", "training") == logits("fused-linear", "full") > 0
    assert logits("fused-linear", "training") != logits("fused-linear", "full")
