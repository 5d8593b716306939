"""What the Trainer saves under FSDP and ZeRO 3, as its arguments and accelerate's and DeepSpeed's settings say."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.readers.launch_line import read_launch

SCRIPT = """
from transformers import HfArgumentParser, Trainer, TrainingArguments

(args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
Trainer(model=model, args=args).train()
"""


@pytest.mark.parametrize(
    ("flags", "zero", "expected"),
    [
        ("--fsdp full_shard", None, ("full", True)),
        ("--fsdp full_shard --save_only_model", None, ("full", False)),
        ("--fsdp full_shard --save_strategy no", None, (None, None)),
        ('--fsdp full_shard --fsdp_config \'{"state_dict_type": "SHARDED_STATE_DICT"}\'', None, ("sharded", True)),
        ("--fsdp full_shard --fsdp_config '{\"version\": 2}'", None, ("sharded", True)),
        (
            '--fsdp full_shard --fsdp_config \'{"version": 2, "state_dict_type": "FULL_STATE_DICT"}\'',
            None,
            ("full", True),
        ),
        ("--deepspeed ds.json", {"stage": 3}, ("sharded", True)),
        ("--deepspeed ds.json", {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}, ("full", True)),
        ("--deepspeed ds.json", {"stage": 2}, (None, None)),
        ("", None, (None, None)),
    ],
)
def test_saving_of_the_trainer(tmp_path: Path, flags: str, zero: dict[str, Any] | None, expected: Any) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": zero, "bf16": {"enabled": True}}))
    line = f"torchrun --nproc_per_node 4 train.py --output_dir out --bf16 {flags}"
    reading = read_launch(shlex.split(line), environ={}, cwd=tmp_path, versions={"transformers": "4.57.0"})
    assert (reading.value("saving.weights"), reading.value("saving.optimizer")) == expected
    assert not [warning for warning in reading.warnings if "state_dict" in warning or "gather" in warning]
