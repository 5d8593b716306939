"""What an RMSNorm saves, against autograd on the modules of torch and of torchtitan's time before it."""

from typing import Any

import pytest
from model_configs import llama_config

from vramtop.estimator.formula.activations.block import norm_per_token
from vramtop.estimator.formula.activations.layer_context import layer_context
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.rank_share import stages
from vramtop.estimator.model.read_architecture import read_architecture

torch = pytest.importorskip("torch")
TOKENS, HIDDEN = 64, 256
CONFIG = llama_config(hidden=HIDDEN, mlp=704, layers=2, heads=8, kv_heads=8, vocab=300)


class ChainedNorm(torch.nn.Module):
    """The operations of an RMSNorm in Python, which multiplies by its scale in 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(HIDDEN, dtype=torch.bfloat16))

    def forward(self, x: Any) -> Any:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def saved_by_autograd(norm: Any) -> int:
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True) * 1
    kept: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        if tensor.numel() >= TOKENS:  # neither scales nor numbers
            kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        norm(x)
    return sum(size for size in kept.values() if size > 4 * HIDDEN)


def counted(framework: str, *, final: bool = True, compiled: bool = False, **software: str) -> float:
    tables = {"framework": framework, "precision": "bf16", "compile": compiled}
    job = job_from_mapping({"model": {"config": CONFIG}, "training": tables, "software": software}, where="test")
    arch = read_architecture(CONFIG, "causal-lm", where="test")
    resolved = resolve_job(job)
    stage = stages(resolved, count_parameters(arch))[0]
    return TOKENS * norm_per_token(layer_context(resolved, arch, stage), HIDDEN, final=final)


@pytest.mark.parametrize(
    ("framework", "software"), [("torchtitan", {"torch": "2.8", "torchtitan": "0.1"}), ("torchtune", {"torch": "2.7"})]
)
def test_torchs_norm_keeps_two_fp32_tensors(framework: str, software: dict[str, str]) -> None:
    """A CPU still runs the chain of operations that CUDA ran before torch 2.9."""
    expected = saved_by_autograd(torch.nn.RMSNorm(HIDDEN, dtype=torch.bfloat16))
    assert counted(framework, **software) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("framework", "software"), [("torchtitan", {"torchtitan": "0.0.2"}), ("torchtune", {"torch": "2.5"})]
)
def test_older_norms_keep_an_fp32_copy_and_the_normalized_input(framework: str, software: dict[str, str]) -> None:
    assert counted(framework, **software) == pytest.approx(saved_by_autograd(ChainedNorm()), rel=0.01)


def test_what_is_compiled_are_the_blocks_and_not_the_norm_behind_them() -> None:
    software = {"torch": "2.8", "torchtitan": "0.1"}
    kernel = counted("torchtitan", torch="2.9", torchtitan="0.2")
    assert counted("torchtitan", final=False, compiled=True, **software) == kernel
    assert counted("torchtitan", compiled=True, **software) == pytest.approx(4 * kernel, rel=0.02)
