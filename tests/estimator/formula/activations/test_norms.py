"""What an RMSNorm saves: torch's, and the ones that frameworks had before it."""

import pytest
from model_configs import llama_config

from vramtop.estimator.formula.activations.block import norm_per_token
from vramtop.estimator.formula.activations.layer_context import layer_context
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.rank_share import stages
from vramtop.estimator.model.read_architecture import read_architecture

TOKENS, HIDDEN = 64, 256
CONFIG = llama_config(hidden=HIDDEN, mlp=704, layers=2, heads=8, kv_heads=8, vocab=300)


def counted(framework: str, *, final: bool = True, compiled: bool = False, **software: str) -> float:
    tables = {"framework": framework, "precision": "bf16", "compile": compiled}
    job = job_from_mapping({"model": {"config": CONFIG}, "training": tables, "software": software}, where="test")
    arch = read_architecture(CONFIG, "causal-lm", where="test")
    resolved = resolve_job(job)
    stage = stages(resolved, count_parameters(arch))[0]
    return TOKENS * norm_per_token(layer_context(resolved, arch, stage), HIDDEN, final=final)


@pytest.mark.parametrize(
    ("framework", "software", "widths"),
    [
        ("torchtitan", {"torch": "2.8", "torchtitan": "0.1"}, (4, 4)),  # torch's norm keeps two fp32 tensors
        ("torchtune", {"torch": "2.7"}, (4, 4)),
        ("torchtitan", {"torchtitan": "0.0.2"}, (4, 2)),  # an fp32 copy, and the normalized input
        ("torchtune", {"torch": "2.5"}, (4, 2)),
    ],
)
def test_norms_keep_what_autograd_keeps_of_their_operations(
    framework: str, software: dict[str, str], widths: tuple[int, int]
) -> None:
    """On a CPU, which still runs the chain of operations that CUDA ran before torch 2.9."""
    assert counted(framework, **software) == pytest.approx(sum(widths) * TOKENS * HIDDEN, rel=0.01)


def test_what_is_compiled_are_the_blocks_and_not_the_norm_behind_them() -> None:
    software = {"torch": "2.8", "torchtitan": "0.1"}
    kernel = counted("torchtitan", torch="2.9", torchtitan="0.2")
    assert counted("torchtitan", final=False, compiled=True, **software) == kernel
    assert counted("torchtitan", compiled=True, **software) == pytest.approx(4 * kernel, rel=0.02)
