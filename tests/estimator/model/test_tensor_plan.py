"""Tensor-parallel plans of the user's, counted by the parameters that they split."""

import pytest

from vramtop.estimator.model.tensor_plans import splits

MLP = {"model.layers.*.mlp.gate_proj": "colwise", "model.layers.*.mlp.up_proj": "colwise"}


@pytest.mark.parametrize(
    ("pattern", "style", "parameter", "expected"),
    [
        ("model.layers.*.mlp.up_proj", "colwise", "model.layers.*.mlp.up_proj.weight", True),
        ("model.layers.*.mlp.*_proj", "colwise", "model.layers.*.mlp.up_proj.weight", True),
        ("model.layers.0.mlp.up_proj", "colwise", "model.layers.*.mlp.up_proj.weight", True),
        ("model.layers.*.mlp", "colwise", "model.layers.*.mlp.up_proj.weight", False),
        ("model.layers.*.mlp.up_proj", "sequence_parallel", "model.layers.*.mlp.up_proj.weight", False),
        ("h.*.c_proj", "rowwise", "h.*.c_proj.bias", False),
        ("h.*.c_fc", "colwise", "h.*.c_fc.bias", True),
        ("layers.*.experts.gate_up_proj", "packed_colwise", "layers.*.experts.gate_up_proj", True),
    ],
)
def test_what_a_pattern_splits(pattern: str, style: str, parameter: str, *, expected: bool) -> None:
    assert splits(((pattern, style),), parameter) == expected


def test_the_closed_form_counts_by_the_plan(llama_budget) -> None:
    plan = {**MLP, "model.layers.*.mlp.down_proj": "rowwise"}
    budget = llama_budget({"training.precision": "bf16", "parallel.tensor": 4, "parallel.tensor_plan": plan})
    hidden, mlp, layers, vocabulary = 512, 1408, 4, 2000
    split = 3 * hidden * mlp * layers
    attention = 2 * hidden * hidden + 2 * hidden * hidden // 2
    whole = 2 * vocabulary * hidden + layers * (attention + 2 * hidden) + hidden
    assert budget.peak.components.weights == 2 * (whole + split // 4)
    assert any("self_attn.q_proj" in warning for warning in budget.warnings)


def test_a_plan_that_cannot_be_read_widens_the_range(llama_budget) -> None:
    common = {"training.precision": "bf16", "parallel.tensor": 4}
    default, unread = llama_budget(common), llama_budget(common | {"parallel.tensor_plan": "a.b:c"})
    whole = llama_budget(common | {"parallel.tensor": 1})
    assert unread.peak.components == default.peak.components
    assert (
        unread.peak.high_bytes > whole.peak.components.weights * 4 + default.peak.high_bytes - default.peak.device_bytes
    )
    assert any("a.b:c cannot be read" in warning for warning in unread.warnings)
