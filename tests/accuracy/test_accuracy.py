"""The accuracy table is consistent, and predictions for its rows are as accurate as before."""

from collections.abc import Sequence

import pytest
from accuracy_cases import Case, read_cases, read_left_out
from peers import accelerate, deepspeed, eleuther, preflight, space
from predictions import Result
from report import group_results, main, summarize

from vramtop.estimator.budget import Span
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.model.read_architecture import read_architecture

ACCURACY_LIMITS = {  # maximum median error, maximum share under by more than 5 %, minimum share in range
    "allocated": (0.014, 0.0, 0.9),
    "reserved": (0.028, 0.18, 0.9),
    "device": (0.045, 0.16, 0.89),
    "component": (0.006, 0.05, None),
    "file automodel": (0.01, 0.0, 0.9),
    "file bert_trainer": (0.03, 0.0, 0.9),
    "file components": (0.006, 0.07, None),
    "file fms_acceleration": (0.045, 0.11, 0.9),
    "file fsdp_qlora": (0.05, 0.2, 0.9),
    "file litgpt": (0.012, 0.0, 0.88),
    "file ms_swift": (0.16, 0.0, 0.9),
    "file megatron": (0.017, 0.0, 0.9),
    "file torchtitan": (0.02, 0.26, 0.9),
    "file torchtune": (0.04, 0.0, 0.7),  # two of its rows do not say what was run
}
"""A little worse than what the closed form reaches, and coverage near the nine in ten that ranges are made for."""


@pytest.mark.parametrize("name", ACCURACY_LIMITS)
def test_predictions_are_no_worse_than_they_were(name: str, results: Sequence[Result]) -> None:
    median, under, inside = ACCURACY_LIMITS[name]
    summary = summarize(group_results(results)[name])
    assert summary.median_error <= median
    assert summary.share_under <= under
    if inside is not None:
        assert summary.coverage.share >= inside


def test_errors_above_a_tenth_are_explained(results: Sequence[Result]) -> None:
    unexplained = [f"{r.case.id} {r.error:+.0%}" for r in results if abs(r.error) > 0.1 and not r.case.explained]
    assert unexplained == []


def test_rows_have_a_source_and_are_distinct() -> None:
    cases = read_cases()
    assert len({case.id for case in cases}) == len(cases) >= 154
    for case in cases:
        assert case.source, case.id
        assert case.versions, case.id
        assert case.mechanism, case.id
        assert case.measured_bytes > 0, case.id
        assert (case.part is not None) == (case.figure == "component"), case.id


def test_no_row_is_both_in_the_table_and_left_out() -> None:
    left_out = [identifier for entry in read_left_out() for identifier in entry.ids]
    assert len(set(left_out)) == len(left_out)
    assert not set(left_out) & {case.id for case in read_cases()}
    assert all(entry.reason for entry in read_left_out())


@pytest.fixture
def bert() -> Case:
    return next(case for case in read_cases() if case.id == "P004")


def test_the_range_of_a_device_figure_is_that_of_the_budget(bert: Case) -> None:
    from vramtop.estimator.estimation import estimate

    budget = estimate(bert.job)
    assert bert.range_bytes(budget) == Span(budget.peak.low_bytes, budget.peak.high_bytes)


def _peer_bytes(peer, model: str, **tables):
    job = job_from_mapping({"model": {"id": model}, **tables}, where="test")
    resolved = resolve_model(job.model, environ={})
    arch = read_architecture(resolved.config, where=resolved.where)
    return peer(job, arch, count_parameters(arch))


def test_accelerate_takes_four_times_the_weights_and_nothing_else() -> None:
    """Its published answer for bert-large in fp32: 4.99 GiB."""
    job = job_from_mapping(
        {"model": {"id": "google-bert/bert-large-uncased", "task": "masked-lm"}, "training": {"precision": "fp32"}},
        where="test",
    )
    resolved = resolve_model(job.model, environ={})
    arch = read_architecture(resolved.config, "masked-lm")
    assert (accelerate(job, arch, count_parameters(arch)) or 0) / GIB == pytest.approx(4.99, rel=0.01)


def test_deepspeed_divides_all_states_under_zero_3() -> None:
    predicted = _peer_bytes(deepspeed, "meta-llama/Llama-3.1-8B", parallel={"strategy": "zero3", "data_shard": 8})
    assert predicted == 4 * 128256 * 4096 + 18 * 8_030_261_248 // 8


def test_eleuther_counts_hundreds_of_gib_of_scores_for_a_long_sequence() -> None:
    """Llama-3-8B at 8192 tokens: 354 GiB of activations."""
    training = {"sequence_length": 8192}
    long = _peer_bytes(eleuther, "meta-llama/Llama-3.1-8B", training=training)
    none = _peer_bytes(eleuther, "meta-llama/Llama-3.1-8B", training={"sequence_length": 1})
    assert (long - none) / GIB == pytest.approx(354, rel=0.01)


def test_the_lower_bound_is_usually_below_the_measured_bytes(results: Sequence[Result]) -> None:
    below = [r.peers["N x b"] < r.case.measured_bytes for r in results if r.peers]
    assert sum(below) / len(below) > 0.9
    assert _peer_bytes(preflight, "meta-llama/Llama-2-7b-hf", lora={"rank": 8, "quantization": "nf4"}) < 6 * GIB


def test_peers_without_adapters_give_none_for_them() -> None:
    for peer in (accelerate, deepspeed, eleuther, space):
        assert _peer_bytes(peer, "meta-llama/Llama-2-7b-hf", lora={"rank": 8}) is None


def test_the_report_shows_rows_summaries_and_peers(capsys) -> None:
    assert main(["--file", "bert_trainer"]) == 0
    text = capsys.readouterr().out
    assert "P004" in text
    assert "median |error|" in text
    assert "accelerate" in text
    assert "NOT EXPLAINED" not in text
