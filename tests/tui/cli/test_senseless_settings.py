"""Commands name a setting that makes no sense, with its place; absurd sizes are one sentence."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from json_schemas import valid_json

from vramtop.monitor.sources.nvml.nvml_errors import NoDriverError
from vramtop.tui.cli.main import main

SCRIPT = "print('ready', flush=True)\ninput()\n"
WRONG = "--per_device_train_batch_size on the command line is -1, which is not a valid batch size"


class NoDriver:
    def open(self) -> None:
        raise NoDriverError("there is no driver")

    def close(self) -> None:
        pass


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return "train.py"


@pytest.fixture
def training(script: str) -> Iterator[int]:
    """The pid of a program with a senseless batch size."""
    line = [sys.executable, script, "--model_name_or_path", "gpt2", "--per_device_train_batch_size", "-1"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_fit_names_a_senseless_setting_of_a_launch_line(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--", "python", script, "--model_name_or_path", "gpt2", "--max_seq_length", "64"]
    given = ["fit", "--method", "formula", "--gpu-type", "h100-80gb"]
    assert main([*given, *line, "--per_device_train_batch_size", "-1"]) == 2
    advice = "correct it, or give it before the --, with --set training.micro_batch=1"
    assert capsys.readouterr().err == f"vramtop: {WRONG}; {advice}\n"
    assert main([*given, "--set", "training.micro_batch=2", *line, "--per_device_train_batch_size", "-1"]) == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["torchrun", "--nproc-per-node", "99999999"],
            "99,999,999 ranks on a machine are more GPUs than any machine has",
        ),
        (
            ["accelerate", "launch", "--num_processes", "8", "--use_deepspeed", "--zero_stage", "99"],
            "is not a valid stage of ZeRO",
        ),
    ],
)
def test_absurd_launch_lines_are_one_sentence(
    script: str, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*words, script, "--model_name_or_path", "gpt2", "--max_seq_length", "64"]
    for command in ("estimate", "fit", "preflight"):
        assert main([command, "--gpu-type", "h100-80gb", "--", *line, "--per_device_train_batch_size", "1"]) == 2
        said = capsys.readouterr().err
        assert sentence in said
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    "text", ["1048577", "11111111111111", "1" * 5000, "0", "-1", "two"], ids=lambda text: text[:20]
)
def test_absurd_numbers_of_gpus_are_one_sentence(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "gpt2", "--gpu-type", "h100-80gb", "--gpus", text]) == 2
    assert capsys.readouterr().err.startswith("vramtop fit: --gpus:")


def test_attach_names_a_senseless_setting(
    training: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vramtop.tui.cli.commands.attach.NvmlSource", NoDriver)
    assert main(["attach", str(training)]) == 3
    text = " ".join(capsys.readouterr().out.split())
    assert f"wrong: {WRONG}; give it with --set training.micro_batch=VALUE" in text
    assert "missing: training.micro_batch" not in text
    assert main(["attach", str(training), "--json"]) == 3
    captured = capsys.readouterr()
    assert valid_json("attach", captured.out)["refused"] == {"training.micro_batch": WRONG}
    assert captured.err.startswith(
        f"vramtop: {WRONG}; the process and its command line do not set training.sequence_length"
    )
