"""The registry of model families: one record adds a family, an unknown one is read by the rules of its relatives."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.records import replace
from vramtop.estimator.model.architecture import Architecture, BlockRules
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.families.family import Family
from vramtop.estimator.model.families.registry import FAMILIES, GENERIC, family_of
from vramtop.estimator.model.families.task_heads import TaskHeads
from vramtop.estimator.model.parameter_roles import NamedShape, linear, norm
from vramtop.estimator.model.read_architecture import read_architecture

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
CONFIG = {
    "model_type": "pyramid",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "tie_word_embeddings": False,
}
ADAMW = {"training.precision": "bf16", "training.optimizer": "adamw-fused", "training.micro_batch": 2}


@pytest.fixture
def pyramid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers the made-up family."""
    monkeypatch.setitem(FAMILIES, "pyramid", PYRAMID)


@pytest.mark.usefixtures("pyramid")
def test_a_new_family_needs_only_one_record_in_the_registry(budget_of: Callable[..., Budget]) -> None:
    inventory = count_parameters(read_architecture(CONFIG))

    block = 4 * HIDDEN**2 + 2 * 3 * HIDDEN**2 + 3 * HIDDEN + HIDDEN + HIDDEN
    assert inventory.parameters == LAYERS * block + 2 * VOCABULARY * HIDDEN + VOCABULARY
    assert inventory.count == "exact"
    assert {group.name for group in inventory.groups if group.role == "head"} == {"lm_head.weight", "lm_head.bias"}
    step = budget_of(CONFIG, ADAMW).phase("optimizer step")
    assert step
    assert step.components.weights == 2 * inventory.parameters
    assert step.components.optimizer == pytest.approx(4 * inventory.parameters, rel=0.01)


@pytest.mark.usefixtures("pyramid")
def test_its_block_rules_and_its_heads_are_applied(budget_of, monkeypatch) -> None:
    copied = budget_of(CONFIG, ADAMW).peak.allocated_bytes
    labels = count_parameters(read_architecture(CONFIG, "token-classification"))
    monkeypatch.setitem(FAMILIES, "pyramid", replace(PYRAMID, rules=BlockRules()))

    assert budget_of(CONFIG, ADAMW).peak.allocated_bytes < copied
    assert {group.name for group in labels.groups if group.role == "other"} >= {"labels.weight", "labels.bias"}


@pytest.mark.usefixtures("pyramid")
def test_adapters_can_be_added_to_the_new_family(budget_of: Callable[..., Budget]) -> None:
    adapters: dict[str, Any] = {**ADAMW, "lora.rank": 8, "lora.targets": ["qkv_proj"]}

    assert budget_of(CONFIG, adapters).model.trainable_parameters == LAYERS * 8 * (HIDDEN + 3 * HIDDEN)


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
