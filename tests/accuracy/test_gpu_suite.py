"""What ``make gpu`` runs: its table, the whole of it on the CPU, and what becomes of its results."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from accuracy_cases import GPU, read_measured
from suite import Part, read_suite

from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping

ROOT = Path(__file__).parents[2]
START = GPU / "start.py"
NOT_HERE = ("torch.compile can be measured on a GPU only", "fused kernels (", "No module named", "ImportError")
NOT_ON_A_CPU = {"attention, memory-efficient", "attention, cuDNN", "nvitop"}
CARD = "NVIDIA H100 80GB HBM3"


@pytest.fixture(scope="module")
def parts() -> tuple[Part, ...]:
    return read_suite(GPU / "suite.toml")


@pytest.mark.slow
def test_every_model_is_small_enough_and_all_jobs_but_one_fit_a_large_gpu(parts: tuple[Part, ...]) -> None:
    jobs = {
        entry.name: job_from_mapping(entry.job, where=entry.name)
        for part in parts
        for entry in part.entries
        if entry.job
    }
    found = {name: estimate(job) for name, job in jobs.items() if job.model.task != "image-classification"}
    assert all(0.05e9 < budget.model.parameters < 8.1e9 for budget in found.values())
    too_large = [name for name, budget in found.items() if budget.peak.device_bytes > 80 * GIB]
    assert too_large == ["llama-8b b64 s8192 lora bf16 adamw-fused rank 16"]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_whole_suite_runs_on_the_cpu(parts: tuple[Part, ...], tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    command = [sys.executable, str(START), "--cpu", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    rows = {(row["part"], row["name"]): row for row in json.loads(out.read_text())["rows"]}
    assert set(rows) == {(part.name, entry.name) for part in parts for entry in part.entries}
    for row in rows.values():
        measured = row["measured"]
        step, told = (measured["measured"], measured["predicted"]) if measured else (None, None)
        assert row["error"] is None or any(each in row["error"] for each in NOT_HERE), row
        assert not step or told["allocated_bytes"] == pytest.approx(step["max_allocated_bytes"], rel=0.25), row["name"]
    lines = {(name, line["name"]): line for (_, name), row in rows.items() for line in row["figures"]}
    assert {line for (_, line), figures in lines.items() if "error" in figures} <= NOT_ON_A_CPU
    assert lines["attach", "once"]["listed"] is True
    assert lines["attach", "attach, batch too small"]["status"] == "over"
    assert lines["attach", "attach, batch too large"]["status"] == "on_budget"  # --use_cpu may leave nothing on the GPU
    assert lines["NVML calls", "nvmlDeviceGetMemoryInfo"]["calls"] > 5
    assert lines["dashboard", "vramtop"]["first_frame_seconds"] > 0
    assert lines["probe", "probe"]["step_seconds"] > 0
    assert lines["crash", "crash"]["exit_code"] == 1
    assert lines["crash", "explain log"]["phase"] == lines["crash", "predicted"]["phase"] == "forward"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with results as they would come from a GPU, of one job that ran, one that did not fit, and a program."""
    job = {"model": {"id": "gpt2"}, "training": {"micro_batch": 8, "sequence_length": 512, "precision": "bf16"}}
    told = {
        "phase": "backward",
        "components": {},
        "allocated_bytes": 9 * GIB,
        "reserved_bytes": 10 * GIB,
        "device_bytes": 11 * GIB,
    }
    step = {
        "max_allocated_bytes": 10 * GIB,
        "max_reserved_bytes": 10 * GIB,
        "allocated_by_step_bytes": [10 * GIB] * 6,
        "components": {},
        "out_of_memory": None,
        "by_step": [{"step": 1, "phase": "forward", "allocated": 8 * GIB, "reserved": 9 * GIB}],
        "process_bytes": None,
        "device_bytes": 11 * GIB,
        "context_bytes": GIB // 2,
    }
    failed = {"step": 1, "phase": "forward", "message": "full", "allocated_bytes": 70 * GIB, "reserved_bytes": 75 * GIB}
    measured = {
        "job": {**job, "name": "gpt2 b8"},
        "predicted": told,
        "device": "cuda",
        "versions": {"torch": "2.13.0"},
        "measured": step,
        "error": None,
    }
    over = {**measured, "measured": {**step, "out_of_memory": failed}, "error": "out of memory"}
    rows = [
        {"part": "steps", "name": "gpt2 b8", "measured": measured, "formula": {**told, "allocated_bytes": 11 * GIB}},
        {"part": "steps", "name": "too large", "measured": over, "error": "out of memory"},
        {"part": "steps", "name": "gpt2 nf4", "error": "needs bitsandbytes"},
        {"part": "card", "name": "lazy", "figures": [{"name": "CUDA context", "process_bytes": 500 * 2**20}]},
    ]
    facts = {"card": CARD, "driver": "580.95", "started": "2026-12-01T10:00:00Z", "versions": {}}
    (tmp_path / "h100.json").write_text(json.dumps({**facts, "rows": rows}))
    on_cpu = [{**rows[0], "measured": {**measured, "device": "cpu"}}]
    (tmp_path / "cpu.json").write_text(json.dumps({**facts, "card": None, "rows": on_cpu}))
    return tmp_path


def test_measured_figures_become_rows_of_the_accuracy_table(results: Path) -> None:
    cases = read_measured(results)
    assert [(case.figure, case.measured_bytes // GIB) for case in cases] == [
        *(("allocated", 10), ("reserved", 10), ("device", 11))
    ]
    assert {(case.job.target.gpu, case.file, case.repository) for case in cases} == {
        ("h100-80gb", "gpu/h100", "gpu/h100")
    }


def test_the_page_has_what_was_measured(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "scripts"))
    import make_gpu_page as page

    text = page.tables(results)["gpus"].replace("\u00a0", " ")
    assert f"### {CARD}, 2026-12-01" in text
    assert "| allocated, closed form | 1 | 10.0 % | +10.0 % | 0 % | +10.0 % |" in text
    assert "| allocated, deepest method | 1 | 10.0 % | -10.0 % | 100 % | -10.0 % |" in text
    assert (
        "| steps: gpt2 b8 | 10.00 | +10.0 % | -10.0 % | 10.00 | +0.0 % | +0.0 % | 11.00 | +0.0 % | +0.0 % | 0.50 |"
        in text
    )
    assert "| steps: gpt2 b8 | 6 | 9.00 | 10.00 | 10.00 | 1.00 |" in text
    assert "| too large | forward, step 1 | 75.00 | 11.00 | backward |" in text
    assert "| CUDA context | process 500 MiB |" in text
    assert "| steps: gpt2 nf4 | needs bitsandbytes |" in text
    assert page.tables(results / "absent")["gpus"] == page.NOTHING


def test_the_page_of_measurements_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "scripts"))
    import make_gpu_page as page

    text = page.PAGE.read_text()
    assert text == page.with_tables(text, page.tables()), "run `make figures`"


def test_without_torch_and_without_packages_start_says_what_to_do(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True, timeout=60)
    python = str(bare / "bin" / "python")
    done = subprocess.run(
        [sys.executable, str(START), "--python", python], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert f"{python} has no torch and transformers; leave out --python to install them" in done.stderr
