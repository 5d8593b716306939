"""What a running program reports takes precedence over what was read."""

from typing import Any

import pytest

from vramtop.estimator.readers.source.evidence import FindingCollector, JobReading
from vramtop.monitor.attach.live_facts import with_live_facts
from vramtop.monitor.probe.probe_reader import OptimizerFacts, ProbeSample


def reading(**found: Any) -> JobReading:
    findings = FindingCollector()
    for key, value in found.items():
        findings.record(key.replace("__", "."), value, "train.py")
    findings.mark_uncertain("training.optimizer", "The optimizer is only known when the script runs.")
    return findings.build()


def sample(**facts: Any) -> ProbeSample:
    return ProbeSample(
        **{"pid": 1, "time": 0.0, "devices": (), "steps": 0, "step_began": None, "step_seconds": None, **facts}
    )


def optimizer(name: str, trained: int, *, sharded: str | None = None, **options: Any) -> OptimizerFacts:
    return OptimizerFacts(name=name, options=options, trained={"float32": trained}, sharded=sharded)


def test_the_models_own_count_and_names_win() -> None:
    model = {"parameters": {"float32 trained": 4097, "bfloat16 frozen": 10}, "sharded": False, "trained": ["score"]}
    found = with_live_facts(reading(training__trainable=["lm_head"]), sample(model=model))
    assert found.value("training.trainable_parameters") == 4097
    assert found.value("training.trainable") == ["score"]
    assert found.evidence()["training.trainable_parameters"] == "reported by the running program (probe)"
    assert found.job().training.trainable_parameters == 4097


def test_an_own_loops_optimizers_are_counted_and_named() -> None:
    both = (optimizer("torch.optim.sgd.SGD", 100, momentum=0.9), optimizer("torch.optim.adamw.AdamW", 9, fused=True))
    found = with_live_facts(reading(training__optimizer="adamw"), sample(optimizers=both))
    assert found.value("training.trainable_parameters") == 109
    assert found.value("training.optimizer") == "sgd-momentum"
    assert not found.uncertainties  # what the optimizer is, is known now


@pytest.mark.parametrize("sharded", ["other", "fsdp1", "deepspeed"])
def test_a_ranks_share_is_not_taken_for_the_whole(sharded: str) -> None:
    facts = sample(optimizers=(optimizer("torch.optim.adamw.AdamW", 100, sharded=sharded),))
    assert with_live_facts(reading(), facts).value("training.trainable_parameters") is None
    model = {"parameters": {"float32 trained": 5}, "sharded": True, "trained": None}
    assert with_live_facts(reading(), sample(model=model)).value("training.trainable_parameters") is None


def test_without_a_probe_or_with_an_unknown_optimizer_nothing_changes() -> None:
    before = reading(training__optimizer="lion")
    assert with_live_facts(before, None) is before
    assert with_live_facts(before, sample(optimizers=())) is before
    odd = with_live_facts(before, sample(optimizers=(optimizer("__main__.Odd", 7),)))
    assert odd.value("training.optimizer") == "lion"


@pytest.mark.parametrize("names", ["score", [1], ["a b"], ["!x"], ["\x1b[31m"], [""], ["x" * 501]])
def test_names_that_another_users_process_may_have_made_up_are_not_used(names: Any) -> None:
    model = {"parameters": {}, "sharded": False, "trained": names}
    assert with_live_facts(reading(), sample(model=model)).value("training.trainable") is None
