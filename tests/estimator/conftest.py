"""Small models of many families, and a counter of every allocation that torch makes on fake tensors."""

from collections.abc import Callable
from typing import Any

import pytest

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.formula.closed_form import closed_form
from vramtop.estimator.job.job_file import job_from_mapping
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.read_architecture import read_architecture

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 2000,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}


@pytest.fixture
def tiny_llama() -> dict[str, Any]:
    """A Llama of four layers with grouped-query attention."""
    return dict(LLAMA)


@pytest.fixture
def budget_of() -> Callable[..., Budget]:
    """The closed form of a config with these settings: ``budget_of(config, {"training.precision": "bf16"})``."""

    def make(config: dict[str, Any], settings: dict[str, Any] | None = None) -> Budget:
        tables: dict[str, dict[str, Any]] = {"model": {"config": config}}
        for dotted, value in (settings or {}).items():
            table, _, key = dotted.partition(".")
            tables.setdefault(table, {})[key] = value
        job = job_from_mapping(tables, where="test")
        arch = read_architecture(config, job.model.task)
        return closed_form(job, arch, count_parameters(arch))

    return make
