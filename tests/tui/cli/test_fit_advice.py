import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from json_schemas import valid_json

JOB = """\
[model]
id = "Qwen/Qwen2.5-0.5B"  # small
[training]
micro_batch = 8  # per GPU
sequence_length = 2048
gradient_accumulation = 2
"""
PATCH = shutil.which("patch")
Fit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    """Return a function that runs ``vramtop fit`` with the formula in the folder of a job file."""
    (tmp_path / "job.toml").write_text(JOB)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "vramtop.tui.cli", "fit", "--method", "formula", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


def found(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert not done.stderr
    return valid_json("fit", done.stdout)


@pytest.mark.slow
def test_flags_of_a_suggestion_can_be_copied_as_they_are_printed(fit: Fit) -> None:
    """A comma between them would be part of a value."""
    asked = ("Qwen/Qwen2.5-0.5B", "--micro-batch", "8", "--gpu-memory", "24GiB")
    said = fit(*asked)
    assert said.returncode == 1
    lines = iter(said.stdout.splitlines())
    flags = ""
    for line in lines:
        if flags and not line.startswith(6 * " "):
            break
        if line.strip().startswith("--") or flags:
            flags += line + " "
    again = fit(*asked, *flags.split())
    assert (again.returncode, again.stderr) == (0, ""), flags


@pytest.mark.slow
@pytest.mark.skipif(PATCH is None, reason="the patch program applies the diff")
def test_the_diff_of_a_job_file_applies(fit: Fit, tmp_path: Path) -> None:
    asked = ("--gpu-memory", "24GiB", "--json")
    for suggestion in found(fit("job.toml", *asked))["suggestions"][:2]:
        (tmp_path / "change.diff").write_text(suggestion["diff"] + "\n")
        subprocess.run([str(PATCH), "-o", "edited.toml", "job.toml", "change.diff"], cwd=tmp_path, check=True)
        assert "# per GPU" in (tmp_path / "edited.toml").read_text()
        assert found(fit("edited.toml", *asked))["verdict"] == suggestion["verdict"]


@pytest.mark.slow
def test_the_largest_value_that_fits_is_printed(fit: Fit) -> None:
    answer = found(fit("job.toml", "--gpu-memory", "96GiB", "--json"))
    assert answer["verdict"] == "fits"
    assert answer["suggestions"] == []
    largest = answer["largest"]
    assert largest["micro_batch"] >= 8
    assert found(fit("job.toml", "--gpu-memory", "96GiB", "--json", "--micro-batch", str(largest["micro_batch"])))[
        "verdict"
    ] == ("fits")
    text = fit("job.toml", "--gpu-memory", "96GiB").stdout
    assert f"largest that fits, all else unchanged: micro-batch {largest['micro_batch']} (now 8)" in text


@pytest.mark.slow
def test_the_effective_batch_is_shown_as_a_product(fit: Fit) -> None:
    words = ("--strategy", "ddp", "--data-replicate", "2", "--tensor", "2", "--gpu-memory", "80GiB")
    batch = found(fit("job.toml", *words, "--json"))["budget"]["effective_batch"]
    assert (batch["sequences"], batch["tokens"]) == (32, 65536)
    text = " ".join(fit("job.toml", *words).stdout.split())
    assert "32 sequences and 65,536 tokens a step: micro-batch 8 × accumulation 2 × 2 data-parallel ranks" in text
    assert "micro-batch 8 with 1 accumulation step gives that batch on all 2" in text


@pytest.mark.slow
def test_host_memory_affects_the_verdict(fit: Fit) -> None:
    shards = ("--strategy", "fsdp2", "--data-shard", "8", "--precision", "bf16-mixed", "--json")
    words = ("job.toml", "--gpu-memory", "80GiB", *shards)
    assert "host" not in found(fit(*words))
    done = fit(*words, "--host-memory", "20GiB")
    answer = found(done)
    assert (done.returncode, answer["verdict"], answer["host"]["verdict"]) == (1, "does_not_fit", "does_not_fit")
    assert "8 processes need" in answer["sentence"]
    assert "parallel.load_on_rank_zero" in answer["suggestions"][0]["changes"]
    assert found(fit(*words, "--host-memory", "256GiB"))["verdict"] == "fits"
    both = found(fit("job.toml", "--gpu-memory", "20GiB", *shards, "--host-memory", "20GiB"))
    assert both["suggestions"][0]["verdict"] == "fits"
    assert any("parallel.load_on_rank_zero" in each["changes"] for each in both["suggestions"])


def test_suggestions_for_a_launch_line_use_its_own_flags(fit: Fit) -> None:
    line = "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 32 --max_length 2048"
    text = fit("--gpu-memory", "16GiB", "--", *line.split()).stdout
    assert "--per_device_train_batch_size 32 -> " in text
    assert "ways to make it fit, least costly first:" in text


@pytest.mark.slow
def test_the_memory_left_for_the_cache_of_a_server_is_printed(fit: Fit) -> None:
    line = "vllm serve Qwen/Qwen2.5-7B --max-model-len 8192 --max-num-seqs 64 --gpu-memory-utilization 0.9"
    done = fit("--gpu-type", "a100-40gb", "--json", "--", *line.split())
    answer = found(done)
    assert (done.returncode, answer["verdict"]) == (0, "fits")
    serving = answer["serving"]
    assert serving["token_bytes"] == 28 * 2 * 4 * 128 * 2
    assert serving["asked_bytes"] == int(0.9 * answer["gpus"][0]["available_bytes"])
    assert serving["cache_tokens"] == pytest.approx(serving["concurrency"] * 8192, rel=0.01)
    small = fit("--gpu-type", "t4", "--", *line.split())
    assert small.returncode == 1
    assert "lower --max-model-len" in small.stdout
