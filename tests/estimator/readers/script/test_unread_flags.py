"""Flags on the command line that the script was not seen to read are no proof of its defaults."""

from pathlib import Path

from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading


def read(folder: Path, text: str, *flags: str) -> JobReading:
    (folder / "train.py").write_text(text)
    line = ["torchrun", "--nproc_per_node", "1", "train.py", *flags]
    return read_launch(line, environ={}, cwd=folder, versions={})


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
