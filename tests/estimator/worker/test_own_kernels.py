"""Libraries' own kernels in real steps on a GPU: which are asked for, and what is said where they are missing."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramtop.estimator.job.job_file.changes import job_from_mapping  # noqa: E402
from vramtop.estimator.model.find_config import resolve_model  # noqa: E402
from vramtop.estimator.trace.traced_step import trace_request  # noqa: E402
from vramtop.estimator.worker.measure import real_steps  # noqa: E402
from vramtop.estimator.worker.request.protocol import RefusedError  # noqa: E402
from vramtop.estimator.worker.request.request import read_request  # noqa: E402


def request_of(device: str = "cuda", **training: Any) -> Any:
    job = job_from_mapping({"model": {"id": "meta-llama/Llama-3.2-1B"}, "training": training}, where="the test")
    return read_request({**trace_request(job, resolve_model(job.model)), "device": device})


class Library(ModuleType):
    """A library that notes what it is asked for."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(name)
        self.asked: list[Any] = []
        monkeypatch.setitem(sys.modules, name, self)


def test_liger_patches_the_parts_and_the_loss_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    liger: Any = Library("liger_kernel.transformers", monkeypatch)
    liger._apply_liger_kernel_to_instance = lambda **options: liger.asked.append(options)
    request = request_of(loss="fused-linear", fused_kernels=["norm", "rope"])
    assert real_steps.uses_liger(request)
    real_steps.apply_liger("the model", request)
    [asked] = liger.asked
    assert asked.pop("model") == "the model"
    assert {name for name, wanted in asked.items() if wanted} == {
        *("rms_norm", "layer_norm", "rope", "fused_linear_cross_entropy")
    }
    assert {"swiglu", "geglu", "cross_entropy"} <= asked.keys()
    plain = real_steps.without_stand_ins(request)
    assert (plain.loop.fused, plain.training.loss) == ((), "full")
    assert not real_steps.uses_liger(plain)


@pytest.mark.parametrize(
    ("optimizer", "named", "embeddings"),
    [("adamw-8bit", "bitsandbytes.optim:AdamW8bit", True), ("lion-32bit", "bitsandbytes.optim:Lion", False)],
)
def test_bitsandbytes_own_optimizer_steps_on_a_gpu(
    optimizer: str, named: str, embeddings: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bitsandbytes: Any = Library("bitsandbytes", monkeypatch)
    manager = SimpleNamespace(register_module_override=lambda *asked: bitsandbytes.asked.append(asked))
    bitsandbytes.optim = SimpleNamespace(GlobalOptimManager=SimpleNamespace(get_instance=lambda: manager))
    embedding = torch.nn.Embedding(4, 4)
    model = torch.nn.Sequential(embedding, torch.nn.Linear(4, 4))
    request = real_steps.with_own_kernels(request_of(optimizer=optimizer), model)
    assert (request.optimizer.path, request.optimizer.options) == (named, {})
    assert bitsandbytes.asked == ([(embedding, "weight", {"optim_bits": 32})] if embeddings else [])
    on_cpu = request_of("cpu", optimizer=optimizer)
    assert real_steps.with_own_kernels(on_cpu, model).optimizer == on_cpu.optimizer  # its stand-in


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bitsandbytes", "liger_kernel.transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RefusedError, match="this optimizer needs bitsandbytes, which cannot be imported here: "):
        real_steps.with_own_kernels(request_of(optimizer="adamw-8bit"), torch.nn.Linear(1, 1))
    with pytest.raises(RefusedError, match="fused kernels need liger-kernel, which cannot be imported here: "):
        real_steps.apply_liger("the model", request_of(loss="fused-linear"))
