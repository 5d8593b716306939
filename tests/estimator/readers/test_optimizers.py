"""Optimizers as tools and launch lines name them, with their options."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.estimation import estimate
from vramtop.estimator.readers.config_file import read_config_file
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

Read = Callable[[str], JobReading]
TRAINER = "python train.py --model_name_or_path gpt2 --per_device_train_batch_size 1 --max_length 128 --bf16 true"


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a function that reads the launch line of an empty script, with an empty environment."""
    (tmp_path / "train.py").touch()
    return lambda line: read_launch(shlex.split(line), environ={}, cwd=tmp_path, versions={"transformers": "5.2.0"})


def found(reading: JobReading) -> tuple[Any, Any]:
    return reading.value("training.optimizer"), reading.value("training.optimizer_options")


@pytest.mark.parametrize(
    ("flags", "row", "options"),
    [
        ("--optim sgd --optim_args momentum=0.9", "sgd-momentum", None),
        ("--optim sgd --optim_args momentum=0.9 --weight_decay 0.01", "sgd-momentum", {"weight_decay": True}),
        ("--optim rmsprop --optim_args 'momentum=0.9, centered=True'", "rmsprop", {"momentum": True, "centered": True}),
        ("--optim adamw_torch_8bit", "adamw-8bit-torchao", None),
        ("--optim lion_32bit", "lion-32bit", None),
        (
            "--optim galore_adamw --optim_args rank=64 --optim_target_modules all-linear",
            "galore-adamw",
            {"rank": 64, "targets": "all-linear"},
        ),
        ("--optim galore_adamw --optim_target_modules attn mlp", "galore-adamw", None),
    ],
)
def test_the_trainers_flags(read: Read, flags: str, row: str, options: dict[str, Any] | None) -> None:
    reading = read(f"{TRAINER} {flags}")
    assert found(reading) == (row, options)
    assert not [each for each in reading.warnings if "ptim" in each]
    estimate(reading.job())


def test_a_layerwise_optimizer_steps_in_the_backward_pass(read: Read) -> None:
    reading = read(f"{TRAINER} --optim galore_adamw_layerwise --optim_target_modules attn mlp")
    assert reading.value("training.optimizer_in_backward") is True
    assert reading.value("training.optimizer") == "galore-adamw"


def test_lomo_keeps_no_gradients(read: Read) -> None:
    budgets = [estimate(read(f"{TRAINER} --optim {name}").job()) for name in ("lomo", "sgd")]
    lomo, sgd = (each.phase("optimizer step") for each in budgets)
    assert lomo is not None
    assert sgd is not None
    embedding = 50257 * 768 * 4
    assert lomo.components.gradients == 2 * embedding < sgd.components.gradients


def test_targets_that_are_no_words_are_a_doubt(read: Read) -> None:
    reading = read(f"{TRAINER} --optim galore_adamw --optim_target_modules '(q|k)_proj[0-9]+'")
    assert found(reading) == ("galore-adamw", {"targets": "blocks"})
    assert reading.job().unsure.optimizer == "more"


