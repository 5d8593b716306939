from collections.abc import Callable
from itertools import combinations

import pytest
from slow_cases import quick_every

from vramtop.estimator.advice.bounded_search import shifted
from vramtop.estimator.advice.suggestion_search import Suggestion
from vramtop.estimator.advice.suggestions import calibrated, candidate_changes, confirm, suggest
from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CannotTellError, InputError, Verdict
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.reserved_memory import with_reserved_memory
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import QuickEstimator, quick_estimator
from vramtop.estimator.job.job import Job, Lora, ModelSpec, Parallel, Training
from vramtop.estimator.job.job_file.changes import with_changes

MODEL = ModelSpec(id="meta-llama/Llama-3.1-8B")
JOB = Job(model=MODEL, training=Training(micro_batch=4, sequence_length=4096, precision="bf16"))
SHARDED = with_changes(JOB, {"parallel.strategy": "fsdp2", "parallel.data_shard": 8, "training.optimizer": "adamw"})


@pytest.fixture(scope="module")
def quick() -> QuickEstimator:
    return quick_estimator(JOB)


def within(size_gib: float, ranks: int = 1) -> Callable[[Budget], Verdict]:
    """Return a judge for a number of GPUs of one size."""

    def judge(budget: Budget) -> Verdict:
        if len(budget.ranks) > ranks:
            return "does_not_fit"
        need = max(budget.ranks, key=lambda rank: rank.device_bytes)
        if need.high_bytes <= size_gib * GIB:
            return "fits"
        return "tight" if need.device_bytes <= size_gib * GIB else "does_not_fit"

    return judge


def offered(
    job: Job, quick: QuickEstimator, judge: Callable[[Budget], Verdict], *, gpus: int = 1
) -> tuple[Suggestion, ...]:
    return suggest(job, quick(job), quick, judge, gpus=gpus)


@pytest.mark.parametrize("job", quick_every(3, [JOB, SHARDED, with_changes(JOB, {"lora": {"rank": 16}})], start=1))
@pytest.mark.parametrize("size", quick_every(2, [24, 40, 80, 120, 160], start=1))
def test_every_suggestion_has_the_budget_of_its_changed_job(quick: QuickEstimator, job: Job, size: float) -> None:
    judge = within(size, 8)
    for suggestion in offered(job, quick, judge, gpus=8):
        budget = quick(with_changes(job, suggestion.changes))
        assert (judge(budget), budget.peak) == (suggestion.verdict, suggestion.budget.peak)
        fewer_gpus = budget.peak.device_bytes < quick(job).peak.device_bytes
        assert fewer_gpus or suggestion.verdict == "fits"


@pytest.mark.parametrize("size", [16, 33, 60, 80, 120])
def test_suggestions_that_fit_come_first_in_order_of_cost_and_no_part_has_the_same_effect(quick, size: float) -> None:
    found = offered(JOB, quick, within(size))
    verdicts = [s.verdict for s in found]
    assert verdicts == sorted(verdicts, key=["fits", "tight", "does_not_fit"].index)
    fitting = [s.cost for s in found if s.verdict == "fits"]
    assert fitting == sorted(fitting)
    for more in found:
        for fewer in found:
            if all(part in more.parts for part in fewer.parts) and fewer is not more:
                assert fewer.verdict != more.verdict or more.verdict == "does_not_fit"


def test_a_sufficient_single_change_appears_in_no_pair(quick: QuickEstimator) -> None:
    need = quick(with_changes(JOB, {"training.activation_checkpointing": "full"})).peak
    found = offered(JOB, quick, within(need.high_bytes / GIB))
    full = next(s for s in found if s.changes == {"training.activation_checkpointing": "full"})
    assert full.verdict == "fits"
    assert all("checkpointing" not in {part.kind for part in s.parts} for s in found if s is not full)
    assert all(s.cost <= 0.75 * full.cost for s in found if len(s.parts) == 2 and s.verdict == "fits")


def test_pairs_are_suggested_if_no_single_change_suffices(quick: QuickEstimator) -> None:
    found = offered(JOB, quick, within(75))
    assert found[0].verdict == "fits"
    assert len(found[0].parts) == 2
    assert found[0].parts[0].kind != found[0].parts[1].kind


def test_what_fits_is_found_behind_what_only_seems_to() -> None:
    """Several cheaper pairs would fit if the allocator kept nothing, and none of them does."""
    job = with_changes(JOB, {"training.micro_batch": 8, "training.optimizer": "adamw"})
    quick, judge = quick_estimator(job), within(79.2)
    found = offered(job, quick, judge)
    assert found[0].verdict == "fits"
    pairs = sorted(combinations(candidate_changes(job), 2), key=lambda pair: pair[0].cost + pair[1].cost)
    changed = (with_changes(job, a.changes | b.changes) for a, b in pairs if a.kind != b.kind)
    with with_reserved_memory("least"):
        cheapest = next(each for each in changed if judge(quick(each)) == "fits")
    assert judge(quick(cheapest)) != "fits"


