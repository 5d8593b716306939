"""SGLang's launch lines, and the share of the GPU that a running server was told to take."""

import shlex
from pathlib import Path

import pytest

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.readers.launch_line import read_launch, tool_of_line
from vramtop.estimator.readers.source.evidence import JobReading
from vramtop.estimator.server_budget import budget_on_gpu

LLAMA = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B"
TOTAL = 80 * GIB


def read(line: str, version: str | None = "0.5.2") -> JobReading:
    versions = {"sglang": version} if version else {}
    return read_launch(shlex.split(line), environ={}, cwd=Path("/"), versions=versions)


def on_gpu(line: str, version: str | None = "0.5.2") -> Budget:
    return budget_on_gpu(estimate(read(line, version).job()), TOTAL)


@pytest.mark.parametrize("tensor", ["--tp 2", "--tp-size 2", "--tensor-parallel-size 2"])
def test_a_launch_line_is_read(tensor: str) -> None:
    line = (
        f"{LLAMA} --mem-fraction-static 0.8 --context-length 8192 --max-running-requests 64 --kv-cache-dtype fp8_e5m2"
    )
    reading = read(f"{line} {tensor} --quantization fp8 --disable-cuda-graph --chunked-prefill-size 4096")
    job = reading.job()
    assert (reading.missing, reading.warnings) == ((), ())
    assert tool_of_line(shlex.split(line)) == "SGLang"
    assert (job.engine_name, job.parallel.tensor, job.training.sequence_length) == ("SGLang", 2, 8192)
    assert job.inference is not None
    assert (job.inference.cache_dtype, job.inference.weights, job.inference.cuda_graphs) == ("fp8", "fp8", False)
    assert (job.inference.gpu_memory_utilization, job.inference.prefill_tokens) == (0.8, 4096)


def test_a_share_that_is_not_written_is_missing() -> None:
    assert read(LLAMA).missing == ("inference.gpu_memory_utilization",)
    assert read(f"{LLAMA} --mem-fraction-static most").missing == ("inference.gpu_memory_utilization",)


def test_weights_and_cache_fill_the_share_of_what_was_free() -> None:
    budget = on_gpu(f"{LLAMA} --mem-fraction-static 0.8")
    need, parts = budget.serving, budget.peak.components
    assert need is not None
    assert parts.weights + parts.activations == pytest.approx(0.8 * (TOTAL - need.context), abs=2)
    assert budget.peak.device_bytes > need.asked_bytes(TOTAL)  # context and CUDA graphs are outside of it
    assert "SGLang is set to use 0.8 of the free part" in budget.assumptions[0]
    assert budget.warnings == ()


def test_how_much_was_free_is_not_known_so_nothing_is_too_little() -> None:
    budget = on_gpu(f"{LLAMA} --mem-fraction-static 0.8")
    assert budget.serving is not None
    assert budget.peak.low_bytes <= budget.serving.weights + budget.serving.context


def test_an_unknown_version_widens_the_range() -> None:
    known, unknown = (on_gpu(f"{LLAMA} --mem-fraction-static 0.8", version) for version in ("0.5.23", "0.9.0"))
    assert unknown.peak.high_bytes > known.peak.high_bytes
    assert any("version of SGLang" in warning for warning in unknown.warnings)
