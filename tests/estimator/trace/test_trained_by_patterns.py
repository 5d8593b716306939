"""Patterns of parameter names on built models: formula, exact count and traced step train the same."""

from typing import Any

import pytest
from model_configs import small_config

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping

pytestmark = pytest.mark.usefixtures("own_cache")

CASES = [
    (small_config("llama", tie_word_embeddings=True), {"trainable": ["lm_head"]}, None),
    (small_config("qwen2"), {"trainable": ["*bias", "!*.0.*"]}, None),
    (small_config("llama"), {"trainable": ["lm_head"]}, {"rank": 4}),
]


def job(config: dict[str, Any], training: dict[str, Any], lora: dict[str, Any] | None = None) -> Any:
    tables = {"model": {"config": config}, "training": {"precision": "bf16", "sequence_length": 128, **training}}
    return job_from_mapping(tables | ({"lora": lora} if lora else {}), where="test")


@pytest.mark.slow
@pytest.mark.parametrize(("config", "training", "lora"), CASES)
def test_every_method_trains_the_same_parameters(config, training, lora) -> None:
    trained = {
        estimate(job(config, training, lora), method=method).model.trainable_parameters
        for method in ("formula", "exact", "traced")
    }
    assert len(trained) == 1
    assert trained != {0}


@pytest.mark.slow
def test_the_built_model_shows_in_which_blocks_the_experts_are() -> None:
    asked = job(small_config("deepseek_v3", first_k_dense_replace=2), {"trainable": ["*.layers.1.mlp.*"]})
    counted, exact = estimate(asked, method="formula"), estimate(asked, method="exact")
    assert exact.model.trainable_parameters == 3 * 64 * 160
    assert any("use --method exact" in warning for warning in counted.warnings)
    assert not any("use --method exact" in warning for warning in exact.warnings)


@pytest.mark.slow
def test_a_trace_refuses_patterns_that_match_nothing_and_counts_that_differ() -> None:
    llama = CASES[0][0]
    with pytest.raises(CannotTellError, match="does not require grad"):
        estimate(job(llama, {"trainable": ["scores"]}), method="traced")
    with pytest.raises(CannotTellError, match="not known which parameters"):
        estimate(job(llama, {"trainable": ["lm_head"], "trainable_parameters": 12345}), method="traced")


@pytest.mark.slow
def test_the_count_of_the_running_program_is_the_one_that_a_trace_states() -> None:
    llama = CASES[0][0]
    asked = {"trainable": ["lm_head"]}
    counted = estimate(job(llama, asked), method="formula").model.trainable_parameters
    reported = estimate(job(llama, {**asked, "trainable_parameters": counted + 1}), method="traced")
    assert reported.model.trainable_parameters == counted + 1