@pytest.mark.parametrize(
    ("section", "row"),
    [
        ({"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}}, "adamw-fused"),
        ({"type": "AdamW", "params": {"torch_adam": True}}, "adamw"),
        ({"type": "Lion"}, "lion"),
        ({"type": "OneBitAdam"}, "onebit-adam"),
        ({"type": "Adagrad"}, "adagrad"),
        ({"type": "SGD", "params": {"momentum": 0.9}}, "sgd-momentum"),
        ({"type": "Muon"}, "muon"),
        ({"type": "Mystery"}, "torch.optim:Mystery"),
    ],
)
def test_deepspeed(read: Read, tmp_path: Path, section: dict[str, Any], row: str) -> None:
    table = {"optimizer": section, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    (tmp_path / "ds.json").write_text(json.dumps(table))
    reading = read(f"torchrun --nproc_per_node 2 {TRAINER[7:]} --deepspeed {tmp_path / 'ds.json'}")
    assert reading.value("training.optimizer") == row
    assert bool([each for each in reading.warnings if "Mystery" in each]) == ("Mystery" in row)


LLAMA_FACTORY = """
model_name_or_path: gpt2
stage: sft
do_train: true
finetuning_type: full
per_device_train_batch_size: 1
template: default
"""


@pytest.mark.parametrize(
    ("name", "optimizer"), [("badam", "less"), ("galore", "either"), ("apollo", "either"), ("adam_mini", "either")]
)
def test_a_switch_of_llama_factory_is_a_doubt(tmp_path: Path, name: str, optimizer: str) -> None:
    (tmp_path / "a.yaml").write_text(f"{LLAMA_FACTORY}use_{name}: true\n")
    reading = read_config_file(tmp_path / "a.yaml", environ={})
    assert (reading.job().unsure.optimizer, reading.job().unsure.gradients) == (optimizer, "less")


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("torchao.optim.AdamW8bit", "adamw-8bit-torchao"),
        ("bitsandbytes.optim.PagedAdamW8bit", "paged-adamw-8bit"),
        ("torch.optim.Adagrad", "adagrad"),
        ("some.module.Fancy", "unknown"),
    ],
)
def test_torchtune(tmp_path: Path, name: str, row: str) -> None:
    text = (
        f"model:\n  _component_: torchtune.models.llama3_1.llama3_1_8b\noptimizer:\n  _component_: {name}\n  lr: 1e-4\n"
    )
    (tmp_path / "a.yaml").write_text(text + "batch_size: 1\ntokenizer:\n  max_seq_len: 128\ndtype: bf16\n")
    assert read_config_file(tmp_path / "a.yaml", environ={}).value("training.optimizer") == row


SCRIPT = """
import argparse
import torch
from galore_torch import GaLoreAdafactor
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", default="adam")
parser.add_argument("--rank", type=int, default=128)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("gpt2")
if args.optimizer == "galore_adafactor":
    wanted = [p for n, p in model.named_parameters() if "mlp" in n]
    optimizer = GaLoreAdafactor([{"params": wanted, "rank": args.rank, "scale": 0.25}], lr=0.01)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for batch in range(10):
    loss = model(batch).loss
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--optimizer galore_adafactor --rank 32", ("galore-adafactor", {"rank": 32})),
        ("--optimizer galore_adafactor", ("galore-adafactor", None)),
        ("--optimizer lion", ("sgd-momentum", None)),
    ],
)
def test_a_scripts_own_option_means_what_the_script_makes_of_it(
    read: Read, tmp_path: Path, flags: str, expected: tuple[str, Any]
) -> None:
    (tmp_path / "own.py").write_text(SCRIPT)
    assert found(read(f"python own.py {flags}")) == expected


def test_a_scripts_own_class_is_not_torchs_of_the_same_name(read: Read, tmp_path: Path) -> None:
    own = "import torch\n\nclass AdamW(torch.optim.Optimizer):\n    def step(self):\n        pass\n"
    (tmp_path / "mine.py").write_text(own)
    script = SCRIPT.replace("import torch\n", "import torch\nfrom mine import AdamW\n", 1)
    (tmp_path / "own.py").write_text(script.replace("torch.optim.SGD(", "AdamW(").replace(", momentum=0.9", ""))
    reading = read("python own.py")
    assert reading.value("training.optimizer") == "unknown"
    assert [each for each in reading.warnings if "is not torch's AdamW" in each]


def test_a_class_that_derives_from_torchs_is_torchs(read: Read, tmp_path: Path) -> None:
    script = SCRIPT.replace("parser =", "class Mine(torch.optim.Adagrad):\n    pass\n\n\nparser =", 1)
    (tmp_path / "own.py").write_text(script.replace("torch.optim.SGD(", "Mine(").replace(", momentum=0.9", ""))
    assert read("python own.py").value("training.optimizer") == "adagrad"
