"""The registry of model families: one record adds a family, an unknown one is read by the rules of its relatives."""

from collections.abc import Iterator

import pytest

from vramtop.estimator.common.records import replace
from vramtop.estimator.model.architecture import Architecture, BlockRules
from vramtop.estimator.model.families.family import Family
from vramtop.estimator.model.families.registry import FAMILIES, GENERIC, family_of
from vramtop.estimator.model.families.task_heads import TaskHeads
from vramtop.estimator.model.parameter_roles import NamedShape, linear, norm

LAYERS, HIDDEN, VOCABULARY = 4, 512, 2000


def pyramid_body(arch: Architecture, family: Family, prefix: str) -> Iterator[NamedShape]:
    """Yield a made-up block: one fused projection, one output projection, an MLP of two layers, one norm."""
    block = f"{prefix}stones.*."
    yield NamedShape(f"{prefix}tokens.weight", (arch.vocab, arch.hidden), 1, "embedding")
    yield from linear(f"{block}attn.qkv_proj", 3 * arch.hidden, arch.hidden, arch.layers)
    yield from linear(f"{block}attn.o_proj", arch.hidden, arch.hidden, arch.layers)
    yield from linear(f"{block}mlp.fc1", arch.mlp_size, arch.hidden, arch.layers, bias=arch.mlp_bias)
    yield from linear(f"{block}mlp.fc2", arch.hidden, arch.mlp_size, arch.layers, bias=arch.mlp_bias)
    for name in family.block_norms:
        yield from norm(block + name, arch.hidden, arch.layers)


PYRAMID = Family(
    body=pyramid_body,
    prefix="pyramid",
    tasks=("causal-lm", "token-classification"),
    heads=TaskHeads(lm_head_bias=True, tokens_classifier="labels"),
    rules=BlockRules(copies_attention_output=True),
    block_norms=("norm",),
    gated=False,
    activation="gelu",
    mlp_bias=True,
    mlp_ratio=3,
    experts=False,
)


@pytest.fixture
def pyramid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers the made-up family."""
    monkeypatch.setitem(FAMILIES, "pyramid", PYRAMID)


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
