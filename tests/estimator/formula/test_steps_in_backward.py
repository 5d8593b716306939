"""Optimizers that step in the backward pass under FSDP2, compared with the gradients that torch gives their hooks."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from model_configs import llama_config
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from vramtop.estimator.budget import Budget, Components

RANKS = 4
CONFIG = llama_config(hidden=256, mlp=1024, layers=8, heads=4, vocab=4096, tie_word_embeddings=False)
SETTINGS = {
    "training.framework": "torchtune",
    "training.precision": "fp32",
    "training.optimizer": "sgd",
    "training.sequence_length": 16,
    "parallel.strategy": "fsdp2",
    "parallel.data_shard": RANKS,
}


@pytest.fixture
def _ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def step_of(budget_of: Callable[..., Budget]) -> Components:
    budget = budget_of(CONFIG, SETTINGS | {"training.optimizer_in_backward": True})
    return next(phase.components for phase in budget.phases if phase.name == "optimizer step")


def test_gradients_are_the_shards_of_embedding_head_and_norm(budget_of: Callable[..., Budget]) -> None:
    assert step_of(budget_of).gradients == 4 * (2 * 4096 * 256 + 256) // RANKS


@pytest.mark.slow
@pytest.mark.usefixtures("_ranks")
def test_gradients_are_those_of_one_units_shards(budget_of: Callable[..., Budget]) -> None:
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**CONFIG))
    mesh = init_device_mesh("cpu", (RANKS,))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    seen: list[int] = []

    def step(parameter: Any) -> None:
        seen.append(parameter.grad.to_local().untyped_storage().nbytes())
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    tokens = torch.zeros((1, 16), dtype=torch.long)
    model(input_ids=tokens, labels=tokens).loss.backward()

    assert len(seen) == len(list(model.parameters()))
    in_backward = budget_of(CONFIG, SETTINGS | {"training.optimizer_in_backward": True})
    assert step_of(budget_of).gradients == pytest.approx(max(seen), rel=0.01)
    assert in_backward.peak.allocated_bytes <= budget_of(CONFIG, SETTINGS).peak.allocated_bytes
