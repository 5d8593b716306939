"""A budget: its JSON, and the peaks of its ranks."""

import json

import pytest

from vramtop.estimator.budget import Budget, Components, LargeTensor, PhaseMark, RankPeak, RankPeaks, Timeline
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job, Lora, ModelSpec, Parallel

JOBS = {
    "full": Job(model=ModelSpec(id="gpt2")),
    "lora, sharded": Job(
        name="both",
        model=ModelSpec(id="meta-llama/Llama-3.1-8B"),
        lora=Lora(rank=8),
        parallel=Parallel(strategy="fsdp2", data_shard=8),
    ),
    "in pipeline stages": Job(model=ModelSpec(id="gpt2"), parallel=Parallel(pipeline=3)),
}
TENSOR = LargeTensor(module="lm_head", shape=(7, 11), dtype="float32", bytes=512, component="logits")
LINE = Timeline(
    events=(3, 5, 9),
    levels=(
        Components(weights=100, context=7),
        Components(weights=100, activations=50, context=7),
        Components(weights=100, gradients=20, context=7),
    ),
    reserved_bytes=(128, 256, 256),
    outside_bytes=7,
    phases=(PhaseMark(name="forward", event=3), PhaseMark(name="backward", event=9)),
)


@pytest.mark.parametrize("name", JOBS)
def test_a_budget_comes_back_from_its_json(name: str) -> None:
    budget = estimate(JOBS[name])
    assert Budget.from_json(json.loads(json.dumps(budget.to_json()))) == budget


def test_a_traced_budget_comes_back_with_its_timeline_and_tensors() -> None:
    budget = replace(estimate(JOBS["full"]), method="traced", largest=(TENSOR,), timeline=LINE)
    written = budget.to_json()
    assert written["timeline"]["components"] == {
        "weights": (100, 100, 100),
        "gradients": (0, 0, 20),
        "activations": (0, 50, 0),
        "context": (7, 7, 7),
    }
    assert Budget.from_json(json.loads(json.dumps(written))) == budget
    assert LINE.peak == 1


def test_other_json_is_an_input_error() -> None:
    written = estimate(JOBS["full"]).to_json()
    with pytest.raises(InputError, match=r"not a budget that vramtop wrote.*peak"):
        Budget.from_json({key: value for key, value in written.items() if key != "peak"})
    with pytest.raises(InputError, match="schema 2"):
        Budget.from_json(written | {"schema": 2})
    with pytest.raises(InputError, match=r"the budget's job: .*micro_batch"):
        Budget.from_json(written | {"job": {"training": {"micro_batch": 0}}})


def test_columns_of_different_length_are_no_timeline() -> None:
    written = replace(estimate(JOBS["full"]), timeline=LINE).to_json()
    written["timeline"]["reserved_bytes"] = (128,)
    with pytest.raises(InputError, match="differ in length"):
        Budget.from_json(written)


SMALL, LARGE = (RankPeak(device_bytes=size, low_bytes=size - 1, high_bytes=size + 1) for size in (10, 20))


def test_ranks_are_numbered_by_stage_first() -> None:
    ranks = RankPeaks((LARGE, SMALL), 2)
    assert list(ranks) == [LARGE, LARGE, SMALL, SMALL]
    assert (len(ranks), ranks[1], ranks[2], ranks[-1], ranks[1:3]) == (4, LARGE, SMALL, SMALL, (LARGE, SMALL))
    assert ranks.highest == LARGE
    with pytest.raises(IndexError):
        ranks[4]


def test_alike_ranks_are_counted() -> None:
    assert list(RankPeaks((LARGE, SMALL, SMALL, SMALL, LARGE), 1000).runs) == [
        (LARGE, 1000),
        (SMALL, 3000),
        (LARGE, 1000),
    ]
    assert len(RankPeaks((LARGE,), 10**9)) == 10**9
