"""Commands name a setting that makes no sense, with its place; absurd sizes are one sentence."""

from pathlib import Path

import pytest
from builders import NoDriver
from command_line import vramtop
from json_schemas import valid_json

SCRIPT = "print('ready', flush=True)\ninput()\n"
WRONG = "--per_device_train_batch_size on the command line is -1, which is not a valid batch size"


@pytest.fixture
def script(in_folder: Path) -> str:
    (in_folder / "train.py").write_text(SCRIPT)
    return "train.py"


@pytest.fixture
def training(start_script) -> int:
    """The pid of a program with a senseless batch size."""
    return start_script("--model_name_or_path", "gpt2", "--per_device_train_batch_size", "-1").pid


def test_fit_names_a_senseless_setting_of_a_launch_line(script: str) -> None:
    line = ["--", "python", script, "--model_name_or_path", "gpt2", "--max_seq_length", "64"]
    given = ["fit", "--method", "formula", "--gpu-type", "h100-80gb"]
    advice = "correct it, or give it before the --, with --set training.micro_batch=1"
    said = vramtop(*given, *line, "--per_device_train_batch_size", "-1", code=2)
    assert said.err == f"vramtop: {WRONG}; {advice}\n"
    vramtop(*given, "--set", "training.micro_batch=2", *line, "--per_device_train_batch_size", "-1", code=0)


@pytest.mark.parametrize(
    "text", ["1048577", "11111111111111", "1" * 5000, "0", "-1", "two"], ids=lambda text: text[:20]
)
def test_absurd_numbers_of_gpus_are_one_sentence(text: str) -> None:
    err = vramtop("fit", "gpt2", "--gpu-type", "h100-80gb", "--gpus", text, code=2).err
    assert err.startswith("vramtop fit: --gpus:")


def test_attach_names_a_senseless_setting(training: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramtop.tui.cli.commands.attach.NvmlSource", NoDriver)
    text = " ".join(vramtop("attach", str(training), code=3).out.split())
    assert f"wrong: {WRONG}; give it with --set training.micro_batch=VALUE" in text
    assert "missing: training.micro_batch" not in text
    captured = vramtop("attach", str(training), "--json", code=3)
    assert valid_json("attach", captured.out)["refused"] == {"training.micro_batch": WRONG}
    assert captured.err.startswith(
        f"vramtop: {WRONG}; the process and its command line do not set training.sequence_length"
    )
