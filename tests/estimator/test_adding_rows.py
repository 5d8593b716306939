"""A new optimizer, framework, strategy or GPU is one table row: everything else follows from it."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from vramtop.estimator.common.sizes import MIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.formula.checkpoint_saving import checkpoint_bytes
from vramtop.estimator.job import gpu_catalogue
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.rules.frameworks import FRAMEWORKS, Framework
from vramtop.estimator.job.rules.optimizers.optimizer import Full, Optimizer
from vramtop.estimator.job.rules.optimizers.table import OPTIMIZERS
from vramtop.estimator.job.rules.strategies import STRATEGIES, Strategy
from vramtop.estimator.job.settings import ModelSpec, Parallel, Target, Training

GPT2 = ModelSpec(id="gpt2")
PARAMETERS = 124_439_808
ROW = """
[[gpu]]
name = "made-up-48gb"
label = "Made-up 48 GB"
architecture = "hopper"
compute = "{compute}"
total_mib = 49152
nvml = ["ACME Made-up"]
"""


@pytest.fixture(autouse=True)
def _names_without_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the check of names: its types are made of the tables at import, before a test adds its row."""
    monkeypatch.setattr("vramtop.estimator.estimation.check_job", lambda job: None)


def test_an_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three states per element, in the weights' dtype."""
    monkeypatch.setitem(OPTIMIZERS, "triple", Optimizer(name="triple", description="Triple", states=(Full(count=3),)))
    budget = estimate(Job(model=GPT2, training=Training(precision="bf16", optimizer="triple")))
    assert budget.peak.components.optimizer == 3 * 2 * PARAMETERS
    assert checkpoint_bytes(budget) == (1 + 3) * 2 * PARAMETERS


def test_a_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Framework(name="mine", libraries=("torch", "mine"), low_precision_weights=True, gradient_buffer=True)
    monkeypatch.setitem(FRAMEWORKS, "mine", row)
    budget = estimate(Job(model=GPT2, training=Training(framework="mine", precision="bf16-mixed")))
    forward = budget.phase("forward")
    assert forward.components.gradients == 4 * PARAMETERS  # fp32, and allocated throughout
    assert budget.peak.components.weights == 2 * PARAMETERS


def test_a_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "mine", Strategy(name="mine", zero_stage=1))
    parallel = Parallel(strategy="mine", data_shard=4)
    budget = estimate(Job(model=GPT2, training=Training(precision="fp32"), parallel=parallel))
    assert budget.peak.components.weights == 4 * PARAMETERS
    assert budget.peak.components.optimizer == 8 * PARAMETERS // 4


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A copy of the catalogue's file that tests may extend; the catalogue is read again before and after."""
    file = tmp_path / "gpu_catalogue.toml"
    file.write_bytes(gpu_catalogue._CATALOGUE_FILE.read_bytes())
    cached = (gpu_catalogue._file, gpu_catalogue._index)
    monkeypatch.setattr(gpu_catalogue, "_CATALOGUE_FILE", file)
    for function in cached:
        function.cache_clear()
    yield file
    for function in cached:
        function.cache_clear()


def test_a_gpu(catalogue: Path) -> None:
    catalogue.write_text(catalogue.read_text() + ROW.format(compute="9.0"))
    assert find_gpu("Made-up 48GB").total_bytes == 49152 * MIB
    job = Job(model=GPT2, target=Target(gpu="made-up-48gb"))
    hopper = estimate(msgspec.structs.replace(job, target=Target(gpu="h100-80gb")))
    assert estimate(job).peak == hopper.peak


def test_a_gpu_of_a_new_generation(catalogue: Path) -> None:
    generation = "\n[[generation]]\nmajor = 13\ncontext_mib = 900\neager_context_mib = 1900\n"
    generation += "cublas_workspace_kib = 32768\nengine_workspace_mib = 32\n"
    catalogue.write_text(catalogue.read_text() + ROW.format(compute="13.0") + generation)
    loading = estimate(Job(model=GPT2, target=Target(gpu="made-up-48gb"))).phase("loading")
    assert loading.components.context == 900 * MIB


def test_a_gpu_newer_than_all_generations_counts_as_the_last(catalogue: Path) -> None:
    catalogue.write_text(catalogue.read_text() + ROW.format(compute="99.0"))
    job = Job(model=GPT2, target=Target(gpu="made-up-48gb"))
    assert estimate(job).peak == estimate(msgspec.structs.replace(job, target=Target(gpu="rtx-5090"))).peak
