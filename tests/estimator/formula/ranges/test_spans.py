"""Each figure of a peak has a range of its own, which holds what its sources of doubt may be wrong by."""

from math import hypot
from typing import Any

import pytest

from vramtop.estimator.budget import Budget, Components, Peak, Span
from vramtop.estimator.common.records import replace
from vramtop.estimator.estimation import estimate
from vramtop.estimator.formula.calibration import COUNT_SHARE, FORMULA, SMALL_BYTES
from vramtop.estimator.formula.doubts import Doubts
from vramtop.estimator.formula.ranges import DoubtfulBytes, figure_ranges
from vramtop.estimator.job.job_file.changes import job_from_mapping

GIB = 2**30
PARTS = Components(weights=20 * GIB, activations=8 * GIB, temporary=2 * GIB, communication=2 * GIB, context=GIB // 2)
FIGURES = {"allocated": 31 * GIB, "reserved": 34 * GIB, "device": 35 * GIB + GIB // 2}
BYTES = DoubtfulBytes.of(PARTS, allocated=31 * GIB, reserved=34 * GIB, outside=3 * GIB // 2)


def budget(**tables: Any) -> Budget:
    tables = {"model": {"id": "meta-llama/Llama-3.1-8B"}, **tables}
    return estimate(job_from_mapping(tables, where="test"), method="formula")


def test_bytes_are_split_by_the_error_that_they_are_subject_to() -> None:
    assert BYTES.states == 20 * GIB
    assert BYTES.nccl == GIB
    assert BYTES.step == 11 * GIB  # NCCL's own buffers are no part of the step
    assert BYTES.allocator == pytest.approx(3 * GIB + 0.03 * 31 * GIB, abs=1)
    assert BYTES.context == GIB // 2


def test_independent_errors_are_added_as_squares_and_widen_figure_by_figure() -> None:
    ranges = figure_ranges(BYTES, Doubts("checked", "plain"), FORMULA, **FIGURES)
    errors = [FORMULA.step["checked"] * BYTES.step, SMALL_BYTES, COUNT_SHARE * BYTES.states]
    assert ranges.allocated.high_bytes - 31 * GIB == pytest.approx(hypot(*errors), abs=1)
    errors.append(FORMULA.allocator["plain"] * BYTES.allocator)
    assert 34 * GIB - ranges.reserved.low_bytes == pytest.approx(hypot(*errors), abs=1)
    errors += [FORMULA.context * GIB / 2, FORMULA.nccl * GIB]
    assert 35.5 * GIB - ranges.device.low_bytes == pytest.approx(hypot(*errors), abs=1)


def test_what_may_be_missing_or_needed_besides_moves_each_end() -> None:
    ranges = figure_ranges(BYTES, Doubts("checked", "plain"), FORMULA, **FIGURES)
    more = figure_ranges(BYTES, Doubts("checked", "plain"), FORMULA, **FIGURES, less=GIB, more=2 * GIB)
    for before, after in zip(
        (ranges.allocated, ranges.reserved, ranges.device), (more.allocated, more.reserved, more.device), strict=True
    ):
        assert after == Span(before.low_bytes - GIB, before.high_bytes + 2 * GIB)


def test_an_approximate_count_may_be_much_too_high_and_a_little_too_low() -> None:
    exact = figure_ranges(BYTES, Doubts("checked", "plain"), FORMULA, **FIGURES)
    rough = figure_ranges(BYTES, Doubts("checked", "plain"), FORMULA, **FIGURES, exact=False, too_many=0.3)
    assert exact.allocated.low_bytes - rough.allocated.low_bytes > 4 * GIB
    assert 0 < rough.allocated.high_bytes - exact.allocated.high_bytes < 2 * GIB


BERT = {
    "model": {"id": "google-bert/bert-base-uncased"},
    "training": {"precision": "bf16-mixed", "optimizer": "adamw-fused", "micro_batch": 16, "sequence_length": 512},
}
GEMMA = {
    "model": {"id": "google/gemma-2-9b"},
    "training": {"precision": "bf16", "micro_batch": 1, "sequence_length": 4096, "activation_checkpointing": "full"},
    "lora": {"rank": 16, "targets": ["q_proj", "v_proj"], "autocast": True},
}


@pytest.mark.parametrize(("tables", "rehearsed"), [(BERT, 8.47), (GEMMA, 38.37)])
def test_logits_may_not_find_the_blocks_of_the_step_before(tables: dict[str, Any], rehearsed: float) -> None:
    """As the rehearsals of both programs show, around whose blocks the closed form replays no exact order."""
    span = budget(**tables).peak.reserved_range
    assert round(rehearsed * GIB) in span


def test_what_is_reserved_is_never_below_what_is_allocated() -> None:
    ranges = figure_ranges(BYTES, Doubts("checked", "plain"), replace(FORMULA, allocator={"plain": 9.0}), **FIGURES)
    assert ranges.reserved.low_bytes == ranges.allocated.low_bytes
    assert ranges.device.low_bytes == ranges.allocated.low_bytes


def test_a_compiled_step_has_a_wider_range() -> None:
    """In what it allocates: what the allocator keeps besides differs by the tensors that are there."""
    spans = [
        budget(training={"compile": asked, "precision": "bf16-mixed", "optimizer": "adamw"}).peak.allocated_range
        for asked in (False, True)
    ]
    plain, compiled = (span.high_bytes - span.low_bytes for span in spans if span)
    assert compiled > plain


def test_gradients_may_not_meet_the_longest_sequences_of_old_litgpt() -> None:
    tables = {
        "training": {"framework": "litgpt", "loss": "chunked", "precision": "bf16", "gradient_accumulation": 8},
        "parallel": {"strategy": "fsdp1", "data_shard": 2},
    }
    old, new = (budget(**tables, software={"litgpt": version}).peak for version in ("0.1", "0.4.6"))
    once = budget(
        **tables | {"training": tables["training"] | {"gradient_accumulation": 1}}, software={"litgpt": "0.1"}
    )
    parts = old.components
    less = min(parts.gradients, parts.activations + parts.logits)
    spans = [
        each.allocated_bytes - each.allocated_range.low_bytes for each in (old, new, once.peak) if each.allocated_range
    ]
    assert spans[0] >= less
    assert max(spans[1:]) < less / 2


def test_what_no_setting_explains_widens_all_ranges() -> None:
    plain, unsure = (budget(unsure=unsure).peak for unsure in ({}, {"activations": "either"}))
    activations = plain.components.activations
    assert unsure.allocated_range.high_bytes == plain.allocated_range.high_bytes + activations
    assert unsure.high_bytes == plain.high_bytes + activations


def test_ranges_are_part_of_the_json() -> None:
    before = budget()
    assert Budget.from_json(before.to_json()).peak == before.peak
    old = before.to_json()
    old["peak"] = {name: size for name, size in old["peak"].items() if not name.endswith("_range")}
    peak = Budget.from_json(old).peak
    assert peak == replace(before.peak, allocated_range=None, reserved_range=None)


MAMBA = {"mamba_d_state": 16, "mamba_expand": 2}


SHAPE = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16, "intermediate_size": 8192}
FIELDS = [
    ({}, "shape"),
    (MAMBA, "recurrent"),
    ({"layer_types": ["conv"]}, "recurrent"),
    ({"layer_types": [[]]}, "recurrent"),
]


def shaped(fields: dict[str, Any], family: str, **training: Any) -> Peak:
    config = {**SHAPE, "vocab_size": 32000, "model_type": family, **fields}
    return budget(model={"config": config}, training={"optimizer": "adamw-fused", **training}).peak


@pytest.mark.parametrize(("fields", "doubt"), FIELDS)
def test_a_family_without_rules_has_a_range_as_wide_as_the_error_of_its_shape(fields, doubt) -> None:
    peak, known = (shaped(fields, family, micro_batch=16) for family in ("brandnew", "llama"))
    step = peak.components.activations + peak.components.logits
    assert peak.allocated_range.high_bytes - peak.allocated_bytes >= FORMULA.step[doubt] * step
    assert known.allocated_range.high_bytes - known.allocated_bytes < FORMULA.step[doubt] * step


def test_a_phase_that_may_turn_out_to_be_the_highest_widens_the_range() -> None:
    """The optimizer step of a state-space model is the expected peak, but its activations are hardly known."""
    config = {**SHAPE, **MAMBA, "vocab_size": 32000, "model_type": "brandnew"}
    found = budget(model={"config": config}, training={"precision": "bf16-mixed", "optimizer": "adamw"})
    backward = found.phase("backward")
    assert found.peak.phase == "optimizer step"
    doubtful = FORMULA.step["recurrent"] * (backward.components.activations + backward.components.logits)
    assert found.peak.allocated_range.high_bytes >= backward.allocated_bytes + doubtful
    assert found.peak.high_bytes >= found.peak.allocated_range.high_bytes


def test_the_peak_is_no_lower_than_a_phase_that_is_certain() -> None:
    others = [Span(30 * GIB, 32 * GIB)]
    ranges = figure_ranges(BYTES, Doubts("recurrent", "plain"), FORMULA, **FIGURES, others=others)
    assert ranges.allocated.low_bytes == 30 * GIB
    assert ranges.reserved.low_bytes >= 30 * GIB


def test_recurrent_blocks_are_warned_of() -> None:
    config = {**SHAPE, **MAMBA, "vocab_size": 32000, "model_type": "brandnew"}
    for model in ({"config": config}, {"id": "qwen3-next-80b-a3b"}):
        assert any("blocks are recurrent" in warning for warning in budget(model=model).warnings)
    assert not any("recurrent" in warning for warning in budget().warnings)
