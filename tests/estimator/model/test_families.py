"""The registry of model families: one record adds a family, an unknown one is read by the rules of its relatives."""

import pytest

from vramtop.estimator.common.records import replace
from vramtop.estimator.model.architecture import BlockRules
from vramtop.estimator.model.families.family import Family
from vramtop.estimator.model.families.registry import FAMILIES, GENERIC, family_of


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("brandnew", GENERIC),
        (None, GENERIC),
        ("qwen9", replace(GENERIC, window_off_by_default=True)),
        ("gemma9_text", replace(GENERIC, rules=BlockRules(fp32_norm_scale=True))),
        ("glm4_moe", replace(GENERIC, expert_names=("gate_proj", "up_proj", "down_proj"))),
        ("bert", FAMILIES["bert"]),
    ],
)
def test_an_unknown_family_has_the_rules_of_its_relatives(model_type: str | None, expected: Family) -> None:
    assert family_of(model_type) == expected
