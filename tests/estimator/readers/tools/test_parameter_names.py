"""Regular expressions of parameter names as globs: they match the names that the expression matches."""

import fnmatch
import re

import pytest

from vramtop.estimator.readers.tools.shared.trained_names import globs_of_regex

NAMES = [
    "model.embed_tokens.weight",
    *(
        f"model.layers.{layer}.{part}.weight"
        for layer in (0, 2, 12, 26, 27)
        for part in ("mlp.up_proj", "self_attn.q_proj")
    ),
    "model.norm.weight",
    "lm_head.weight",
    "model.visual.blocks.2.attn.qkv.bias",
]


@pytest.mark.parametrize(
    "regex",
    [
        "lm_head",
        "^lm_head.weight$",
        r"layers\.2[67]\.",
        r"model\.layers\.(2|12)\.mlp",
        r"layers\.\d+\.self_attn",
        r".*norm.*|lm_head\.weight$",
        r"(?:embed|lm).*weight",
        r"bias$",
        r"q_proj|k_proj",
        r"model\.layers\.[0-9]+\.mlp\.[a-z_]+\.weight",
    ],
)
@pytest.mark.parametrize("from_start", [True, False])
def test_globs_match_the_same_names(regex: str, from_start: bool) -> None:
    globs = globs_of_regex(regex, from_start=from_start)
    assert globs is not None
    match = re.match if from_start else re.search
    assert [name for name in NAMES if any(fnmatch.fnmatchcase(name, glob) for glob in globs)] == [
        name for name in NAMES if match(regex, name)
    ]


@pytest.mark.parametrize(
    "regex",
    [
        r"(?!lm_head)",
        r"(a)\1",
        r"(a",
        "a)",
        "*",
        "a{3,9",
        "ab\\b",
        "(a|b)" * 9,
        "x" * 501,
        "a^b",
        "[a-z",
        "[0-9]{2}",
        r"layers\.2.?\.mlp",
        "(a+)+$",
    ],
)
def test_what_few_globs_cannot_say(regex: str) -> None:
    assert globs_of_regex(regex, from_start=False) is None


def test_literal_dots() -> None:
    """axolotl reads a dot as a dot: ``.*`` are dots there, and the name goes on after the match."""
    assert globs_of_regex("model.layers.2[6-7].*", from_start=True, dots_are_literal=True) == ["model.layers.2[6-7]*"]
    assert globs_of_regex("^lm_head.weight$", from_start=True, dots_are_literal=True) == ["lm_head.weight"]
    assert globs_of_regex(r"a\.b", from_start=True, dots_are_literal=True) is None
