"""DeepSpeed's settings that memory depends on are counted, or named with the direction of their doubt."""

import json
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

OFFLOAD = {"offload_optimizer": {"device": "cpu"}}


def read(folder: Path, zero: dict[str, Any], *, model_first: bool = False, **sections: Any) -> JobReading:
    table = {"zero_optimization": {"stage": 3, **zero}, "bf16": {"enabled": True}, **sections}
    table["bf16"] = {"enabled": True, **sections.get("bf16", {})}
    (folder / "ds.json").write_text(json.dumps(table))
    lines = [
        "from transformers import *",
        "args = TrainingArguments(output_dir='o', per_device_train_batch_size=1, bf16=True, deepspeed='ds.json')",
        "model = AutoModelForCausalLM.from_pretrained('gpt2')",
        "Trainer(model=model, args=args).train()",
    ]
    lines[1:3] = reversed(lines[1:3]) if model_first else lines[1:3]
    (folder / "t.py").write_text("\n".join(lines))
    line = ["torchrun", "--nproc_per_node", "4", "t.py"]
    return read_launch(line, environ={}, cwd=folder, versions={"transformers": "5.23.0"})


@pytest.mark.parametrize(
    ("zero", "sections", "component", "direction"),
    [
        ({"zero_quantized_weights": True}, {}, "communication", "either"),
        ({"zero_quantized_gradients": True}, {}, "communication", "more"),
        ({"mics_shard_size": 2}, {}, "weights", "more"),
        ({"mics_shard_size": -1}, {}, "weights", "no"),
        ({"zenflow": {"topk_ratio": 0.1}}, {}, "optimizer", "more"),
        ({}, {"bf16": {"bf16_master_weights_and_grads": True}}, "optimizer", "less"),
        ({}, {"torch_autocast": {"enabled": True}}, "weights", "either"),
        ({}, {"compile": {"deepcompile": True}}, "activations", "either"),
        ({}, {"communication_data_type": "fp32"}, "communication", "more"),
        ({}, {"communication_data_type": "bf16"}, "communication", "no"),
        ({}, {"sequence_parallel_size": 2}, "activations", "less"),
        ({"round_robin_gradients": True}, {"gradient_clipping": 1.0}, "gradients", "no"),
    ],
)
def test_direction_of_doubt(
    tmp_path: Path, zero: dict[str, Any], sections: dict[str, Any], component: str, direction: str
) -> None:
    reading = read(tmp_path, zero, **sections)
    assert getattr(reading.job().unsure, component) == direction
    assert bool(reading.warnings) == (direction != "no")


def test_a_share_of_the_optimizer_may_be_offloaded(tmp_path: Path) -> None:
    assert read(tmp_path, OFFLOAD).value("parallel.cpu_offload") == "optimizer"
    partly = read(tmp_path, {"offload_optimizer": {"device": "cpu", "ratio": 0.3}})
    assert partly.value("parallel.cpu_offload") is None
    assert partly.job().unsure.optimizer == "less"


@pytest.mark.parametrize(("stage", "direction"), [(3, "more"), (2, "no")])
def test_a_model_that_is_loaded_before_the_arguments_is_whole_on_each_gpu(
    tmp_path: Path, stage: int, direction: str
) -> None:
    reading = read(tmp_path, {"stage": stage}, model_first=True)
    assert reading.job().unsure.communication == direction
    assert any("each process holds all of it in CPU RAM" in each for each in reading.warnings) == (stage == 3)
