"""What a program's own code decides: counted where the source says it, in doubt where it does not, plain otherwise."""

from pathlib import Path

import pytest
from reading import read_script

from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoModel, AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B', torch_dtype=torch.bfloat16)
args = TrainingArguments('x', per_device_train_batch_size=4, bf16=True)
max_length = 512
"""
LOOP = """
optimizer = torch.optim.AdamW(model.parameters())
for batch in DataLoader([1], batch_size=4):
    {step}
    loss.backward()
    optimizer.step()
"""


def read(folder: Path, text: str) -> JobReading:
    return read_script(folder, HEAD + text)


CUTS = ("--max_source_length", "100", "--max_target_length", "28")


@pytest.mark.parametrize(
    ("name", "length"), [("AutoModelForSequenceClassification", 128), ("AutoModelForSeq2SeqLM", 100)]
)
def test_a_classifier_reads_source_and_target_as_one(tmp_path: Path, name: str, length: int) -> None:
    text = (
        f"from transformers import {name}\nmodel = {name}.from_pretrained('x')\nTrainer(model=model, args=args).train()"
    )
    (tmp_path / "train.py").write_text(HEAD.replace("max_length = 512", "from elsewhere import options") + text)
    reading = read_launch(["python", "train.py", *CUTS], environ={}, cwd=tmp_path)
    assert reading.value("training.sequence_length") == length
    assert any("assumed to form one sequence" in each for each in reading.warnings) == (length == 128)


@pytest.mark.parametrize(("mark", "pinned"), [("README.md", True), ("notes.txt", False)])
def test_requirements_of_the_folder_above_pin_versions(tmp_path: Path, mark: str, pinned: bool) -> None:
    (tmp_path / mark).write_text("x")
    (tmp_path / "requirements.txt").write_text("transformers==4.37.2\n")
    (tmp_path / "code").mkdir()
    reading = read(tmp_path / "code", LOOP.format(step="loss = model(**batch).loss"))
    assert (reading.value("software.transformers") == "4.37.2") == pinned


HOOKED = """
def hook(p):
    each[p].step()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(hook)
for batch in DataLoader([1], batch_size=4):
    model(**batch).loss.backward()
"""


def test_a_hook_on_gradients_is_not_followed(tmp_path: Path) -> None:
    reading = read(tmp_path, HOOKED)
    assert any("before the training is not read" in each for each in reading.warnings)
    assert reading.uncertainties
