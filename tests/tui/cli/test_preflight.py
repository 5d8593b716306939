"""``vramtop preflight`` from the command line: exit codes, text and JSON."""

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from command_line import vramtop_in
from json_schemas import valid_json
from slow_cases import quick_every

from vramtop.monitor.preflight.check import CheckResult
from vramtop.tui.reports.preflight_text import summary_line

SECRET = "nvapi-0123456789"  # noqa: S105 - made up
JOB = """
name = "check"
[model]
config = { model_type = "llama", hidden_size = 64, num_attention_heads = 4, num_hidden_layers = 2, vocab_size = 256, \
intermediate_size = 128 }
[training]
sequence_length = 64
[run]
output_dir = "out"
inference_endpoint = "https://integrate.api.nvidia.com/v1"
"""
Preflight = Callable[..., Any]


@pytest.fixture
def preflight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Preflight:
    """Return a function that runs the command in a folder with a job file and a stand-in for a CUDA build of torch."""
    (tmp_path / "job.toml").write_text(JOB)
    stand_in = tmp_path / "stand-in"
    stand_in.mkdir()
    (stand_in / "torch.py").write_text(
        "class version:\n    cuda, hip = '12.8', None\n"
        "class _C:\n    @staticmethod\n    def _cuda_getArchFlags():\n        return 'sm_80 sm_90'\n"
        "__version__ = '2.13.0+cu128'\n"
    )
    for name in [name for name in os.environ if name.startswith(("HF_", "CUDA_", "VIRTUAL_ENV"))]:
        monkeypatch.delenv(name)
    path = os.pathsep.join(filter(None, [str(stand_in), os.environ.get("PYTHONPATH")]))

    def run(*words: str, **environ: str) -> Any:
        more = {"PYTHONPATH": path, "HF_HOME": str(tmp_path / "hf"), **environ}
        return vramtop_in(tmp_path, ("preflight", *words, "--method", "formula"), more)

    return run


def test_a_machine_without_a_driver_fails_with_the_reason(preflight: Preflight) -> None:
    done = preflight("job.toml", "--json", NSS_INFERENCE_KEY=SECRET)
    found = valid_json("preflight", done.stdout)
    checks = {check["name"]: check for check in found["checks"]}
    assert (done.returncode, done.stderr) == (1, "")
    assert (found["schema"], found["job"], found["result"]) == (1, "check", "failure")
    assert checks["NVIDIA driver"]["status"] == "failure"
    assert "driver" in checks["NVIDIA driver"]["found"]
    assert checks["VRAM verdict"]["unknown"] is True
    assert {name for name, check in checks.items() if check["status"] == "failure"} == {"NVIDIA driver"}
    assert all(set(check) == {"name", "status", "found", "advice", "unknown"} for check in checks.values())


def test_a_described_machine_passes_and_no_key_is_printed(preflight: Preflight, tmp_path: Path) -> None:
    for words in ((), ("--json",)):
        done = preflight("job.toml", "--gpu-type", "h100", *words, NSS_INFERENCE_KEY=SECRET)
        assert (done.returncode, done.stderr) == (0, "")
        assert "NSS_INFERENCE_KEY is set" in done.stdout
        assert SECRET not in done.stdout
    assert not (tmp_path / "out").exists()


def test_a_gpu_that_is_too_small_fails_both_bounds(preflight: Preflight) -> None:
    done = preflight("llama-3.1-8b", "--precision", "bf16", "--gpu-memory", "12GiB", "--json", HF_HUB_OFFLINE="1")
    checks = {check["name"]: check["status"] for check in valid_json("preflight", done.stdout)["checks"]}
    assert (done.returncode, checks["VRAM verdict"]) == (1, "failure")
    assert (checks["Model files"], checks["Model access"]) == ("failure", "skipped")


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch and transformers")
def test_an_unknown_decisive_check_is_exit_code_3(preflight: Preflight) -> None:
    words = ("llama-3.1-8b", "--gpu-memory", "800GiB", "--json")
    done = preflight(*words, HF_ENDPOINT="http://127.0.0.1:9")
    found = valid_json("preflight", done.stdout)
    assert (done.returncode, found["result"]) == (3, "unknown")
    assert [check["name"] for check in found["checks"] if check["unknown"]] == ["Model access"]


@pytest.mark.parametrize(
    ("words", "hint"),
    quick_every(
        3,
        [
            ((), "no job"),
            (("absent.toml",), "absent.toml: no such file"),
            (("job.toml", "--set", "run.outptu_dir=x"), "'run.output_dir'"),
            (("job.toml", "--gpu-type", "h1000"), "h100"),
            (("job.toml", "--python", "/no/such/python"), "/no/such/python"),
            (("job.toml", "--lora-targets", "nope"), "nope"),
            (("job.toml", "--timeout", "0"), "0 is not between"),
        ],
    ),
)
def test_wrong_input_is_exit_code_2_with_one_sentence(preflight: Preflight, words: tuple[str, ...], hint: str) -> None:
    done = preflight(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


def test_environment_python_and_folders_are_taken_from_the_launch_line(preflight: Preflight, tmp_path: Path) -> None:
    line = f"{sys.executable} train.py --model_name_or_path gpt2 --output_dir out --report_to wandb"
    batch = "--per_device_train_batch_size 1 --max_length 64"
    done = preflight(
        "--gpu-type", "h100", "--json", "--method", "formula", "--set", "run.required_environment=['A']",
        "--", "A=1", *line.split(), *batch.split(), HF_HUB_OFFLINE="1",
    )  # fmt: skip
    found = valid_json("preflight", done.stdout)
    checks = {check["name"]: check for check in found["checks"]}
    assert found["python"] == {"path": sys.executable, "origin": sys.executable}
    assert "A is set" in checks["Environment keys"]["found"]
    assert "WANDB_API_KEY is not set" in checks["Environment keys"]["found"]
    assert str(tmp_path / "out") in checks["Output folder"]["found"]


def test_the_last_line_is_the_summary() -> None:
    well = CheckResult(name="a", status="pass", found="")
    unsure = CheckResult(name="b", status="warning", found="", unknown=True, decisive=True)
    assert summary_line([well, well]) == "2 passed: no check found a problem that would stop the job"
    assert summary_line([well, unsure]) == "1 unknown, 1 passed: it is unknown whether the job can start"
