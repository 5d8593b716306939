"""Options that argparse accepts abbreviated are not counted: a doubt names what they may stand for."""

from functools import partial
from pathlib import Path

import pytest
from reading import read_line

from vramtop.estimator.readers.source.evidence import JobReading

_read = partial(read_line, versions={"transformers": "5.2.0", "trl": "1.16.0"})


def _warned(reading: JobReading, text: str) -> bool:
    return any(text in warning for warning in reading.warnings)


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
