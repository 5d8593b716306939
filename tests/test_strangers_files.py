"""Files of strangers are read and never run: each of these would leave a mark if any of its code ran."""

import json
import os
import pickle
from pathlib import Path

import pytest

from vramtop.tui.cli.main import main

SCRIPT = """
import os, helper
open({mark!r}, "w").write("the script ran")
os.system("touch {mark}")
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("gpt2", **eval("open({mark!r}, 'w') and {{}}"))
Trainer(model, TrainingArguments("out", per_device_train_batch_size=2), max_length=512).train()
"""
YAML = """
base_model: gpt2
sequence_len: 512
micro_batch_size: !!python/object/apply:os.system ["touch {mark}"]
adapter: lora
"""
CONFIG = {
    "model_type": "stranger",
    "architectures": ["Stranger"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "intermediate_size": 128,
    "auto_map": {"AutoConfig": "code.StrangerConfig", "AutoModelForCausalLM": "code.Stranger"},
}


class Touches:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a stranger, which is the current one, and the file that appears if anything in it runs."""
    folder, mark = tmp_path / "strangers", tmp_path / "mark"
    (folder / "model").mkdir(parents=True)
    touch = f"open({str(mark)!r}, 'w').write(__name__)\n"
    for name in ("helper", "model/code"):
        (folder / f"{name}.py").write_text(touch)
    script = SCRIPT.format(mark=str(mark))
    (folder / "train.py").write_text(script)
    (folder / "config.yaml").write_text(YAML.format(mark=mark))
    cells = [f"!touch {mark}\n", f"%run helper.py\n{script}"]
    notebook = {
        "cells": [
            {"cell_type": "code", "source": cell, "metadata": {}, "outputs": [], "execution_count": at}
            for at, cell in enumerate(cells, 1)
        ],
        "metadata": {"kernelspec": {"language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (folder / "train.ipynb").write_text(json.dumps(notebook))
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG))
    (folder / "snapshot.pickle").write_bytes(pickle.dumps({"segments": [Touches(mark)]}))
    monkeypatch.chdir(folder)
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return mark


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("estimate --method formula -- python train.py", 0),
        ("estimate --method formula train.ipynb", 0),
        ("fit --gpu-type h100 -- axolotl train config.yaml", 2),
        ("estimate --method formula ./model", 0),
        ("explain snapshot.pickle", 2),
    ],
)
def test_nothing_in_a_file_runs(command: str, code: int, mark: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == code, capsys.readouterr().err
    assert not mark.exists()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", "traced"])
def test_the_worker_does_not_run_it_either(method: str, mark: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "./model", "--method", method]) == 3
    assert "comes with its own code" in capsys.readouterr().err
    assert not mark.exists()
