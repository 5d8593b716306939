"""``measure.py``: its list of configurations, and trial runs on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import measure
import pytest
from accuracy_cases import read_measured
from configurations import configurations, find, tiny

from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file import job_from_mapping

PROGRAM = Path(measure.__file__)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_configurations_cover_models_and_training_settings() -> None:
    jobs = list(configurations())
    assert len({job["name"] for job in jobs}) == len(jobs) >= 60
    families = {job["model"]["config"]["model_type"] for job in jobs}
    assert families >= {"llama", "qwen2", "qwen3", "mistral", "mixtral", "gemma", "gpt2", "bert", "t5"}
    assert {job["training"]["precision"] for job in jobs} == {"fp32", "bf16", "bf16-mixed", "fp16-mixed"}
    optimizers = {job["training"].get("optimizer", "adamw") for job in jobs}
    assert optimizers >= {"adamw", "adamw-fused", "sgd", "sgd-momentum", "adafactor"}
    assert {job["training"].get("loss", "full") for job in jobs} == {"full", "chunked"}
    assert sum("lora" in job for job in jobs) >= 8
    assert sum(job["training"].get("activation_checkpointing") == "full" for job in jobs) >= 10
    assert sum(job["model"].get("attention") == "eager" for job in jobs) >= 5


def test_every_configuration_can_be_predicted_and_fits_a_large_gpu() -> None:
    for tables in configurations():
        budget = estimate(job_from_mapping(tables, where=tables["name"]))
        assert 0.1e9 < budget.model.parameters < 8.1e9, tables["name"]
        assert budget.peak.device_bytes < 80 * GIB, tables["name"]


@pytest.mark.parametrize(
    "name",
    [
        "gpt2-0.1b b8 s512 fp16-mixed",
        pytest.param("llama-8b b1 s2048 bf16 adamw checkpointing lora", marks=pytest.mark.slow),
    ],
)
def test_a_tiny_model_takes_three_steps_on_the_cpu(name: str, tmp_path: Path) -> None:
    out = tmp_path / "cpu.jsonl"
    done = run("--cpu", "--only", name, "--limit", "1", "--out", str(out))
    assert done.returncode == 0, done.stderr
    [result] = [json.loads(line) for line in out.read_text().splitlines()]
    assert result["error"] is None
    assert result["job"] == tiny(find(name)[0])
    assert result["predicted"]["allocated_bytes"] > 0
    assert len(result["measured"]["losses"]) == 3
    assert result["measured"]["max_allocated_bytes"] is None
    assert result["versions"]["torch"]
    assert read_measured(tmp_path) == ()  # all figures are null on a CPU


def test_predictions_are_made_beforehand_and_read_back(tmp_path: Path) -> None:
    file = tmp_path / "predictions.jsonl"
    assert run("--predict", str(file), "--only", "bert-0.1b", "--gpu", "a100-80gb").returncode == 0
    known = measure._read_predictions(file)
    assert set(known) == {job["name"] for job in find("bert-0.1b")}
    assert all(peak["low_bytes"] < peak["device_bytes"] < peak["high_bytes"] for peak in known.values())


@pytest.mark.slow
def test_a_configuration_that_fails_is_reported_and_fails_the_run(tmp_path: Path) -> None:
    broken = tmp_path / "configurations.py"
    broken.write_text(PROGRAM.with_name("configurations.py").read_text().replace('"sgd-momentum"}', '"nonesuch"}'))
    (tmp_path / "measure.py").write_text(PROGRAM.read_text())
    command = [sys.executable, str(tmp_path / "measure.py"), "--cpu", "--only", "nonesuch"]
    empty = tmp_path / "none.jsonl"
    empty.write_text("")
    done = subprocess.run(
        [*command, "--predictions", str(empty)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert "nonesuch" in json.loads(done.stdout)["error"]


def test_measured_figures_become_rows(tmp_path: Path) -> None:
    result = {
        "job": find("gpt2-0.1b b8 s512")[0],
        "predicted": None,
        "card": "NVIDIA H100 80GB HBM3",
        "driver": "580.95",
        "versions": {"torch": "2.13.0"},
        "measured": {"max_allocated_bytes": 9 * GIB, "max_reserved_bytes": 10 * GIB, "device_bytes": None},
        "error": None,
    }
    failed = {**result, "measured": None, "error": "out of memory"}
    (tmp_path / "h100.jsonl").write_text(f"{json.dumps(result)}\n{json.dumps(failed)}\n")
    cases = read_measured(tmp_path)
    assert [(case.figure, case.measured_bytes // GIB) for case in cases] == [("allocated", 9), ("reserved", 10)]
    assert cases[0].job.target.gpu == "h100-80gb"
