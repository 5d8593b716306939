"""What a running vLLM holds: the share that it was told to take, by version, as the sources of 20 versions say.

``vllm/config/cache.py`` (the default share), ``vllm/v1/worker/gpu_worker.py`` (what the share includes).
"""

import shlex
from pathlib import Path

import pytest

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading
from vramtop.estimator.server_budget import budget_on_gpu

TOTAL = 80 * GIB
LLAMA = "vllm serve meta-llama/Llama-3.1-8B --max-model-len 32K"


def read(line: str, version: str | None = "0.33.0") -> JobReading:
    versions = {"vllm": version} if version else {}
    return read_launch(shlex.split(line), environ={}, cwd=Path("/"), versions=versions)


def on_gpu(line: str, version: str | None = "0.33.0") -> Budget:
    return budget_on_gpu(estimate(read(line, version).job()), TOTAL)


def outside(budget: Budget) -> int:
    assert budget.serving is not None
    return budget.peak.device_bytes - budget.serving.asked_bytes(TOTAL)


@pytest.mark.parametrize(("version", "share"), [("0.8.5.post1", 0.9), ("0.19.1", 0.9), ("0.20.0", 0.92), (None, 0.92)])
def test_the_default_share_is_the_versions(version: str | None, share: float) -> None:
    reading = read(LLAMA, version)
    assert reading.value("inference.gpu_memory_utilization") == share
    assert "default gpu_memory_utilization" in reading.evidence()["inference.gpu_memory_utilization"]


def test_a_server_holds_its_share_and_what_is_outside_of_it() -> None:
    budget = on_gpu(f"{LLAMA} --gpu-memory-utilization 0.5")
    need, parts = budget.serving, budget.peak.components
    assert need is not None
    assert outside(budget) == need.context  # CUDA graphs are within the share since 0.20
    assert parts.weights == need.weights
    assert parts.activations == need.cache_bytes(TOTAL)
    assert budget.steady_device_bytes == parts.total_bytes == budget.peak.device_bytes
    assert budget.peak.low_bytes < need.asked_bytes(TOTAL) < budget.peak.device_bytes < budget.peak.high_bytes
    (share, *_) = budget.assumptions
    assert "0.5 of the GPU's 80.0 GiB" in share
    assert f"{need.cache_tokens(TOTAL):,} tokens" in share
    assert budget.warnings == ()


def test_what_is_outside_of_the_share_depends_on_the_version() -> None:
    need = on_gpu(LLAMA, "0.19.1").serving
    assert need is not None
    assert outside(on_gpu(LLAMA, "0.19.1")) == need.context + need.graphs
    assert outside(on_gpu(f"{LLAMA} --enforce-eager", "0.19.1")) == need.context
    two = f"{LLAMA} -tp 2"
    assert (
        outside(on_gpu(two, "0.19.1")) - outside(on_gpu(two, "0.10.2")) == on_gpu(two, "0.19.1").serving.communication
    )  # type: ignore[union-attr]
    assert outside(on_gpu(LLAMA, "0.8.5")) == need.graphs  # everything in use on the GPU counted


def test_a_cache_of_a_stated_size_replaces_the_share() -> None:
    budget = on_gpu(f"{LLAMA} --kv-cache-memory-bytes 20G")
    assert budget.peak.components.activations == 20 * GIB
    assert budget.peak.device_bytes < 40 * GIB
    assert read(f"{LLAMA} --kv-cache-memory-bytes much").warnings


@pytest.mark.parametrize("version", [None, "0.34.0", "1.0.0", "0.5.5"])
def test_an_unknown_version_widens_the_range_and_is_a_warning(version: str | None) -> None:
    line = f"{LLAMA} --gpu-memory-utilization 0.9"
    known, unknown = on_gpu(line), on_gpu(line, version)
    assert unknown.peak.low_bytes < known.peak.low_bytes
    assert unknown.peak.high_bytes > known.peak.high_bytes
    assert any("version of vLLM" in warning for warning in unknown.warnings)


def test_a_server_that_sleeps_may_hold_next_to_nothing() -> None:
    assert on_gpu(f"{LLAMA} --enable-sleep-mode").peak.low_bytes < GIB


def test_settings_that_divide_the_share_leave_it() -> None:
    line = f"{LLAMA} --cpu-offload-gb 4 --num-gpu-blocks-override 100 --max-model-len auto"
    reading = read(line)
    assert len(reading.warnings) == 3
    assert reading.value("training.sequence_length") == 131072
    assert on_gpu(line).peak.device_bytes == on_gpu(LLAMA).peak.device_bytes
    assert on_gpu(line).peak.low_bytes < 20 * GIB  # the number of blocks decides the cache
    assert len(on_gpu(line).warnings) == 1


def test_other_jobs_and_unknown_gpus_stay_as_they_are() -> None:
    server = estimate(read(LLAMA).job())
    assert budget_on_gpu(server, None) is server
    training = estimate(read_launch(["python", "-m", "trl.scripts.sft", "--model_name_or_path", "gpt2"]).job())
    assert budget_on_gpu(training, TOTAL) is training


def test_before_it_runs_the_stated_cache_counts_too() -> None:
    peak = estimate(read(f"{LLAMA} --kv-cache-memory-bytes 20G").job()).peak
    assert peak.components.activations == 20 * GIB
    assert peak.low_bytes < peak.device_bytes < peak.high_bytes
