"""What a program's own code decides: counted where the source says it, in doubt where it does not, plain otherwise."""

from pathlib import Path

import pytest

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


def read(folder: Path, text: str, *arguments: str) -> JobReading:
    (folder / "train.py").write_text(HEAD + text)
    return read_launch(["python", "train.py", *arguments], environ={}, cwd=folder)


def unsure(reading: JobReading) -> bool:
    return bool(reading.uncertainties)


TWICE = "loss = model(batch['good']).logits.sum() - model(batch['bad']).logits.sum()"
WITHOUT = "with torch.no_grad():\n        before = model(batch['x']).logits\n    loss = model(**batch).loss"


@pytest.mark.parametrize(
    ("step", "sequences", "is_open"),
    [
        ("loss = model(**batch).loss", None, False),
        (TWICE, None, True),
        (WITHOUT, None, False),
        ("loss = 0\n    for part in batch['parts']:\n        loss = loss + model(**part).loss", None, True),
        ("for part in batch['parts']:\n        loss = model(**part).loss\n        loss.backward()", None, False),
        ("loss = model(torch.cat((batch['chosen'], batch['rejected']), dim=0)).loss", None, True),
        ("loss = model(torch.cat((batch['chosen'], batch['rejected']), dim=1)).loss", None, True),
        ("x = batch['x'].repeat(4, 1)\n    loss = model(x).loss", None, True),
        ("x = batch['x'].to('cuda')\n    loss = model(x).loss", None, False),
        ("loss = model(**batch, output_attentions=True).loss", None, True),
        ("loss = model(**batch).loss\n    loss.backward(retain_graph=True)", None, True),
        (
            "loss = model(**batch).loss\n    torch.autograd.grad(loss, model.parameters(), create_graph=True)",
            None,
            True,
        ),
        ("loss = torch.cat((batch['chosen_reward'], batch['rejected_reward'])) + model(**batch).loss", None, False),
    ],
)
def test_the_sequences_of_an_own_loop_are_counted(
    tmp_path: Path, step: str, sequences: int | None, is_open: bool
) -> None:
    reading = read(tmp_path, LOOP.format(step=step))
    assert reading.value("training.sequences_per_example") == sequences
    assert unsure(reading) is is_open


@pytest.mark.parametrize(("before", "doubted"), [("total.backward()", True), ("pass", False)])
def test_losses_that_are_added_up_before_one_backward_pass_are_doubted(
    tmp_path: Path, before: str, doubted: bool
) -> None:
    text = f"""
optimizer = torch.optim.AdamW(model.parameters())
for i, batch in enumerate(DataLoader([1], batch_size=4)):
    total = total + model(**batch).loss
    if i % 4 == 3:
        {before}
        optimizer.step()
"""
    assert any("backward pass of several batches" in each for each in read(tmp_path, text).warnings) == doubted


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
    assert unsure(reading)


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
