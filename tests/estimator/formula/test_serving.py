"""vLLM's accounting, compared with figures that vLLM itself logged, each with its thread; what it holds, by version."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from model_configs import llama_config

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.formula.closed_form import closed_form
from vramtop.estimator.formula.key_value_cache import sequence_cache_bytes
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job, Software, Training
from vramtop.estimator.job.job_file.changes import job_from_mapping, with_changes
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.read_architecture import read_architecture
from vramtop.estimator.readers.launch_line import read_launch, tool_of_line
from vramtop.estimator.readers.source.evidence import JobReading
from vramtop.estimator.server_budget import budget_on_gpu
from vramtop.estimator.serving_need import ServingNeed

LLAMA = "vllm serve meta-llama/Llama-3.1-8B"


def read(line: str, version: str | None = "0.33.0") -> JobReading:
    versions = {"vllm": version} if version else {}
    return read_launch(shlex.split(line), environ={}, cwd=Path("/"), versions=versions)


def job_of(line: str, version: str | None = None) -> Job:
    return read(line, version).job()


def serving(line: str, version: str | None = None) -> ServingNeed:
    return estimate(job_of(line, version), gpu=find_gpu("h100-80gb")).serving


@pytest.mark.parametrize(
    ("line", "weights", "activations"),
    [
        # vllm-project/vllm#10517: peak_torch_memory less weights, RTX 3090
        (f"{LLAMA} --max-num-batched-tokens 20000 --max-num-seqs 8", 14.99, 17.06 - 14.99),
        (f"{LLAMA} --max-num-batched-tokens 29000 --max-num-seqs 8", 14.99, 17.98 - 14.99),
        (f"{LLAMA} --max-num-batched-tokens 512 --max-num-seqs 1", 14.99, 15.05 - 14.99),
        # vllm-project/vllm#10511: 256 sequences, H100, one and two ranks
        (f"{LLAMA} --max-num-batched-tokens 8192 --max-num-seqs 256", 14.96, 1.26),
        (f"{LLAMA} --max-num-batched-tokens 8192 --max-num-seqs 256 -tp 2", 7.48, 1.26),
    ],
)
def test_weights_and_activations_as_vllm_logs_them(line: str, weights: float, activations: float) -> None:
    need = serving(line)
    assert need.weights / GIB == pytest.approx(weights, rel=0.003)
    assert need.activations / GIB == pytest.approx(activations, rel=0.02, abs=0.01)


@pytest.mark.parametrize(
    ("line", "cache", "tokens"),
    [
        (LLAMA, 3.81, 1952 * 16),  # vllm-project/vllm#10517
        (LLAMA, 2.89, 1478 * 16),
        ("vllm serve Qwen/Qwen2.5-14B -tp 2", 8.69, None),  # #13061 logs no blocks
    ],
)
def test_tokens_of_a_cache_as_vllm_logs_them(line: str, cache: float, tokens: int | None) -> None:
    need = serving(line)
    if tokens is None:
        assert need.token_bytes == 48 * 2 * 4 * 128 * 2
    else:
        assert cache * GIB / need.token_bytes == pytest.approx(tokens, rel=0.002)


def of_config(config: dict[str, Any], **tables: Any) -> Budget:
    arch = read_architecture(config)
    job = job_from_mapping(
        {
            "model": {"config": config},
            "training": {"mode": "inference", "precision": "bf16", **tables.pop("training", {})},
            "inference": {"engine": "vllm", **tables.pop("inference", {})},
            **tables,
        },
        where="test",
    )
    return closed_form(job, arch, count_parameters(arch))


def test_one_sequence_of_full_length_needs_what_vllm_reports() -> None:
    """MiniMax M2's attention over two ranks: 23.25 GiB for 196,608 tokens (eugr/spark-vllm-docker#396)."""
    config = llama_config(hidden=3072, mlp=1536, layers=62, heads=48, kv_heads=8, vocab=200064, head_dim=128)
    need = of_config(config, training={"sequence_length": 196608}, parallel={"tensor": 2}).serving
    assert need.sequence_bytes == 23.25 * GIB


def test_remaining_memory_is_cache() -> None:
    """Llama-3.1-8B on 23.58 GiB at 0.9: 3.81 GiB and 1952 blocks were left (vllm-project/vllm#10517)."""
    need = serving(f"{LLAMA} --max-model-len 20000", version="0.6.4")
    total = round(23.58 * GIB)
    assert need.asked_bytes(total) == pytest.approx(0.9 * total, abs=1)
    assert need.cache_bytes(total) / GIB == pytest.approx(3.81, abs=0.2)
    assert need.cache_tokens(total) == pytest.approx(1952 * 16, rel=0.05)
    assert need.concurrency(total) == pytest.approx(1.56, rel=0.05)
    for length, starts in ((29_000, False), (35_000, True)):  # of the same report: a longer one takes 2048 at a time
        longer = serving(f"{LLAMA} --max-model-len {length}", version="0.6.4")
        assert (longer.concurrency(total) >= 1) == starts
    assert need.cache_tokens(total) % 16 == 0
    assert need.cache_bytes(10 * GIB) == need.cache_tokens(10 * GIB) == 0


