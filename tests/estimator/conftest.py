"""Fixtures of the estimator's tests: budgets by the closed form, and answers of the worker, each computed once."""

import functools
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from model_configs import llama_config

from vramtop.estimator.budget import Budget
from vramtop.estimator.formula.closed_form import closed_form
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.read_architecture import read_architecture
from vramtop.estimator.trace.interpreters import choose_interpreter
from vramtop.estimator.trace.worker_pool import POOL

LLAMA: dict[str, Any] = llama_config(
    vocab=2000, hidden=512, mlp=1408, layers=4, heads=8, kv_heads=4, tie_word_embeddings=False
)

AskWorker = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="session")
def ask_worker() -> AskWorker:
    """Return a function that sends the worker a request without ``id`` and returns the answer.

    An answer is cached for the whole test run.
    """
    interpreter = choose_interpreter(sys.executable, {})
    answers: dict[str, dict[str, Any]] = {}

    def ask(message: dict[str, Any]) -> dict[str, Any]:
        key = json.dumps(message, sort_keys=True)
        if key not in answers:
            answers[key] = POOL.request(interpreter, message, 120)
        return answers[key]

    return ask


@pytest.fixture
def share_user_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests with user code use the shared worker too; their modules need names that no other test uses."""
    monkeypatch.setattr(POOL, "_is_shared", lambda _message: True)


@pytest.fixture
def tiny_llama() -> dict[str, Any]:
    """Return the config of a Llama with four layers and grouped-query attention."""
    return dict(LLAMA)


@pytest.fixture
def budget_of() -> Callable[..., Budget]:
    """Compute a budget by the closed form: ``budget_of(config, {"training.precision": "bf16"})``.

    Where the settings say nothing, weights are fp32 under bf16 autocast, and the optimizer is AdamW with foreach.
    """

    def make(config: dict[str, Any], settings: dict[str, Any] | None = None) -> Budget:
        training = {"precision": "bf16-mixed", "optimizer": "adamw"}
        tables: dict[str, dict[str, Any]] = {"model": {"config": config}, "training": training}
        for dotted, value in (settings or {}).items():
            table, _, key = dotted.partition(".")
            tables.setdefault(table, {})[key] = value
        job = job_from_mapping(tables, where="test")
        arch = read_architecture(config, job.model.task)
        return closed_form(job, arch, count_parameters(arch))

    return make


@pytest.fixture
def llama_budget(budget_of: Callable[..., Budget], tiny_llama: dict[str, Any]) -> Callable[..., Budget]:
    """Compute a budget of that Llama: ``llama_budget({"training.precision": "bf16"})``."""
    return functools.partial(budget_of, tiny_llama)
