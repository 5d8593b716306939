"""The list of jobs to measure, and the rows that their results become."""

import json
import runpy
import sys
from pathlib import Path

import configurations as module
import pytest
from accuracy_cases import read_measured
from configurations import configurations, find

from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file import job_from_mapping


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


@pytest.mark.slow
def test_every_configuration_can_be_predicted_and_fits_a_large_gpu() -> None:
    for tables in configurations():
        budget = estimate(job_from_mapping(tables, where=tables["name"]))
        assert 0.1e9 < budget.model.parameters < 8.1e9, tables["name"]
        assert budget.peak.device_bytes < 80 * GIB, tables["name"]


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
    tiny = {**result, "device": "cpu"}
    (tmp_path / "cpu.jsonl").write_text(json.dumps(tiny) + "\n")
    cases = read_measured(tmp_path)
    assert [(case.figure, case.measured_bytes // GIB) for case in cases] == [("allocated", 9), ("reserved", 10)]
    assert cases[0].job.target.gpu == "h100-80gb"


def test_the_jobs_are_printed_for_vramtop_measure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["configurations.py", "bert-0.1b"])
    runpy.run_path(module.__file__, run_name="__main__")
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == find("bert-0.1b")
