"""Options that argparse accepts abbreviated are not counted: a doubt names what they may stand for."""

from functools import partial
from pathlib import Path

import pytest
from reading import read_line

from vramtop.estimator.readers.source.evidence import JobReading

_OWN = """\
import argparse
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
parser = argparse.ArgumentParser({options})
parser.add_argument("--micro-batch-size", dest="batch", type=int, default=2)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--model")
parser.add_argument("--model-length", type=int, default=64)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("gpt2")
sizes = dict(per_device_train_batch_size=args.batch, gradient_accumulation_steps=args.accumulate)
arguments = TrainingArguments("out", **sizes)
Trainer(model, arguments).train()
"""
_WITH_CLASSES = """\
from dataclasses import dataclass
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
@dataclass
class Mine:
    model_name_or_path: str = "gpt2"
    block_size: int = 512
mine, arguments = HfArgumentParser((Mine, TrainingArguments)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(mine.model_name_or_path)
Trainer(model, arguments).train()
"""


_read = partial(read_line, versions={"transformers": "5.2.0", "trl": "1.16.0"})


def _warned(reading: JobReading, text: str) -> bool:
    return any(text in warning for warning in reading.warnings)


def test_an_abbreviation_of_a_script_s_own_option(tmp_path: Path) -> None:
    reading = _read(tmp_path, "python train.py --micro-b 16 --acc=4", _OWN.format(options=""))
    assert _warned(reading, "--micro-b on the command line may stand for --micro_batch_size; it is not counted.")
    assert _warned(reading, "may stand for --accumulate")
    own = _OWN.format(options="").replace('"--model")', '"--dataset_config_name")')
    assert not _warned(
        _read(tmp_path, "python train.py --micro_batch_size 16 --dataset_config en", own), "may stand for"
    )
    assert reading.job().unsure.activations == "either"


def test_an_exact_name_is_no_abbreviation(tmp_path: Path) -> None:
    reading = _read(tmp_path, "python train.py --model x --micro_batch_size 3", _OWN.format(options=""))
    assert reading.value("training.micro_batch") == 3
    assert not _warned(reading, "may stand for")


def test_a_parser_that_allows_no_abbreviations(tmp_path: Path) -> None:
    reading = _read(tmp_path, "python train.py --micro-b 16", _OWN.format(options="allow_abbrev=False"))
    assert reading.value("training.micro_batch") == 2


def test_abbreviations_of_training_arguments(tmp_path: Path) -> None:
    line = "python train.py --per_device_train 4 --block 256 --model_name distilgpt2 --output_dir out"
    reading = _read(tmp_path, line, _WITH_CLASSES)
    for name in ("per_device_train_batch_size", "block_size", "model_name_or_path"):
        assert _warned(reading, f"may stand for --{name}; it is not counted.")


def test_an_ambiguous_abbreviation_is_not_counted(tmp_path: Path) -> None:
    reading = _read(tmp_path, "python train.py --per_device 4 --output_dir out", _WITH_CLASSES)
    assert reading.value("training.micro_batch") == 8
    assert _warned(reading, "--per_device on the command line may stand for --per_device_eval_batch_size or")
    assert reading.uncertainties


def test_a_name_that_counts_is_no_abbreviation(tmp_path: Path) -> None:
    reading = _read(tmp_path, "trl sft --model_name gpt2 --per_device_train_batch_size 3 --max_len 128 --lora_r 4")
    assert (reading.value("model.id"), reading.value("training.sequence_length")) == ("gpt2", 128)
    assert not _warned(reading, "may stand for")


@pytest.mark.parametrize("name", ["missing.py", "train.py"])
def test_options_of_a_script_that_is_not_known(tmp_path: Path, name: str) -> None:
    script = "from elsewhere import Arguments\nfrom transformers import HfArgumentParser, TrainingArguments\n"
    script += "a, b = HfArgumentParser((Arguments, TrainingArguments)).parse_args_into_dataclasses()\n"
    reading = _read(tmp_path, f"python {name} --model_name_or_path gpt2 --gradient_acc 8 --output_dir out", script)
    assert _warned(reading, "--gradient_acc on the command line may stand for --gradient_accumulation_steps")
    assert not _warned(_read(tmp_path, f"python {name} --model_name gpt2 --output_dir out", script), "may stand for")


def test_options_of_a_tool(tmp_path: Path) -> None:
    line = "llamafactory-cli train --model_name_or_path gpt2 --stage sft --cutoff_len 128 --per_device_train_b 4"
    assert _warned(_read(tmp_path, line), "may stand for --per_device_train_batch_size")