def test_caches_by_kind_of_attention() -> None:
    llama = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
    llama |= {"num_key_value_heads": 2, "intermediate_size": 1024, "vocab_size": 1000}

    def sequence(config: dict[str, Any], **tables: Any) -> int:
        need = of_config(config, training={"sequence_length": 4096}, **tables).serving
        return need.sequence_bytes

    whole = sequence(llama)
    assert whole == 4096 * 4 * 2 * 2 * 64 * 2
    assert sequence(llama, inference={"cache_dtype": "fp8"}) == whole // 2
    assert sequence(llama, parallel={"tensor": 2}) == whole // 2
    assert sequence(llama, parallel={"tensor": 8}) == whole // 2  # each rank has a head at least
    mistral = {**llama, "model_type": "mistral", "sliding_window": 512}
    assert sequence(mistral, inference={"prefill_tokens": 512}) == whole * (511 + 512) // 4096
    assert sequence(mistral, inference={"prefill_tokens": 8192}) == whole
    latent = {"model_type": "deepseek_v2", "kv_lora_rank": 128, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32}
    latent = {**llama, **latent, "v_head_dim": 32, "q_lora_rank": None, "num_key_value_heads": 8}
    for ranks in (1, 2):
        assert sequence(latent, parallel={"tensor": ranks}) == 4096 * 4 * (128 + 32) * 2


def test_transformers_caches_a_window_and_latents() -> None:
    """Before 5.15 ``past_key_values.update`` came after the latents were expanded (modeling_deepseek_v2.py)."""
    config = {"model_type": "mistral", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
    config |= {"num_key_value_heads": 2, "intermediate_size": 1024, "vocab_size": 1000, "sliding_window": 1024}
    training = Training(mode="inference", precision="bf16")

    def sequence(
        config: dict[str, Any], length: int, software: Software | None = None, training: Training = training
    ) -> int:
        job = Job(training=training, software=software or Software())
        return sequence_cache_bytes(resolve_job(job), read_architecture(config), 4, length)

    per_token = 4 * 2 * 2 * 64 * 2
    assert [sequence(config, length) for length in (512, 4096)] == [512 * per_token, 4096 * per_token]  # at its prompt
    assert sequence(config, 4096, training=Training(precision="bf16")) == 1024 * per_token  # when a rollout ends
    latent = {"model_type": "deepseek_v2", "kv_lora_rank": 128, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32}
    latent = {**config, **latent, "v_head_dim": 48, "q_lora_rank": None, "sliding_window": None}
    assert sequence(latent, 512) == 512 * 4 * (128 + 32) * 2
    assert sequence(latent, 512, Software(transformers="5.14.0")) == 512 * 4 * 8 * (64 + 48) * 2


def test_a_launch_line_is_read() -> None:
    argv = shlex.split(
        f"{LLAMA} --gpu-memory-utilization 0.85 --max-model-len 8k --max-num-seqs 64 --tensor-parallel-size 2 "
        "--kv-cache-dtype fp8 --quantization fp8 --dtype half"
    )
    reading = read_launch(argv, environ={}, cwd=Path("/"))
    job = reading.job()
    assert tool_of_line(argv) == "vLLM"
    assert reading.missing == ()
    assert (job.training.mode, job.training.sequence_length, job.training.micro_batch) == ("inference", 8000, 64)
    assert (job.training.precision, job.parallel.tensor) == ("fp16", 2)
    assert (job.inference.weights, job.inference.cache_dtype) == ("fp8", "fp8")
    assert job.inference.gpu_memory_utilization == 0.85
    module = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "meta-llama/Llama-3.1-8B"]
    older = read_launch(module, environ={}, cwd=Path("/"))
    assert older.value("training.sequence_length") == 131072
    assert "max_position_embeddings" in older.evidence()["training.sequence_length"]
    odd = read_launch([*module, "--quantization", "no-such", "--gpu-memory-utilization", "much"], environ={})
    assert len(odd.warnings) == 2


def test_weights_in_fewer_bits() -> None:
    sizes = [serving(f"{LLAMA} {words}").weights for words in ("", "--quantization fp8", "--quantization awq")]
    linear = 32 * (4096 * (4096 * 2 + 1024 * 2) + 3 * 4096 * 14336)
    assert sizes[0] - sizes[1] == pytest.approx(linear, rel=0.001)
    assert sizes[0] - sizes[2] == pytest.approx(linear * (2 - 0.52), rel=0.001)


