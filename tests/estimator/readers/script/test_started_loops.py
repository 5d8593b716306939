"""Loops of a script's own, as they are started: processes, prepared models, and what is set on a model."""

from pathlib import Path

import pytest

from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

HEAD = """
import argparse, elsewhere, os, torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, HfArgumentParser, TrainingArguments
"""
LOAD = "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B', dtype=torch.bfloat16)\n"
LOOP = """
optimizer = torch.optim.AdamW(model.parameters())
for batch in DataLoader(elsewhere.data, batch_size={size}):
    model(**batch).loss.backward()
    optimizer.step()
"""
PYTHON = ("python", "train.py")
EIGHT = ("accelerate", "launch", "--num_processes", "8", "train.py")


def read(folder: Path, text: str, line: tuple[str, ...] = PYTHON) -> JobReading:
    (folder / "train.py").write_text(text)
    return read_launch(line, environ={}, cwd=folder, given={"training.keep_outputs": True})


def unsure(reading: JobReading) -> bool:
    return any(each.unless is None for each in reading.uncertainties)


@pytest.mark.parametrize("ranks", ["Accelerator().num_processes", "torch.distributed.get_world_size()"])
def test_the_number_of_processes_is_known_inside_the_script(tmp_path: Path, ranks: str) -> None:
    reading = read(tmp_path, HEAD + LOAD + LOOP.format(size=f"64 // {ranks}"), EIGHT)
    assert reading.value("training.micro_batch") == 8
    assert not reading.warnings


def test_the_first_argument_of_argparse_is_a_name(tmp_path: Path) -> None:
    parse = "parser = argparse.ArgumentParser('training')\nparser.add_argument('--size', type=int, default=4)\n"
    text = HEAD + parse + "args = parser.parse_args()\n" + LOAD + LOOP.format(size="args.size")
    assert read(tmp_path, text, (*PYTHON, "--size", "16")).value("training.micro_batch") == 16


@pytest.mark.parametrize(
    ("target", "value", "checkpointing", "is_open"),
    [
        ("model.model.gradient_checkpointing", "True", None, True),
        ("model.vision_tower.gradient_checkpointing", "True", None, True),
        ("model.is_parallelizable", "True", None, False),
    ],
)
def test_what_a_script_sets_on_a_model_counts_or_is_in_doubt(
    tmp_path: Path, target: str, value: str, checkpointing: str | None, is_open: bool
) -> None:
    reading = read(tmp_path, HEAD + LOAD + f"{target} = {value}\n" + LOOP.format(size=2))
    assert reading.value("training.activation_checkpointing") == checkpointing
    assert unsure(reading) is is_open


@pytest.mark.parametrize(
    ("loading", "precision", "checkpointing"), [("", "fp32", None), (", load_in_8bit=True", "bf16", "full")]
)
def test_kbit_preparation_checkpoints_only_a_quantized_model_and_casts_another_to_fp32(
    tmp_path: Path, loading: str, precision: str, checkpointing: str | None
) -> None:
    text = "from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training\n" + HEAD
    text += LOAD.replace(")", f"{loading})") + "model = prepare_model_for_kbit_training(model)\n"
    text += "model = get_peft_model(model, LoraConfig(r=8, target_modules=['q_proj']))\n"
    reading = read(tmp_path, text + LOOP.format(size=2))
    assert reading.value("training.precision") == precision
    assert reading.value("training.activation_checkpointing") == checkpointing


def test_deepspeeds_own_loader_has_the_configs_batch_and_not_that_of_a_test_loader(tmp_path: Path) -> None:
    config = "{'train_micro_batch_size_per_gpu': 6, 'optimizer': {'type': 'AdamW'}}"
    start = f"engine, _, loader, _ = deepspeed.initialize(model=model, training_data=elsewhere.data, config={config})\n"
    loop = "DataLoader(elsewhere.validation, batch_size=1)\nfor batch in loader:\n    engine(**batch).loss.backward()\n"
    reading = read(tmp_path, f"import deepspeed\n{HEAD}{LOAD}{start}{loop}", ("deepspeed", "train.py"))
    assert reading.value("training.micro_batch") == 6


@pytest.mark.parametrize("name", ["gradient_checkpointing_enable", "activation_checkpointing_enable"])
def test_checkpointing_by_either_name(tmp_path: Path, name: str) -> None:
    reading = read(tmp_path, HEAD + LOAD + f"model.{name}()\n" + LOOP.format(size=2))
    assert reading.value("training.activation_checkpointing") == "full"
    assert not unsure(reading)
