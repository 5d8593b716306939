"""Between steps: an evaluation, beside what torch allocates for a pass without a graph; what saving gathers."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from storage_counter import allocated_by
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM

from vramtop.estimator.budget import Budget
from vramtop.estimator.host_need import HostNeed
from vramtop.monitor.board.run_phases import reaches_budget

SIZES = {"training.micro_batch": 2, "training.sequence_length": 64}


def allocated_in_evaluation(config: dict[str, Any], sequences: int) -> int:
    """Return the most bytes that torch allocates at once for a forward pass with its loss, beside the weights."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32).eval()
    tokens = torch.zeros(sequences, SIZES["training.sequence_length"], dtype=torch.int64)
    with torch.no_grad():
        return allocated_by(lambda: model(input_ids=tokens, labels=tokens, use_cache=False))[0]


@pytest.mark.parametrize("vocabulary", [128, 32_000])
def test_a_forward_pass_takes_as_much_as_torch_allocates(budget_of, tiny_llama, vocabulary) -> None:
    config = tiny_llama | {"vocab_size": vocabulary, "hidden_size": 256, "intermediate_size": 1024}
    settings = SIZES | {"training.precision": "fp32", "training.evaluation_batch": 32}
    evaluation = budget_of(config, settings).phase("evaluation")
    parts = evaluation.components
    assert parts.gradients == 0
    passing, allocated = parts.activations + parts.logits, allocated_in_evaluation(config, 32)
    assert allocated <= 1.001 * passing < 1.15 * allocated


def test_a_large_evaluation_batch_is_the_peak_by_every_method(budget_of, tiny_llama: dict[str, Any]) -> None:
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
def test_a_run_that_has_not_evaluated_yet_is_not_below_its_budget(budget_of, tiny_llama, sequences, more) -> None:
    config, sizes = tiny_llama | {"vocab_size": 32_000} | more, SIZES | {"training.sequence_length": 512}
    training = budget_of(config, sizes).peak.device_bytes
    budget = budget_of(config, sizes | {"training.evaluation_batch": sequences})
    assert budget.peak.phase == ("backward" if more else "evaluation")
    assert budget.peak.low_bytes > training
    assert reaches_budget(budget, training)


def test_the_loss_of_evaluation_may_be_another(budget_of, tiny_llama: dict[str, Any]) -> None:
    def logits(loss: str, evaluation: str) -> int:
        more = {"training.loss": loss, "training.evaluation_loss": evaluation, "training.evaluation_batch": 64}
        found = budget_of(tiny_llama, SIZES | more).phase("evaluation")
        return found.components.logits if found is not None else 0

    assert logits("full", "training") == logits("fused-linear", "full") > 0
    assert logits("fused-linear", "training") != logits("fused-linear", "full")


RANKS = 8


@pytest.fixture
def ranks() -> Iterator[Any]:
    """A mesh of ranks that do nothing, of which this is not the first."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=RANKS)
    yield init_device_mesh("cpu", (RANKS,))
    dist.destroy_process_group()


def sharded_llama(config: dict[str, Any], mesh: Any) -> Any:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def gathered(budget: Budget) -> int:
    """Return what saving gathers, without what the step's end holds too."""
    saving, loading = budget.phase("saving"), budget.phase("loading")
    assert loading is not None
    return saving.components.communication - (saving.outside_bytes - saving.components.context)


FSDP2 = {"training.precision": "bf16-mixed", "parallel.strategy": "fsdp2", "parallel.data_shard": RANKS}


@pytest.mark.parametrize("to_cpu", [True, False])
def test_fsdp2_gathers_as_much_as_torch_does(budget_of, tiny_llama, ranks, to_cpu) -> None:
    model = sharded_llama(tiny_llama, ranks)
    options = StateDictOptions(full_state_dict=True, cpu_offload=to_cpu)
    peak, kept = allocated_by(lambda: get_model_state_dict(model, options=options))
    budget = budget_of(tiny_llama, FSDP2 | {"saving.weights": "full", "saving.to_cpu": to_cpu})
    assert gathered(budget) == pytest.approx(peak, rel=0.002)
    assert (kept == 0) == to_cpu