def test_budgets_of_servers_have_ranges_and_survive_json() -> None:
    budget = estimate(job_of(LLAMA), gpu=find_gpu("h100-80gb"))
    assert budget.peak.low_bytes < budget.peak.device_bytes < budget.peak.high_bytes
    assert Budget.from_json(budget.to_json()) == budget
    assert budget.peak.device_bytes == budget.serving.least_bytes + budget.peak.components.context
    with pytest.raises(CannotTellError, match="cannot trace"):
        estimate(job_of(LLAMA), method="traced")


def test_the_inference_table_is_ignored_in_training() -> None:
    job = with_changes(job_of(LLAMA), {"training.mode": "train", "training.sequence_length": 512})
    assert estimate(job).serving is None


TOTAL = 80 * GIB
LLAMA_32K = "vllm serve meta-llama/Llama-3.1-8B --max-model-len 32K"


def on_gpu(line: str, version: str | None = "0.33.0") -> Budget:
    return budget_on_gpu(estimate(job_of(line, version)), TOTAL)


def outside(budget: Budget) -> int:
    return budget.peak.device_bytes - budget.serving.asked_bytes(TOTAL)


@pytest.mark.parametrize(("version", "share"), [("0.8.5.post1", 0.9), ("0.19.1", 0.9), ("0.20.0", 0.92), (None, 0.92)])
def test_the_default_share_is_the_versions(version: str | None, share: float) -> None:
    reading = read(LLAMA_32K, version)
    assert reading.value("inference.gpu_memory_utilization") == share
    assert "default gpu_memory_utilization" in reading.evidence()["inference.gpu_memory_utilization"]


def test_a_server_holds_its_share_and_what_is_outside_of_it() -> None:
    budget = on_gpu(f"{LLAMA_32K} --gpu-memory-utilization 0.5")
    need, parts = budget.serving, budget.peak.components
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
    need = on_gpu(LLAMA_32K, "0.19.1").serving
    assert outside(on_gpu(LLAMA_32K, "0.19.1")) == need.context + need.graphs
    assert outside(on_gpu(f"{LLAMA_32K} --enforce-eager", "0.19.1")) == need.context
    two = f"{LLAMA_32K} -tp 2"
    assert (
        outside(on_gpu(two, "0.19.1")) - outside(on_gpu(two, "0.10.2")) == on_gpu(two, "0.19.1").serving.communication
    )  # type: ignore[union-attr]
    assert outside(on_gpu(LLAMA_32K, "0.8.5")) == need.graphs  # everything in use on the GPU counted


def test_a_cache_of_a_stated_size_replaces_the_share() -> None:
    budget = on_gpu(f"{LLAMA_32K} --kv-cache-memory-bytes 20G")
    assert budget.peak.components.activations == 20 * GIB
    assert budget.peak.device_bytes < 40 * GIB
    assert read(f"{LLAMA_32K} --kv-cache-memory-bytes much").warnings


@pytest.mark.parametrize("version", [None, "0.34.0", "1.0.0", "0.5.5"])
def test_an_unknown_version_widens_the_range_and_is_a_warning(version: str | None) -> None:
    line = f"{LLAMA_32K} --gpu-memory-utilization 0.9"
    known, unknown = on_gpu(line), on_gpu(line, version)
    assert unknown.peak.low_bytes < known.peak.low_bytes
    assert unknown.peak.high_bytes > known.peak.high_bytes
    assert any("version of vLLM" in warning for warning in unknown.warnings)


def test_a_server_that_sleeps_may_hold_next_to_nothing() -> None:
    assert on_gpu(f"{LLAMA_32K} --enable-sleep-mode").peak.low_bytes < GIB


def test_settings_that_divide_the_share_leave_it() -> None:
    line = f"{LLAMA_32K} --cpu-offload-gb 4 --num-gpu-blocks-override 100 --max-model-len auto"
    reading = read(line)
    assert len(reading.warnings) == 3
    assert reading.value("training.sequence_length") == 131072
    assert on_gpu(line).peak.device_bytes == on_gpu(LLAMA_32K).peak.device_bytes
    assert on_gpu(line).peak.low_bytes < 20 * GIB  # the number of blocks decides the cache
    assert len(on_gpu(line).warnings) == 1


def test_other_jobs_and_unknown_gpus_stay_as_they_are() -> None:
    server = estimate(read(LLAMA_32K).job())
    assert budget_on_gpu(server, None) is server
    training = estimate(read_launch(["python", "-m", "trl.scripts.sft", "--model_name_or_path", "gpt2"]).job())
    assert budget_on_gpu(training, TOTAL) is training


def test_before_it_runs_the_stated_cache_counts_too() -> None:
    peak = estimate(read(f"{LLAMA_32K} --kv-cache-memory-bytes 20G").job()).peak
    assert peak.components.activations == 20 * GIB
    assert peak.low_bytes < peak.device_bytes < peak.high_bytes
