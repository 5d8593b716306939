"""Tensor-parallel plans of the user's: read from files without running them, counted by the parameters they split."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.budget import Budget
from vramtop.estimator.model.placement import read_plan_file, splits, style_of_class

BudgetOf = Callable[..., Budget]
TEXT = '''
import torch
raise_if_run = open("/nowhere/that/exists")
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.distributed.tensor import Replicate

COLUMNS = ColwiseParallel()
MLP: dict = {"model.layers.*.mlp.gate_proj": COLUMNS, "model.layers.*.mlp.up_proj": COLUMNS}
BOTH = MLP | {"model.layers.*.mlp.down_proj": RowwiseParallel()}
HEAD = {**MLP, "lm_head": ColwiseParallel(output_layouts=Replicate())}
CHANGED = {}
CHANGED = {"lm_head": "colwise"}
UNKNOWN = {"lm_head": MyStyle()}
LOOP = dict(LOOP)
ENDLESS = ENDLESS


def updated(model=None):
    """A plan."""
    from somewhere import thing

    plan = {}
    plan.update(MLP)
    plan["lm_head"] = "colwise_rep"
    return plan


def branched(sequence_parallel=False):
    plan = {**MLP}
    if sequence_parallel:
        plan["model.norm"] = "sequence_parallel"
    return plan
'''
MLP = {"model.layers.*.mlp.gate_proj": "colwise", "model.layers.*.mlp.up_proj": "colwise"}


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("plans:MLP", MLP),
        ("plans.MLP", MLP),
        ("plans.BOTH", {**MLP, "model.layers.*.mlp.down_proj": "rowwise"}),
        ("plans.HEAD", {**MLP, "lm_head": "colwise_rep"}),
        ("plans.updated", {**MLP, "lm_head": "colwise_rep"}),
        *((f"plans.{name}", None) for name in ("CHANGED", "UNKNOWN", "LOOP", "ENDLESS", "branched", "missing")),
        ("elsewhere.MLP", None),
    ],
)
def test_a_plan_in_a_file_is_read_without_running_it(tmp_path: Path, name: str, plan: dict[str, str] | None) -> None:
    (tmp_path / "plans.py").write_text(TEXT)
    assert read_plan_file(name, tmp_path) == plan


def test_a_plan_in_a_package(tmp_path: Path) -> None:
    (tmp_path / "own" / "parallel").mkdir(parents=True)
    (tmp_path / "own" / "parallel" / "__init__.py").write_text(TEXT)
    assert read_plan_file("own.parallel.MLP", tmp_path) == MLP
    assert read_plan_file("own.parallel:MLP", tmp_path) == MLP


def test_hostile_files_are_no_plans(tmp_path: Path) -> None:
    deep = "P = " + "{'a': " * 3000 + "1" + "}" * 3000
    for number, text in enumerate(
        ("P = (", "\0", deep, "P = {**P}", "P = {1: 'colwise'}", "P = " + "-" * 100_000 + "1")
    ):
        (tmp_path / f"hostile{number}.py").write_text(text)
        assert read_plan_file(f"hostile{number}.P", tmp_path) is None
    (tmp_path / "folder.py").mkdir()
    assert read_plan_file("folder.P", tmp_path) is None


def test_styles_of_classes() -> None:
    assert style_of_class("torch.distributed.tensor.parallel.RowwiseParallel", whole_input=True) == "rowwise_rep"
    assert style_of_class("Own") is None


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


def test_the_closed_form_counts_by_the_plan(budget_of: BudgetOf, tiny_llama: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "plans.py").write_text(TEXT)
    common = {"training.precision": "bf16", "parallel.tensor": 4, "model.code_folder": str(tmp_path)}
    by_file = budget_of(tiny_llama, common | {"parallel.tensor_plan": "plans.BOTH"})
    hidden, mlp, layers, vocabulary = 512, 1408, 4, 2000
    split = 3 * hidden * mlp * layers
    attention = 2 * hidden * hidden + 2 * hidden * hidden // 2
    whole = 2 * vocabulary * hidden + layers * (attention + 2 * hidden) + hidden
    assert by_file.peak.components.weights == 2 * (whole + split // 4)
    table = budget_of(tiny_llama, common | {"parallel.tensor_plan": {**MLP, "model.layers.*.mlp.down_proj": "rowwise"}})
    assert table.peak.components == by_file.peak.components
    assert any("self_attn.q_proj" in warning for warning in by_file.warnings)


def test_a_plan_that_cannot_be_read_widens_the_range(budget_of: BudgetOf, tiny_llama: dict[str, Any]) -> None:
    common = {"training.precision": "bf16", "parallel.tensor": 4}
    default, unread = budget_of(tiny_llama, common), budget_of(tiny_llama, common | {"parallel.tensor_plan": "a.b:c"})
    whole = budget_of(tiny_llama, common | {"parallel.tensor": 1})
    assert unread.peak.components == default.peak.components
    assert (
        unread.peak.high_bytes > whole.peak.components.weights * 4 + default.peak.high_bytes - default.peak.device_bytes
    )
    assert any("a.b:c cannot be read" in warning for warning in unread.warnings)
