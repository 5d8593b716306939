"""Device maps of scripts: ``from_pretrained(..., device_map=..., max_memory=...)`` in one process."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.readers.launch_line import read_launch

SCRIPT = """
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained(
    "org/model",
    quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16),
    ARGUMENTS
)
config = SFTConfig(output_dir="out", max_length=512, per_device_train_batch_size=1)
SFTTrainer(model=model, args=config, peft_config=LoraConfig(target_modules="all-linear")).train()
"""


@pytest.mark.parametrize(
    ("arguments", "visible", "expected"),
    [
        ('device_map="auto"', "0,1", ("auto", 2, None)),
        ('device_map="balanced_low_0"', "4,5,6", ("balanced_low_0", 3, None)),
        ('device_map="auto"', "3", (None, None, None)),
        ('device_map="auto"', "", (None, None, None)),
        ('device_map={"": 0}', "0,1", (None, None, None)),
        ('device_map={"": torch.cuda.current_device()}', "0,1", (None, None, None)),
        ('device_map="cuda:0"', "0,1", (None, None, None)),
        (
            'device_map="auto", max_memory={0: "10GiB", 1: "20GiB", "cpu": "60GiB"}',
            "",
            ("auto", 2, {"0": "10GiB", "1": "20GiB", "cpu": "60GiB"}),
        ),
        (
            'device_map={"model.embed_tokens": 0, "model.layers": 1, "model.norm": 1, "lm_head": 0}',
            "0,1",
            ({"model.embed_tokens": 0, "model.layers": 1, "model.norm": 1, "lm_head": 0}, 2, None),
        ),
    ],
)
def test_device_maps_of_scripts(tmp_path: Path, arguments: str, visible: str, expected: tuple[Any, ...]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("ARGUMENTS", arguments))
    environ = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    reading = read_launch(shlex.split("python train.py"), environ=environ, cwd=tmp_path, versions={})
    keys = ("parallel.device_map", "parallel.pipeline", "parallel.max_memory")
    assert tuple(reading.value(key) for key in keys) == expected
    job = reading.job()
    assert job.lora is not None
    assert job.lora.quantization == "nf4"
    assert not [warning for warning in reading.warnings if "device_map" in warning or "max_memory" in warning]


def test_ranks_place_no_modules(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("ARGUMENTS", 'device_map="auto"'))
    line = "torchrun --nproc_per_node 2 train.py"
    reading = read_launch(shlex.split(line), environ={"CUDA_VISIBLE_DEVICES": "0,1"}, cwd=tmp_path, versions={})
    assert reading.value("parallel.device_map") is None


@pytest.mark.parametrize(
    ("arguments", "transformers", "splits"),
    [
        ("", "5.23", True),
        ('device_map={"": 0}', "5.23", True),
        ('device_map={"": int(os.environ.get("LOCAL_RANK") or 0)}', "5.23", True),
        ('device_map="cuda:0"', "5.23", True),
        ('device_map="cuda:1"', "5.23", False),
        ('device_map="auto"', "5.23", False),
        ("load_in_8bit=True", "4.40", False),
        ("load_in_4bit=True", "4.40", True),
        ("load_in_4bit=True", "5.23", False),
    ],
)
def test_one_process_may_wrap_its_model(tmp_path: Path, arguments: str, transformers: str, splits: bool) -> None:
    text = "import os\nfrom transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
    text += f"model = AutoModelForCausalLM.from_pretrained('gpt2', {arguments})\n"
    text += "Trainer(model=model, args=TrainingArguments('o')).train()\n"
    (tmp_path / "train.py").write_text(text)
    versions = {"transformers": transformers}
    reading = read_launch(["python", "train.py"], environ={}, cwd=tmp_path, versions=versions)
    assert reading.splits_batches == splits


def test_adapters_of_unsloth_are_not_wrapped(tmp_path: Path) -> None:
    text = "from trl import SFTTrainer\nfrom unsloth import FastModel\n"
    text += "model, tokenizer = FastModel.from_pretrained('gpt2', load_in_4bit=False)\n"
    text += "model = FastModel.get_peft_model(model, r=4)\nSFTTrainer(model=model).train()\n"
    (tmp_path / "train.py").write_text(text)
    assert not read_launch(["python", "train.py"], environ={}, cwd=tmp_path, versions={}).splits_batches
