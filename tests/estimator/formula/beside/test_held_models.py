"""Models beside the trained one, compared with what torch allocates in a real loop with both."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from model_configs import llama_config
from slow_cases import quick_every
from storage_counter import StorageCounter
from torch._subclasses.fake_tensor import FakeTensorMode

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.estimation import estimate, quick_estimator
from vramtop.estimator.formula.process_memory import workspace_bytes
from vramtop.estimator.job.gpu_catalogue import generation_of
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping, with_changes

STUDENT = llama_config(hidden=256, mlp=704, layers=3, heads=4, kv_heads=2, vocab=4000, tie_word_embeddings=False)
TEACHER = STUDENT | {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8}
BATCH, LENGTH = 2, 1024
WORKSPACE = workspace_bytes(generation_of(None))


pytestmark = pytest.mark.usefixtures("no_padding_mask")


def job(*others: dict[str, Any], **settings: Any) -> Job:
    training = {"precision": "bf16", "micro_batch": BATCH, "sequence_length": LENGTH}
    tables = {"model": {"config": STUDENT}, "training": training, "other_models": list(others), **settings}
    return job_from_mapping(tables, where="test")


def build(config: dict[str, Any]) -> Any:
    fields = dict(config)
    made = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    made.use_cache = False
    return transformers.AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16)


def distil(student: Any, teacher: Any, ids: Any) -> Any:
    """A distillation loss as tutorials write it."""
    outputs = student(input_ids=ids, labels=ids)
    with torch.no_grad():
        wanted = teacher(input_ids=ids).logits
    kl = torch.nn.functional.kl_div(
        torch.log_softmax(outputs.logits / 2, dim=-1), torch.softmax(wanted / 2, dim=-1), reduction="batchmean"
    )
    return outputs.loss + kl


def prefer(student: Any, reference: Any, ids: Any) -> Any:
    """A loss against a reference whose logits are reduced at once."""
    with torch.no_grad():
        before = reference(input_ids=ids).logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1))
    return student(input_ids=ids, labels=ids).loss + before.sum()


def measured(config: dict[str, Any], loss_of: Callable[[Any, Any, Any], Any]) -> tuple[int, int]:
    """The peak of two steps, and the weights of the model beside the student."""
    with FakeTensorMode(allow_non_fake_inputs=True), StorageCounter() as counter:
        student, other = build(STUDENT), build(config)
        other.requires_grad_(False)
        optimizer = torch.optim.AdamW(student.parameters(), foreach=True)
        for _ in range(2):
            counter.reset_peak()
            ids = torch.randint(0, STUDENT["vocab_size"], (BATCH, LENGTH))
            loss = loss_of(student, other, ids)
            loss.backward()
            del loss
            optimizer.step()
            optimizer.zero_grad()
        return counter.peak, sum(p.numel() * p.element_size() for p in other.parameters())


@pytest.mark.parametrize(
    ("other", "loss_of", "config"),
    quick_every(
        3,
        [
            ({"role": "teacher", "config": TEACHER}, distil, TEACHER),
            ({"role": "reference"}, prefer, STUDENT),
            ({"role": "reference", "config": TEACHER}, prefer, TEACHER),
        ],
    ),
)
def test_a_step_with_another_model_lies_within_the_range(other, loss_of, config) -> None:
    peak, weights = measured(config, loss_of)
    budget = estimate(job(other), method="formula")
    alone = estimate(job(), method="formula")
    loading, before = budget.phases[0].components, alone.phases[0].components
    assert loading.weights - before.weights == weights
    outside = budget.peak.device_bytes - budget.peak.allocated_bytes + WORKSPACE
    assert budget.peak.low_bytes - outside <= peak <= budget.peak.high_bytes - outside
    assert budget.peak.allocated_bytes - WORKSPACE == pytest.approx(peak, rel=0.12)


def test_a_moving_average_is_weights_alone_and_may_be_on_the_host() -> None:
    alone = estimate(job(), method="formula")
    fp32 = estimate(job({"role": "ema", "dtype": "fp32"}), method="formula")
    weights = alone.phases[0].components.weights
    assert fp32.peak.device_bytes - alone.peak.device_bytes == 2 * weights
    host = estimate(job({"role": "ema", "on_gpu": False, "count": 2}), method="formula")
    assert host.peak == alone.peak
    assert host.host.weights == 2 * weights


def test_sharded_and_quantized_models_take_their_share() -> None:
    parallel = {"strategy": "fsdp2", "data_shard": 4}
    whole = estimate(job({"config": TEACHER, "forward": False}, parallel=parallel), method="formula")
    sharded = estimate(job({"config": TEACHER, "forward": False, "sharded": True}, parallel=parallel), method="formula")
    small = estimate(job({"config": TEACHER, "forward": False, "quantization": "nf4"}), method="formula")
    alone = estimate(job(parallel=parallel), method="formula")

    def beside(budget: Budget, without: Budget) -> int:
        return budget.phases[0].components.weights - without.phases[0].components.weights

    assert beside(sharded, alone) == pytest.approx(beside(whole, alone) / 4, rel=0.01)
    assert beside(small, estimate(job(), method="formula")) < 0.4 * beside(whole, alone)


def test_a_model_that_cannot_be_found_is_taken_for_one_like_the_trained_one() -> None:
    budget = estimate(job({"role": "teacher", "id": "no/such-model"}), method="formula")
    alone = estimate(job(), method="formula")
    weights = alone.phases[0].components.weights
    assert budget.phases[0].components.weights == 2 * weights
    assert any("no/such-model is assumed to be like the trained model" in each for each in budget.warnings)
    assert budget.peak.low_bytes <= alone.peak.low_bytes
    assert budget.peak.high_bytes >= alone.peak.high_bytes + 2 * weights


def test_searches_count_other_models_too() -> None:
    stated = {"software.transformers": "5.23.0", "training.varying_lengths": False}
    with_one, alone = (with_changes(each, stated) for each in (job({"role": "reference"}), job()))
    quick = quick_estimator(with_one)
    assert quick(with_one).peak == estimate(with_one, method="formula").peak
    assert quick(with_changes(with_one, {"other_models": None})).peak == estimate(alone, method="formula").peak


def test_no_script_holds_other_models() -> None:
    with pytest.raises(CannotTellError, match="it holds other models than the reference model of DPO"):
        estimate(job({"role": "ema"}), method="traced")