def test_a_third_change_is_added_if_no_pair_suffices(quick: QuickEstimator) -> None:
    found = offered(with_changes(JOB, {"training.micro_batch": 8}), quick, within(33))
    fitting = [s for s in found if s.verdict == "fits"]
    assert fitting
    assert len(fitting[0].parts) == 3
    for suggestion in fitting:
        assert len({part.kind for part in suggestion.parts}) == len(suggestion.parts)
        assert len(suggestion.changes) == sum(len(part.changes) for part in suggestion.parts)


def test_the_smallest_sufficient_step_is_suggested(quick: QuickEstimator) -> None:
    halved, quartered = ({"training.micro_batch": 4 // f, "training.gradient_accumulation": f} for f in (2, 4))
    for changes in (halved, quartered):
        size = quick(with_changes(JOB, changes)).peak.high_bytes / GIB
        batches = [s for s in offered(JOB, quick, within(size)) if s.changes.keys() == changes.keys()]
        assert [s.changes for s in batches if s.verdict == "fits"] == [changes]


def test_smaller_micro_batches_keep_the_global_batch() -> None:
    batches = [c for c in candidate_changes(JOB) if c.kind == "micro-batch"]
    assert [with_changes(JOB, c.changes).global_batch for c in batches] == [JOB.global_batch] * 2


def test_sharding_uses_at_most_the_available_gpus() -> None:
    def ranks(gpus: int) -> list[int]:
        found = [c for c in candidate_changes(JOB, gpus=gpus) if c.kind == "sharding"]
        return [with_changes(JOB, c.changes).parallel.world_size for c in found]

    assert [ranks(gpus) for gpus in (1, 2, 6, 8)] == [[], [2], [2, 4], [2, 4, 8]]
    accumulating = with_changes(JOB, {"training.gradient_accumulation": 4})
    kept = [
        with_changes(accumulating, c.changes) for c in candidate_changes(accumulating, gpus=4) if c.kind == "sharding"
    ]
    assert {job.global_batch for job in kept} == {accumulating.global_batch}


def test_current_settings_are_not_suggested() -> None:
    job = Job(
        model=MODEL,
        training=Training(
            activation_checkpointing="full", optimizer="adamw-8bit", loss="fused-linear", sequence_length=512
        ),
        lora=Lora(quantization="nf4"),
        parallel=Parallel(strategy="fsdp2", data_shard=2),
    )
    assert {c.kind for c in candidate_changes(job, gpus=2)} == {"activation offload", "cpu offload", "loading"}
    once = with_changes(job, {"parallel.load_on_rank_zero": True, "parallel.cpu_offload": "all"})
    assert {c.kind for c in candidate_changes(once, gpus=2)} == {"activation offload"}


def test_every_change_has_a_cost_and_a_source() -> None:
    for job in (JOB, SHARDED, with_changes(JOB, {"training.mode": "inference", "training.precision": "fp32"})):
        assert candidate_changes(job, gpus=16)
        for change in candidate_changes(job, gpus=16):
            assert change.source
            assert change.cost >= 0
            assert with_changes(job, change.changes) != job


def test_the_smallest_jobs_are_suggested_if_nothing_suffices(quick: QuickEstimator) -> None:
    found = offered(JOB, quick, within(4))
    needs = [s.budget.peak.device_bytes for s in found]
    assert {s.verdict for s in found} == {"does_not_fit"}
    assert needs == sorted(needs)


@pytest.mark.slow
def test_no_two_suggestions_change_the_same_settings(quick: QuickEstimator) -> None:
    job = Job(model=ModelSpec(id="meta-llama/Llama-3.1-8B"))
    found = suggest(job, quick(job), quick_estimator(job), lambda _: "does_not_fit", gpus=16)
    changes = [sorted((key, str(value)) for key, value in each.changes.items()) for each in found]
    assert len(found) > 1
    assert not [each for each in changes if changes.count(each) > 1]


def test_a_more_accurate_budget_shifts_all_figures(quick: QuickEstimator) -> None:
    surer = replace(shifted(quick(JOB), 3 * GIB), method="traced")
    full = with_changes(JOB, {"training.activation_checkpointing": "full"})
    assert calibrated(JOB, surer, quick)(full).peak.device_bytes == quick(full).peak.device_bytes + 3 * GIB
    assert calibrated(JOB, quick(JOB), quick)(full) == quick(full)


def test_figures_are_those_of_the_better_estimate(quick: QuickEstimator) -> None:
    judge = within(130)
    found = offered(JOB, quick, judge)
    told: list[str] = []

    def surer(job: Job) -> Budget:
        return replace(shifted(quick(job), -GIB // 2), method="traced")

    checked = confirm(found, surer, judge, progress=told.append)
    assert len(checked) == len(found) == len(told)
    for before, after in zip(found, checked, strict=True):
        assert (after.confirmed, after.budget.method) == (True, "traced")
        assert after.budget.peak.device_bytes == before.budget.peak.device_bytes - GIB // 2
    assert len(confirm(found, surer, judge, seconds=0)) == 1


def test_what_does_not_fit_after_all_is_dropped_and_what_cannot_be_estimated_stays(quick: QuickEstimator) -> None:
    judge = within(130)
    found = offered(JOB, quick, judge)
    first = found[0].budget.job

    def larger(job: Job) -> Budget:
        return shifted(quick(job), 100 * GIB if job == first else 0)

    checked = confirm(found, larger, judge)
    assert found[0].changes not in [s.changes for s in checked]
    assert checked[0].changes == found[1].changes
    assert [s.verdict for s in confirm(found, lambda job: shifted(quick(job), 100 * GIB), judge)] == [
        "does_not_fit" for _ in found
    ]

    def cannot(_job: Job) -> Budget:
        raise CannotTellError("no torch")

    assert confirm(found, cannot, judge) == found

    def refuses(job: Job) -> Budget:
        if job == first:
            raise InputError("no such head")
        return quick(job)

    assert found[0].changes not in [s.changes for s in confirm(found, refuses, judge)]


def test_another_training_is_never_the_same_result(quick: QuickEstimator) -> None:
    every = [each for gib in (20, 33, 75, 130) for each in offered(JOB, quick, within(gib))]
    assert any(each.why.endswith("same result") for each in every)
    for each in every:
        assert ("same result" in each.why) == (not any(part.quality for part in each.parts)), each.why


def test_16_bit_weights_under_adapters_are_among_the_fixes() -> None:
    job = with_changes(JOB, {"training.precision": "bf16-mixed", "lora.rank": 8})
    found = offered(job, quick_estimator(job), within(60))
    assert found[0].changes["training.precision"] == "bf16"
    assert found[0].verdict == "fits"


def test_the_smallest_sufficient_utilization_is_suggested() -> None:
    tables = {"training.mode": "inference", "inference.engine": "vllm", "inference.gpu_memory_utilization": 0.3}
    shares = [c for c in candidate_changes(with_changes(JOB, tables)) if c.kind == "utilization"]
    raises = [c.changes["inference.gpu_memory_utilization"] for c in shares]
    assert raises == sorted(raises)
    assert 0.3 not in raises


@pytest.mark.parametrize(
    ("parallel", "gpus", "wanted"),
    [
        ({"tensor": 8, "pipeline": 2}, 8, [{"parallel.pipeline": 1}, {"parallel.tensor": 4}]),
        ({"tensor": 8, "pipeline": 8}, 4, [{"parallel.pipeline": 1, "parallel.tensor": 4}]),
        ({"strategy": "zero3", "data_shard": 16}, 4, [{"parallel.data_shard": 4, "training.gradient_accumulation": 4}]),
        ({"strategy": "fsdp2", "data_shard": 8}, 8, []),
    ],
)
def test_a_job_over_more_gpus_than_there_are_takes_fewer(parallel, gpus, wanted) -> None:
    job = with_changes(JOB, {f"parallel.{name}": value for name, value in parallel.items()})
    assert [c.changes for c in candidate_changes(job, gpus=gpus) if c.kind == "fewer GPUs"] == wanted


def test_every_suggestion_for_too_many_gpus_takes_fewer(quick: QuickEstimator) -> None:
    job = with_changes(JOB, {"parallel.tensor": 8, "parallel.pipeline": 2})
    for size in (80, 20):  # the second needs other changes besides
        found = offered(job, quick, within(size, 8), gpus=8)
        assert found
        assert all(with_changes(job, s.changes).parallel.world_size <= 8 for s in found)
        assert found[0].verdict == "fits"
    assert offered(job, quick, within(160, 8), gpus=8)[0].changes == {"parallel.pipeline": 1}


@pytest.mark.parametrize(("version", "offered"), [("4.44.2", False), ("4.45.0", True)])
def test_a_fused_loss_is_offered_where_the_trainer_takes_it(version: str, *, offered: bool) -> None:
    job = with_changes(JOB, {"software.transformers": version})
    assert any({"training.loss"} == {*each.changes} for each in candidate_changes(job)) == offered
