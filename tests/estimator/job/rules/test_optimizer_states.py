"""The table's states are those that real steps of the libraries' classes leave behind."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from accuracy.optimizer_states import step
from model_configs import llama_config
from storage_counter import StorageCounter

from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.rules.optimizers.by_name import optimizer_by_class
from vramtop.estimator.job.rules.optimizers.optimizer import Optimizer
from vramtop.estimator.job.rules.optimizers.table import OPTIMIZERS

MEASURED = json.loads((Path(__file__).parents[3] / "accuracy" / "optimizer_states.json").read_text())
SHAPES = ((256, 512), (512, 256), (1024, 1024), (512,), (8192,))
SMALL = ((48, 96), (96, 48), (64, 64), (77,))
DTYPES = {4: torch.float32, 2: torch.bfloat16}
SHARED = 2 * 256 * 4
"""Bytes of an 8-bit optimizer's two tables, which all of its parameters share."""
OF_TORCH: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {}),
    "adamw, amsgrad": ("AdamW", {"amsgrad": True}),
    "adam, fused": ("Adam", {"fused": True}),
    "sgd": ("SGD", {}),
    "sgd, momentum": ("SGD", {"momentum": 0.9}),
    "sgd, nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "rmsprop": ("RMSprop", {}),
    "rmsprop, momentum": ("RMSprop", {"momentum": 0.9}),
    "rmsprop, centered": ("RMSprop", {"centered": True}),
    "rmsprop, all": ("RMSprop", {"momentum": 0.9, "centered": True}),
    "adagrad": ("Adagrad", {"initial_accumulator_value": 0.1}),
    "adadelta": ("Adadelta", {}),
    "adamax": ("Adamax", {}),
    "nadam": ("NAdam", {}),
    "radam": ("RAdam", {}),
    "asgd": ("ASGD", {}),
    "rprop": ("Rprop", {}),
    "adafactor": ("Adafactor", {}),
    "muon": ("Muon", {}),
}
BY_HAND = ("LBFGS", "SparseAdam")
"""Classes that need a closure or sparse gradients."""


class Matrix(msgspec.Struct, frozen=True):
    shape: tuple[int, ...]
    name: str = "model.layers.*.mlp.up_proj.weight"
    role: str = "mlp"
    linear: bool = True
    layered: bool = True


def bytes_after_steps(kind: Any, options: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """All that exists after three steps beside the parameter and its gradient."""
    parameter = torch.nn.Parameter(torch.randn(shape).to(dtype))
    parameter.grad = torch.randn(shape).to(dtype)
    counter = StorageCounter(block=1)
    counter.ignore(parameter)
    counter.ignore(parameter.grad)
    with counter:
        optimizer = kind([parameter], **options)
        for _ in range(3):
            optimizer.step()
        return counter.live


def expected(rules: Optimizer) -> list[float]:
    """By the row, of all shapes in fp32 and then in bf16."""
    return [rules.state_bytes(Matrix(shape), width) for width in DTYPES for shape in SHAPES]


@pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param(*case, marks=pytest.mark.slow) if case[0] == "Muon" else case for case in OF_TORCH.values()],
    ids=OF_TORCH,
)
def test_torch(name: str, options: dict[str, Any]) -> None:
    kind = getattr(torch.optim, name, None)
    if kind is None:
        pytest.skip(f"this torch has no {name}")
    choice = optimizer_by_class(f"torch.optim.{name}", options)
    assert choice.sentence is None
    rules = OPTIMIZERS[choice.name].with_options(choice.options)
    shapes = [shape for shape in SMALL if name != "Muon" or len(shape) > 1]
    for width, dtype in DTYPES.items():
        for shape in shapes:
            states = bytes_after_steps(kind, options, shape, dtype)
            assert states == pytest.approx(rules.state_bytes(Matrix(shape), width), abs=24)


def test_every_class_of_torch_is_known_and_stepped() -> None:
    classes = {name for name in torch.optim.__all__ if isinstance(getattr(torch.optim, name), type)} - {"Optimizer"}
    assert {name for name, _ in OF_TORCH.values()} | set(BY_HAND) >= classes
    assert all(optimizer_by_class(f"torch.optim.{name}").name != "unknown" for name in classes)


@pytest.mark.parametrize(("search", "copies"), [(None, 5), ("strong_wolfe", 9)])
def test_lbfgs_with_its_whole_history(search: str | None, copies: int) -> None:
    size, parameter, curve = 5000, torch.nn.Parameter(torch.randn(5000)), torch.linspace(0.1, 10, 5000)
    parameter.grad = torch.zeros(size)
    counter = StorageCounter(block=1)
    for each in (parameter, parameter.grad, curve):
        counter.ignore(each)

    def closure() -> torch.Tensor:
        parameter.grad.copy_((curve * parameter).detach())
        return torch.tensor(float((curve * parameter**2).sum().detach()) / 2)

    options = {"history_size": 10, "line_search_fn": search}
    with counter:
        kept = torch.optim.LBFGS([parameter], lr=0.05, tolerance_grad=0, tolerance_change=0, **options)
        for _ in range(3):
            kept.step(closure)
    choice = optimizer_by_class("torch.optim.LBFGS", options)
    rules = OPTIMIZERS[choice.name].with_options(choice.options)
    assert counter.live == pytest.approx(rules.state_bytes(Matrix((size,)), 4), rel=0.001)
    assert rules.copies == copies
    assert (counter.peak - counter.live) / (4 * size) == pytest.approx(copies, abs=0.01)
    assert len(kept.state[parameter]["old_dirs"]) == 10


