"""Optimizer classes that a job names are stepped in the worker, and their states counted."""

import sys
from pathlib import Path

import pytest
from slow_cases import quick_every

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.load_and_save import load_job
from vramtop.estimator.job.settings import ModelSpec, Training
from vramtop.estimator.model.architecture import Inventory, ParameterGroup
from vramtop.estimator.trace.exact_optimizer import CountedOptimizer, exact_optimizer

OWN = """
import torch


class Keeper(torch.optim.Optimizer):
    def __init__(self, params, lr, copies=3):
        super().__init__(params, {"lr": lr})
        self.copies = copies

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if "kept" not in self.state[p]:
                    self.state[p]["kept"] = [torch.zeros_like(p, dtype=torch.float32) for _ in range(self.copies)]
                LOOKS
                p.add_(self.state[p]["kept"][0].to(p.dtype), alpha=-group["lr"])
"""


def group(name: str, *shape: int) -> ParameterGroup:
    return ParameterGroup(name=name, shape=shape, repeat=1, role="mlp", linear=len(shape) > 1, layered=True)


GROUPS = (group("model.layers.*.up.weight", 96, 64), group("model.layers.*.down.weight", 64, 320), group("b", 64))
INVENTORY = Inventory(groups=GROUPS, layers=1, tied_head=False, count="exact", source="test")


def counted(optimizer: str, tmp_path: Path, *, precision: str = "bf16", **options: object) -> CountedOptimizer:
    training = Training(precision=precision, optimizer=optimizer, optimizer_options=options)
    job = Job(model=ModelSpec(code_folder=str(tmp_path)), training=training)
    found = exact_optimizer(job, INVENTORY, python=sys.executable, environ={}, cache=tmp_path / "cache")
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("looks", "how"),
    quick_every(2, [("", "fake tensors"), ("if p.grad.norm().item() > 1e9: return", "scaled to the model's")], start=1),
)
def test_a_class_of_the_users_own(tmp_path: Path, looks: str, how: str) -> None:
    """One that looks at values cannot be stepped on fake tensors, and is on small real ones."""
    (tmp_path / "mine.py").write_text(OWN.replace("LOOKS", looks))
    found = counted("mine:Keeper", tmp_path, copies=5)
    for each in GROUPS:
        assert found.rules.state_bytes(each, 2) == pytest.approx(5 * 4 * each.elements, rel=0.001)
    assert how in found.assumption


@pytest.mark.parametrize(("precision", "width"), [("bf16", 2), pytest.param("fp32", 4, marks=pytest.mark.slow)])
def test_a_class_of_a_library(tmp_path: Path, precision: str, width: int) -> None:
    found = counted("torch.optim:Adagrad", tmp_path, precision=precision)
    assert [found.rules.state_bytes(each, width) for each in GROUPS] == pytest.approx(
        [width * each.elements for each in GROUPS], abs=8
    )
    assert "torch" in found.assumption


@pytest.mark.slow
def test_a_class_for_matrices_leaves_vectors_to_adamw(tmp_path: Path) -> None:
    found = counted("torch.optim:Muon", tmp_path)
    matrix, _, vector = GROUPS
    assert found.rules.state_bytes(matrix, 2) == pytest.approx(2 * matrix.elements, rel=0.001)
    assert found.rules.state_bytes(vector, 2) == 2 * 2 * vector.elements
    assert "AdamW" in found.assumption


@pytest.mark.slow
def test_what_cannot_be_stepped_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Keeper:\n    def __init__(self, params, schedule):\n        pass\n")
    for path, words in {
        "mine:Keeper": "needs the argument schedule",
        "mine:Absent": "no attribute",
        "torch.optim:Absent": "cannot be imported",
        "galore_torch:GaLoreAdamW": "cannot be imported",
    }.items():
        with pytest.raises(CannotTellError, match=words):
            counted(path, tmp_path)


def test_a_module_beside_the_job_never_stands_in_for_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "galore_torch.py").write_text("open('ran', 'w')\n" + OWN.replace("LOOKS", ""))
    file = tmp_path / "job.toml"
    file.write_text('[model]\nid = "gpt2"\n[training]\noptimizer = "galore_torch:Keeper"\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CannotTellError, match="cannot be imported"):
        exact_optimizer(load_job(file), INVENTORY, python=sys.executable, environ={}, cache=tmp_path / "cache")
    assert not (tmp_path / "ran").exists()


def test_the_formula_has_a_range_for_a_class() -> None:
    known, unknown = (
        estimate(Job(model=ModelSpec(id="gpt2"), training=Training(optimizer=name)))
        for name in ("adamw", "mine:Keeper")
    )
    states = known.peak.components.optimizer
    assert unknown.peak.high_bytes - unknown.peak.low_bytes > 2 * states
    assert any("mine:Keeper is not known" in each for each in unknown.warnings)
