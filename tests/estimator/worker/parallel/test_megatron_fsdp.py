"""Megatron-FSDP traced, compared with megatron-fsdp itself: every allocation and release of two training steps.

``real_megatron_fsdp.json`` holds those of megatron-fsdp 0.6.1 (0.5.0 has the same), 0.4.0 and 0.2.3 under torch 2.13,
made by ``real_megatron_fsdp.py``.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from real_megatron_fsdp import CASES, RANKS, allocations, dtype_of, model_of, real_allocations, two_steps
from torch._subclasses.fake_tensor import FakeTensorMode

from vramtop.estimator.worker.memory.tracker import StorageTracker
from vramtop.estimator.worker.parallel.megatron_fsdp import MegatronModel, MegatronSettings

RECORDED: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("real_megatron_fsdp.json").read_text())


def traced_allocations(case: dict[str, Any], version: tuple[int, ...] = (0, 6)) -> list[str]:
    settings = MegatronSettings(
        stage=case.get("stage", 3),
        ranks=RANKS,
        unit=case.get("unit"),
        main_weights=case.get("main", False),
        main_gradients=dtype_of(case, "gradients"),
        communicated=dtype_of(case, "reduced"),
        doubles=case.get("double", False),
        frees_outside=version < (0, 5),
        lazy_states=version < (0, 4),
        whole_modules=version < (0, 3),
    )
    request: Any = SimpleNamespace(parallel=SimpleNamespace(fsdp_units=None, fsdp_wrap_classes=None))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = model_of(case)
        sharded, tracker = MegatronModel(model, request, settings), StorageTracker()
        with tracker, tracker.tracking_resize():
            tracker.begin_phase(0, "loading")
            tracker.label(sharded.parameters(), "weights")
            trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
            engine = sharded.make_engine(trained, Adam, tracker)
            two_steps(model, case, tracker, engine.scale, engine.step)
        return allocations(tracker.history)


class Adam:
    """torch's AdamW over named tensors."""

    def __init__(self, named: list[tuple[str, Any]]) -> None:
        self._optimizer = torch.optim.AdamW([tensor for _, tensor in named], foreach=True)

    def step(self) -> None:
        self._optimizer.step()


QUICK = ("small unit", "tied, main weights", "gradients reduced in fp32", "odd sizes")
ALL = [
    pytest.param(version, name, marks=() if version == "0.6.1" and name in QUICK else pytest.mark.slow)
    for version, recorded in RECORDED.items()
    for name in recorded
]


@pytest.mark.parametrize(("version", "name"), ALL)
def test_every_allocation_is_that_of_megatron_fsdp(version: str, name: str) -> None:
    numbers = tuple(int(part) for part in version.split("."))
    assert traced_allocations(CASES[name], numbers) == RECORDED[version][name].split()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_recorded_allocations_are_those_of_the_installed_package(name: str) -> None:
    package = pytest.importorskip("megatron_fsdp", reason="not installed (pip install --no-deps megatron-fsdp)")
    recorded = RECORDED.get(package.__version__, {})
    if name not in recorded:
        pytest.skip(f"nothing is recorded of megatron-fsdp {package.__version__}")
    assert " ".join(real_allocations(CASES[name])) == recorded[name]