def test_sparse_adam() -> None:
    table = torch.nn.Embedding(1000, 64, sparse=True)
    table(torch.arange(10)).sum().backward()
    optimizer = torch.optim.SparseAdam(table.parameters())
    optimizer.step()
    tensors = [each for each in optimizer.state[table.weight].values() if torch.is_tensor(each)]
    assert sum(each.untyped_storage().nbytes() for each in tensors) == OPTIMIZERS["sparse-adam"].state_bytes(
        Matrix((1000, 64)), 4
    )


@pytest.mark.parametrize("beta1", [None, 0.9])
def test_adafactor_of_transformers(beta1: float | None) -> None:
    from transformers.optimization import Adafactor

    options = {"beta1": beta1, "scale_parameter": False, "relative_step": False, "lr": 1e-3}
    choice = optimizer_by_class("transformers.Adafactor", options)
    rules = OPTIMIZERS[choice.name].with_options(choice.options)
    for width, dtype in DTYPES.items():
        for shape in SMALL:
            states = bytes_after_steps(Adafactor, options, shape, dtype)
            assert states == pytest.approx(rules.state_bytes(Matrix(shape), width), abs=24)


@pytest.mark.parametrize("record", MEASURED, ids=[each["class"] for each in MEASURED])
def test_recorded_steps_of_other_libraries(record: dict[str, Any]) -> None:
    rules = OPTIMIZERS[record["row"]].with_options(record["row_options"])
    for real, rule in zip(record["states"], expected(rules), strict=True):
        assert real == pytest.approx(rule, rel=0.01, abs=SHARED + 64)


COMPILED = {"torchao.optim:AdamW8bit", "torchao.optim:AdamW4bit", "torchao.optim:AdamWFp8"}
"""Their steps were recorded on a CPU without torch.compile, which they use on a GPU."""


@pytest.mark.parametrize(
    "record", [each for each in MEASURED if each["class"] not in COMPILED], ids=lambda each: each["class"]
)
def test_a_recorded_step_takes_no_more_than_its_row_says(record: dict[str, Any]) -> None:
    row = OPTIMIZERS[record["row"]]
    largest = max(range(len(SHAPES)), key=lambda index: math.prod(SHAPES[index]))
    for index, width in enumerate(DTYPES):
        real = record["step"][index * len(SHAPES) + largest] / math.prod(SHAPES[largest])
        fp32 = row.step_tensors + (row.step_casts if width < 4 else 0)
        assert real <= 4 * fp32 + width * (row.step_parameters if row.copies is None else row.copies) + 0.1


def test_the_record_is_of_real_steps() -> None:
    assert step(torch.optim.SGD, {"momentum": 0.9, "foreach": False}, (8, 8), torch.float32) == (256, 0)


@pytest.mark.parametrize("record", MEASURED, ids=[each["class"] for each in MEASURED])
def test_names_of_measured_classes_lead_to_their_rows(record: dict[str, Any]) -> None:
    choice = optimizer_by_class(record["class"], record["options"])
    assert (choice.name, choice.sentence) == (record["row"], None)


FOREACH = {
    "AdamW": {}, "SGD": {"momentum": 0.9}, "RMSprop": {}, "Adagrad": {}, "Adadelta": {}, "Adamax": {}, "NAdam": {},
    "RAdam": {}, "ASGD": {}, "Rprop": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "weight_decay"), [*((name, 0.0) for name in FOREACH), ("AdamW", 0.1), ("SGD", 0.1), ("NAdam", 0.1)]
)
def test_copies_of_a_foreach_step(name: str, weight_decay: float) -> None:
    parameters = [torch.nn.Parameter(torch.randn(64, 64)) for _ in range(40)]
    counter = StorageCounter(block=1)
    for each in parameters:
        each.grad = torch.randn(64, 64)
        counter.ignore(each)
        counter.ignore(each.grad)
    options = {**FOREACH[name], **({"weight_decay": weight_decay} if weight_decay else {})}
    with counter:
        optimizer = getattr(torch.optim, name)(parameters, foreach=True, **options)
        for _ in range(8):
            optimizer.step()
    choice = optimizer_by_class(f"torch.optim.{name}", options)
    copies = OPTIMIZERS[choice.name].with_options(choice.options).copies
    total = sum(each.numel() * 4 for each in parameters)
    assert (counter.peak - counter.live) / total == pytest.approx(copies, abs=0.06)


CONFIG = llama_config(hidden=512, mlp=1024, layers=8, heads=8, vocab=64000, tie_word_embeddings=False)


def backward_of(optimizer: str) -> int:
    training = {
        "framework": "torchtune",
        "precision": "bf16",
        "optimizer": optimizer,
        "optimizer_in_backward": True,
        "sequence_length": 64,
    }
    budget = estimate(job_from_mapping({"model": {"config": CONFIG}, "training": training}, where="test"))
    backward = budget.phase("backward")
    return backward.allocated_bytes - backward.components.optimizer


def test_a_step_within_the_backward_pass_meets_the_activations() -> None:
    head = CONFIG["vocab_size"] * CONFIG["hidden_size"]
    plain, torchao = backward_of("sgd"), backward_of("adamw-8bit-torchao")
    assert torchao - plain > head  # more than a byte an element of the largest parameter, which steps first