def test_fsdp2_gathers_one_optimizer_state_at_a_time(budget_of, tiny_llama, ranks) -> None:
    model = sharded_llama(tiny_llama, ranks)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    peak, _ = allocated_by(lambda: get_optimizer_state_dict(model, optimizer, options=options))
    budget = budget_of(tiny_llama, FSDP2 | {"saving.weights": "full", "saving.optimizer": True})
    assert gathered(budget) == pytest.approx(peak, rel=0.01)


def test_a_sharded_state_dict_gathers_nothing_under_fsdp2(budget_of, tiny_llama, ranks) -> None:
    model = sharded_llama(tiny_llama, ranks)
    assert allocated_by(lambda: get_model_state_dict(model)) == (0, 0)
    assert gathered(budget_of(tiny_llama, FSDP2 | {"saving.weights": "sharded"})) == 0


def test_strategies_differ(llama_budget) -> None:
    """By hand: h 512, f 1408, V 2000, 4 blocks; weights are kept in fp32, under ZeRO in 16 bits."""
    hidden, mlp, vocabulary = 512, 1408, 2000
    block = 3 * hidden * mlp + 3 * hidden * hidden + 2 * hidden
    around = 2 * vocabulary * hidden + hidden
    whole = around + 4 * block

    def saving(strategy: str, **settings: Any) -> int:
        given = {f"saving.{name}": value for name, value in settings.items()}
        shards = {"parallel.data_replicate" if strategy == "ddp" else "parallel.data_shard": RANKS}
        common = {"training.precision": "bf16-mixed", "parallel.strategy": strategy}
        return gathered(llama_budget(common | shards | given))

    step = saving("zero3", weights="sharded")
    assert saving("zero3", weights="full") - step == 2 * vocabulary * hidden
    assert saving("zero2", weights="full") == saving("zero2", weights="sharded")
    assert saving("fsdp1", weights="full") == 4 * max(around, block)
    assert saving("fsdp1", weights="full", to_cpu=False) == 4 * (around + max(whole, whole - around + block))
    assert saving("fsdp1", weights="sharded") == 4 * (around + block + whole // RANKS)
    assert saving("fsdp1", weights="none") == 0
    assert saving("ddp", weights="full") == saving("ddp", weights="none")


def test_adapters_are_small(llama_budget) -> None:
    lora = FSDP2 | {"lora.rank": 8, "lora.targets": "all-linear"}
    budget = llama_budget(lora | {"saving.optimizer": True})
    assert gathered(budget) == 4 * 8 * 1408
    assert gathered(llama_budget(lora | {"saving.weights": "full"})) > 50 * gathered(budget)


def test_saving_may_be_the_peak(llama_budget) -> None:
    short = FSDP2 | {"training.micro_batch": 1, "training.sequence_length": 8, "saving.weights": "full"}
    assert llama_budget(short).peak.phase != "saving"
    budget = llama_budget(short | {"saving.to_cpu": False})
    assert budget.peak.phase == "saving"
    assert budget.peak.device_bytes >= budget.phases[-1].components.total_bytes
    assert Budget.from_json(budget.to_json()).phases[-1].name == "saving"
    assert llama_budget(FSDP2).phase("saving") is None


def test_host_memory_of_the_rank_that_saves(llama_budget) -> None:
    def host(**saving: Any) -> HostNeed:
        return llama_budget(FSDP2 | {f"saving.{name}": value for name, value in saving.items()}).host

    parameters = llama_budget().model.parameters
    whole, sharded, states = host(weights="full"), host(weights="sharded"), host(weights="full", optimizer=True)
    assert (whole.saving, whole.saves_once) == (4 * parameters, True)
    assert (sharded.saving, sharded.saves_once) == (4 * parameters // RANKS, False)
    assert states.saving == pytest.approx(8 * parameters)
    assert whole.saving_bytes(8) == whole.steady_bytes(8) + whole.saving
    assert sharded.saving_bytes(8) == sharded.steady_bytes(8) + 8 * sharded.saving
    assert host(weights="none").saving == 0
