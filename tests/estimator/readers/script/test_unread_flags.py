"""Flags on the command line that the script never reads: they are named, and these options are not counted."""

from pathlib import Path

import pytest

from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

MODEL = "from transformers import *\nmodel = GPT2LMHeadModel(GPT2Config())\n"
ARGUMENTS = "args = TrainingArguments('o', per_device_train_batch_size=4)\n"
TRAIN = "Trainer(model=model, args=args, train_dataset=[]).train()\n"
LOOP = "import torch\ntorch.optim.AdamW(model.parameters()).step()\n"
PARSER = (
    "import argparse\nP = argparse.ArgumentParser()\nP.add_argument('--lr', type=float)\nA, _ = P.parse_known_args()\n"
)
README = (
    *("--model_name_or_path", "org/large", "--per_device_train_batch_size", "2", "--max_length", "900"),
    *("--use_peft", "--lora_r", "16", "--gradient_checkpointing", "--bf16"),
)


def read(folder: Path, text: str, *flags: str) -> JobReading:
    (folder / "train.py").write_text(text)
    line = ["torchrun", "--nproc_per_node", "1", "train.py", *(flags or README)]
    return read_launch(line, environ={}, cwd=folder, versions={})


def named(reading: JobReading) -> list[str]:
    return [each for each in reading.warnings if "does not read" in each]


@pytest.mark.parametrize("text", [MODEL + ARGUMENTS + TRAIN, MODEL + PARSER + ARGUMENTS + TRAIN, MODEL + LOOP])
def test_a_line_of_another_script_counts_for_nothing(tmp_path: Path, text: str) -> None:
    reading = read(tmp_path, text)
    assert named(reading) == [
        "train.py does not read --model_name_or_path, --per_device_train_batch_size, --max_length and 4 more; "
        "these options are not counted."
    ]
    assert reading.value("model.id") is None
    assert reading.value("model.config")["model_type"] == "gpt2"
    assert reading.value("training.micro_batch") == (4 if "Trainer" in text else None)
    assert reading.value("lora.rank") is None
    assert reading.value("training.sequence_length") is None
    assert reading.value("training.activation_checkpointing") != "full"


@pytest.mark.parametrize(
    "line",
    [
        "from elsewhere import anything",
        "import sys\nprint(sys.argv)",
        "from sys import argv\nprint(argv)",
        "import argparse\nparser = argparse.ArgumentParser()\nanything(parser)",
        "import argparse\nP = argparse.ArgumentParser()\nfor name in table():\n    P.add_argument('--' + name)",
        "exec(open('configurator.py').read())",
        "import fire\nfire.Fire(main)",
    ],
)
def test_nothing_is_said_where_something_else_may_read_the_line(tmp_path: Path, line: str) -> None:
    reading = read(tmp_path, f"{line}\n{MODEL}{ARGUMENTS}{TRAIN}")
    assert not named(reading)
    assert reading.value("training.sequence_length") == 900


FIRE = """import fire
from dataclasses import dataclass
from transformers import *
@dataclass
class Config:
    model_name: str = "gpt2"
    batch: int = 4
def main(**given):
    config = Config()
    for name, value in given.items():
        setattr(config, name, value)
    model = AutoModelForCausalLM.from_pretrained(config.model_name)
    args = TrainingArguments("o", per_device_train_batch_size=config.batch)
    Trainer(model=model, args=args, train_dataset=[]).train()
fire.Fire(main)
"""
REST = """import argparse
from transformers import *
P = argparse.ArgumentParser()
A, rest = P.parse_known_args()
table = {"name": "gpt2", "batch": 4}
for name, value in zip(rest[::2], rest[1::2]):
    table[name.partition(".")[2]] = value
model = AutoModelForCausalLM.from_pretrained("gpt2")
args = TrainingArguments("o", per_device_train_batch_size=4)
Trainer(model=model, args=args, train_dataset=[]).train()
"""


def test_a_flag_that_was_not_seen_to_be_read_is_no_proof_of_a_default(tmp_path: Path) -> None:
    reading = read(tmp_path, FIRE, "--model_name=gpt2-xl", "--batch=16")
    assert (reading.value("model.id"), reading.value("training.micro_batch")) != ("gpt2", 4)
    assert reading.value("model.id") in ("gpt2-xl", None)
    assert any("--batch on the command line does is not known" in each for each in reading.warnings)
    assert read(tmp_path, FIRE, "--other=1").value("model.id") == "gpt2"


def test_the_words_that_a_parser_leaves_may_name_the_model(tmp_path: Path) -> None:
    reading = read(tmp_path, REST, "--model.name", "gpt2-xl", "--training.per_device_train_batch_size", "16")
    assert "model.id" in reading.missing
    assert any("--model.name" in each and "another model was read" in each for each in reading.left_open)
    assert any("per_device_train_batch_size" in each and "not counted" in each for each in reading.warnings)
    assert read(tmp_path, REST, "--model.name", "gpt2").value("model.id") == "gpt2"
