"""Launch lines that run notebooks."""

import json
import shlex
from pathlib import Path

import pytest

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

TRAINS = """
from transformers import AutoModelForCausalLM, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", dtype="bfloat16")
args = TrainingArguments(output_dir="out", per_device_train_batch_size=BATCH)
"""


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    cells = [
        {"cell_type": "markdown", "source": "# Training"},
        {"cell_type": "code", "source": ["!pip install x\n", "max_length = 64"]},
        {"cell_type": "code", "source": TRAINS.replace("BATCH", "3")},
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4, "metadata": {}}))
    return tmp_path / "a.ipynb"


def read(line: str, folder: Path) -> JobReading:
    return read_launch(shlex.split(line), environ={}, cwd=folder, versions={"transformers": "5.2.0"})


@pytest.mark.parametrize(
    "line",
    [
        "jupyter nbconvert --to notebook --execute a.ipynb --output b.ipynb",
        "jupyter nbconvert --output b.ipynb --execute --to notebook a.ipynb",
        "jupyter-nbconvert --execute a.ipynb",
        "jupyter execute a.ipynb",
        "python -m nbconvert --execute a.ipynb",
        "python3 /venv/bin/papermill a.ipynb out.ipynb",
        "env X=1 papermill a.ipynb out.ipynb -k python3",
        "python a.ipynb",
    ],
)
def test_programs_that_run_notebooks(notebook: Path, line: str) -> None:
    reading = read(line, notebook.parent)
    assert (reading.value("model.id"), reading.value("training.micro_batch")) == ("Qwen/Qwen3-0.6B", 3)
    assert reading.evidence()["training.micro_batch"].startswith("a.ipynb cell 3 line 4: TrainingArguments")
    assert reading.value("training.sequence_length") == 64


@pytest.mark.parametrize("pins", ["trl==0.26.0", '"trl==0.26.0"', "-U x 'trl<0.27,>=0.20'"])
def test_versions_that_a_cell_installs(notebook: Path, pins: str) -> None:
    text = json.loads(notebook.read_text())
    text["cells"][1]["source"][0] = f"!pip install -q {pins}\n"
    notebook.write_text(json.dumps(text))
    reading = read("python a.ipynb", notebook.parent)
    assert str(reading.value("software.trl")).startswith("0.26")


def test_programs_that_run_none(notebook: Path) -> None:
    assert read("jupyter nbconvert --to html a.ipynb", notebook.parent).value("training.micro_batch") is None
    with pytest.raises(CannotTellError, match="was not found"):
        read("python -m ipykernel_launcher -f k.json", notebook.parent)
    with pytest.raises(InputError, match="starts no Python"):
        read("jupyter lab", notebook.parent)


def test_parameters_of_papermill(tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "source": TRAINS}]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4, "metadata": {}}))
    (tmp_path / "p.yaml").write_text("BATCH: 6\n")
    assert read("papermill a.ipynb b.ipynb -p BATCH 5", tmp_path).value("training.micro_batch") == 5
    assert read("papermill a.ipynb b.ipynb -f p.yaml", tmp_path).value("training.micro_batch") == 6


def test_a_notebook_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    reading = read("papermill a.ipynb b.ipynb", tmp_path)
    assert any("Could not read the notebook" in warning for warning in reading.warnings)
    assert "model.id" in reading.missing
