"""Names of optimizers in scripts and in the Trainer's settings lead to rows, options and doubts."""

from typing import Any

import pytest

from vramtop.estimator.job.rules.optimizers.by_name import NOT_KNOWN, optimizer_by_class, optimizer_by_trainer_name
from vramtop.estimator.job.rules.optimizers.table import OPTIMIZERS


@pytest.mark.parametrize(
    ("name", "arguments", "row", "options"),
    [
        ("sgd", "momentum=0.9, nesterov=True", "sgd-momentum", {}),
        ("sgd", "momentum=0", "sgd", {}),
        ("rmsprop", "momentum=0.9,centered=true", "rmsprop", {"momentum": True, "centered": True}),
        ("galore_adamw", "rank=64, update_proj_gap=100, scale=0.10", "galore-adamw", {"rank": 64}),
        ("apollo_adamw", {"rank": 1, "scale_type": "tensor"}, "apollo-adamw", {"rank": 1}),
        ("OptimizerNames.LION_8BIT", None, "lion-8bit", {}),
        ("adamw_torch_8bit", None, "adamw-8bit-torchao", {}),
        ("adamw_bnb_8bit", None, "adamw-8bit", {}),
        ("adamw_apex_fused", None, "adamw-apex", {}),
    ],
)
def test_the_trainers_arguments_decide(name: str, arguments: Any, row: str, options: dict[str, Any]) -> None:
    choice = optimizer_by_trainer_name(name, arguments)
    assert (choice.name, dict(choice.options), choice.sentence) == (row, options, None)


@pytest.mark.parametrize(
    ("name", "options", "row", "kept"),
    [
        ("AdamW", {}, "adamw", {}),
        ("torch.optim.AdamW", {"fused": True}, "adamw-fused", {}),
        ("optim.Adam", {"amsgrad": True}, "adamw", {"amsgrad": True}),
        ("torch.optim.AdamW", {"fused": True, "amsgrad": True}, "adamw-fused", {"amsgrad": True}),
        ("torch.optim.AdamW", {"foreach": False}, "adamw", {"foreach": False}),
        ("torch.optim.SGD", {"momentum": 0.9, "weight_decay": 1e-4}, "sgd-momentum", {"weight_decay": True}),
        ("SGD", {"lr": 0.1}, "sgd", {}),
        ("torch.optim.RMSprop", {"centered": True}, "rmsprop", {"centered": True}),
        ("torch.optim.LBFGS", {"history_size": 10}, "lbfgs", {"history_size": 10}),
        ("bnb.optim.AdamW8bit", {}, "adamw-8bit", {}),
        ("bnb.optim.AdamW", {"optim_bits": 8}, "adamw-8bit", {}),
        ("bnb.optim.AdamW", {"optim_bits": 8, "is_paged": True}, "paged-adamw-8bit", {}),
        ("bitsandbytes.optim.Adam", {}, "adamw-32bit", {}),
        ("transformers.Adafactor", {"beta1": 0.9}, "adafactor", {"beta1": True}),
        ("transformers.optimization.Adafactor", {"beta1": None}, "adafactor", {}),
        ("torch.optim.Adafactor", {}, "adafactor-torch", {}),
        ("torchao.optim.AdamW8bit", {}, "adamw-8bit-torchao", {}),
        ("apex.optimizers.FusedAdam", {"master_weights": True}, "adamw-apex", {"master_weights": True}),
        ("deepspeed.ops.adam.FusedAdam", {}, "adamw-fused", {}),
        ("galore_torch.GaLoreAdamW", {"rank": 32}, "galore-adamw", {"rank": 32}),
        ("pytorch_optimizer.SOAP", {"max_precondition_dim": 500}, "soap", {"max_precond_dim": 500}),
        ("adan_pytorch.Adan", {"weight_decay": 0.02}, "adan", {}),
    ],
)
def test_classes(name: str, options: dict[str, Any], row: str, kept: dict[str, Any]) -> None:
    choice = optimizer_by_class(name, options)
    assert (choice.name, dict(choice.options), choice.sentence) == (row, kept, None)
    assert choice.known


@pytest.mark.parametrize(
    ("name", "options", "row", "direction", "words"),
    [
        ("torch.optim.SGD", {"momentum": NOT_KNOWN}, "sgd-momentum", "less", "momentum"),
        ("bnb.optim.AdamW", {"optim_bits": NOT_KNOWN}, "adamw-32bit", "less", "optim_bits"),
        ("torch.optim.AdamW", {"amsgrad": NOT_KNOWN}, "adamw", "either", "amsgrad"),
        ("galore_torch.GaLoreAdamW", {"rank": NOT_KNOWN}, "galore-adamw", "either", "128 is counted"),
        ("some_fork.SOAP", {}, "soap", "either", "counted like pytorch_optimizer's"),
    ],
)
def test_what_is_uncertain_is_said(name: str, options: dict[str, Any], row: str, direction: str, words: str) -> None:
    choice = optimizer_by_class(name, options)
    assert (choice.name, choice.direction) == (row, direction)
    assert words in (choice.sentence or "")


@pytest.mark.parametrize("name", ["MyOptimizer", "mine.Adam", "train.SGD", "", "mine.optim.AdamW"])
def test_what_is_not_known_is_unknown_and_never_adamw(name: str) -> None:
    """A class of the script's own may have the name of torch's."""
    choice = optimizer_by_class(name)
    assert choice.name == "unknown"
    assert choice.sentence
    assert not choice.known


def test_a_class_of_a_listed_library_without_a_row_can_be_stepped() -> None:
    choice = optimizer_by_class("heavyball.ForeachPSGDKron", {"lr": 0.1, "delayed": True, "model": object()})
    assert (choice.name, dict(choice.options)) == ("heavyball:ForeachPSGDKron", {"lr": 0.1, "delayed": True})
    assert not choice.known
    assert "not known" in (choice.sentence or "")


def test_the_row_of_the_unknown_has_a_wide_range() -> None:
    row = OPTIMIZERS["unknown"]
    assert row.low == ()
    assert row.high is not None
