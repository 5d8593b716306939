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
