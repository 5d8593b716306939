import fnmatch

import pytest

from vramtop.estimator.job.trainable import check_patterns, trainable_rules

HEAD, LAYER, TENTH = "lm_head.weight", "model.layers.1.mlp.up_proj.weight", "model.layers.10.mlp.up_proj.weight"
NORM, BIAS = "model.norm.weight", "model.layers.1.self_attn.q_proj.bias"


@pytest.mark.parametrize(
    ("patterns", "trained"),
    [
        (["lm_head"], {HEAD}),
        (["model.layers.1"], {LAYER, BIAS}),
        (["layers.1.mlp"], {LAYER}),
        (["mlp"], {LAYER, TENTH}),
        (["up"], set()),
        (["*bias"], {BIAS}),
        (["*.layers.1?.*"], {TENTH}),
        (["*.[01].*"], {LAYER, BIAS}),
        (["model.norm.weight"], {NORM}),
        (["!mlp"], {HEAD, NORM, BIAS}),
        (["!model", "model.norm"], {HEAD, NORM}),
        (["model", "!layers.1"], {TENTH, NORM}),
        (["!*"], set()),
        (["*"], {HEAD, LAYER, TENTH, NORM, BIAS}),
    ],
)
def test_the_last_pattern_that_matches_decides(patterns: list[str], trained: set[str]) -> None:
    rules = trainable_rules(patterns)
    assert {name for name in (HEAD, LAYER, TENTH, NORM, BIAS) if rules.trains(name)} == trained


def test_with_adapters_everything_else_starts_frozen() -> None:
    assert not trainable_rules(["!mlp"], adapters=True).trains(HEAD)
    assert trainable_rules(["lm_head"], adapters=True).trains(HEAD)


@pytest.mark.parametrize(
    "glob", ["*", "*bias", "model.*", "*.1.*", "m?del.*.weight", "*[!0-9].mlp*", "*a*b*c", "[]x]*"]
)
def test_globs_match_what_fnmatch_matches(glob: str) -> None:
    rules = trainable_rules([glob])
    for name in (HEAD, LAYER, TENTH, NORM, BIAS, "abc", "aXbYc", "acb", "]", "x"):
        assert rules.trains(name) == fnmatch.fnmatchcase(name, glob), name


def test_a_glob_of_many_stars_is_matched_at_once() -> None:
    assert not trainable_rules(["*a" * 60 + "b"]).trains("a" * 300)  # the same by backtracking would never end


@pytest.mark.parametrize("patterns", [[], [""], ["!"], ["."], ["a b"], ["a\n"], ["x" * 501], ["[z-a]*"]])
def test_a_pattern_that_matches_no_name_is_an_error(patterns: list[str]) -> None:
    with pytest.raises(ValueError, match="trainable"):
        check_patterns(patterns)
