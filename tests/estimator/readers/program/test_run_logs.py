"""Settings in the files of a running program are read if this run has written them."""

import json
import os
import shlex
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

Read = Callable[..., JobReading]
PID = 4321


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a function that reads the command line of a process with pid 4321, started a minute ago."""

    def read_line(line: str, **more: Any) -> JobReading:
        known = {"environ": {}, "cwd": tmp_path, "pid": PID, "started_at": time.time() - 60}
        return read_launch(shlex.split(line), **{**known, "versions": {"transformers": "5.2.0"}, **more})

    return read_line


def event_file(path: Path, texts: dict[str, Any]) -> None:
    """Return TFRecords, each a text summary: length, checksum, tag and text between binary bytes, checksum."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = b""
    for tag, value in texts.items():
        data = b"\x09\x00\xff" + f"{tag}/text_summary".encode() + b"\x42\x17\x08" + json.dumps(value, indent=2).encode()
        records += struct.pack("<QI", len(data), 0) + data + struct.pack("<I", 0)
    path.write_bytes(records)


ARGUMENTS = {"per_device_train_batch_size": 6, "gradient_accumulation_steps": 3, "optim": "adafactor", "bf16": False}


def test_a_tensorboard_event_file_gives_arguments_and_model(read: Read, tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "dtype": "bfloat16"}
    event_file(
        tmp_path / "out" / "runs" / "Nov20" / f"events.out.tfevents.1.host.{PID}.0",
        {"args": ARGUMENTS, "model_config": config},
    )
    reading = read("python train.py --output_dir out")
    job = reading.job({"training.sequence_length": 8})
    assert (job.training.micro_batch, job.training.gradient_accumulation, job.training.optimizer) == (6, 3, "adafactor")
    assert job.model.config == config
    assert reading.missing == ("training.sequence_length",)
    assert reading.evidence()["training.micro_batch"].startswith("TensorBoard's events.out.tfevents.1.host.4321.0")


@pytest.mark.parametrize(
    ("name", "age"), [(f"events.out.tfevents.1.host.{PID + 1}.0", 0), (f"events.out.tfevents.1.host.{PID}.0", 3600)]
)
def test_files_of_another_run_are_ignored(read: Read, tmp_path: Path, name: str, age: float) -> None:
    event_file(tmp_path / "out" / name, {"args": ARGUMENTS})
    os.utime(tmp_path / "out" / name, (time.time() - age,) * 2)
    assert read("python train.py --output_dir out").value("training.micro_batch") == 8


def test_a_partly_written_file_is_ignored(read: Read, tmp_path: Path) -> None:
    path = tmp_path / "out" / f"events.out.tfevents.1.host.{PID}.0"
    event_file(path, {"args": ARGUMENTS})
    path.write_bytes(path.read_bytes()[:-40])
    assert read("python train.py --output_dir out").value("training.micro_batch") == 8


@pytest.mark.parametrize(("pid", "batch"), [(PID, 6), (PID + 1, 8)])
def test_a_wandb_log_gives_the_arguments_of_its_process(read: Read, tmp_path: Path, pid: int, batch: int) -> None:
    log = tmp_path / "wandb" / "run-1" / "logs" / "debug.log"
    log.parent.mkdir(parents=True)
    table = {**ARGUMENTS, "attention": None, "rope": (1, 2)}
    log.write_text(f"2026 INFO    MainThread:{pid} [wandb_run.py:_config_callback():1] config_cb None None {table!r}\n")
    assert read("python train.py --output_dir out").value("training.micro_batch") == batch


@pytest.mark.parametrize(
    "other", ["__import__('os').mkdir('made')", "{[]: 1}", "[" * 90_000], ids=["code", "list", "deep"]
)
def test_code_in_a_log_is_not_run(read: Read, tmp_path: Path, other: str) -> None:
    log = tmp_path / "wandb" / "run-1" / "logs" / "debug.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"x MainThread:{PID} [a] config_cb None None {{'per_device_train_batch_size': {other}}}\n")
    assert read("python train.py --output_dir out").value("training.micro_batch") == 8
    assert not (tmp_path / "made").exists()


def test_the_merged_configuration_of_torchtune_takes_precedence(read: Read, tmp_path: Path) -> None:
    text = "output_dir: out\nbatch_size: 2\nmodel: {_component_: torchtune.models.llama3_2.llama3_2_1b}\n"
    (tmp_path / "r.yaml").write_text(text)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "torchtune_config.yaml").write_text(text.replace("2\n", "9\n", 1))
    line = "python /s/recipes/full_finetune_single_device.py --config r.yaml"
    assert read(line).value("training.micro_batch") == 9
    assert read(line, started_at=None).value("training.micro_batch") == 2


def test_args_json_of_swift_takes_precedence(read: Read, tmp_path: Path) -> None:
    (tmp_path / "out" / "v0-2026").mkdir(parents=True)
    resolved = {"model": "org/model", "max_length": 4000, "per_device_train_batch_size": 5, "tuner_type": "lora"}
    (tmp_path / "out" / "v0-2026" / "args.json").write_text(json.dumps(resolved))
    reading = read("python /s/swift/cli/sft.py --model org/model --output_dir out")
    assert (reading.value("training.sequence_length"), reading.value("training.micro_batch")) == (4000, 5)


def test_the_log_of_axolotl_has_the_resolved_configuration(read: Read, tmp_path: Path) -> None:
    (tmp_path / "c.yml").write_text("base_model: org/model\noutput_dir: out\nsequence_len: 100\n")
    (tmp_path / "out").mkdir()
    resolved = {"base_model": "org/model", "sequence_len": 2222, "micro_batch_size": 3, "output_dir": "out"}
    (tmp_path / "out" / "debug.log").write_text(f"[INFO] config:\n{json.dumps(resolved, indent=2)}\nmore\n")
    reading = read("python -m axolotl.cli.train c.yml")
    assert (reading.value("training.sequence_length"), reading.value("training.micro_batch")) == (2222, 3)


def test_a_wandb_log_gives_model_and_adapters_too(read: Read, tmp_path: Path) -> None:
    log = tmp_path / "wandb" / "run-1" / "logs" / "debug.log"
    log.parent.mkdir(parents=True)
    model = {"model_type": "llama", "num_hidden_layers": 3, "dtype": "bfloat16"}
    adapters = {"default": {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj", "o_proj"]}}
    logged = {"peft_config": adapters, **model, "output_dir": "out", **ARGUMENTS}
    log.write_text(f"MainThread:{PID} [x] config_cb None None {logged!r}\n")
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    job = read("python train.py --model_name_or_path tiny").job()
    assert (job.model.id, job.model.config, job.training.precision) == (str(tmp_path / "tiny"), model, "bf16")
    assert job.lora is not None
    assert (job.lora.rank, job.lora.targets) == (4, ["q_proj", "o_proj"])


def test_an_event_file_is_found_even_if_only_the_script_knows_its_folder(read: Read, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("TrainingArguments(**settings())")
    name = f"events.out.tfevents.1.host.{PID}.0"
    event_file(tmp_path / "out" / "runs" / "Nov20" / name, {"args": ARGUMENTS})
    event_file(tmp_path / "old" / "runs" / "Nov19" / name, {"args": {**ARGUMENTS, "optim": "sgd"}})
    os.utime(tmp_path / "old" / "runs" / "Nov19" / name, (1, 1))
    reading = read("python train.py")
    assert (reading.value("training.micro_batch"), reading.value("training.optimizer")) == (6, "adafactor")
    assert all("was read, not run" in each for each in reading.warnings)
