import shlex
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.advice.setting_edits import edits_text, flag_edits, tool_edits
from vramtop.estimator.job.job import Job
from vramtop.estimator.readers.config_file import read_config_file, tool_of_file
from vramtop.estimator.readers.launch_line import read_launch, tool_of_line

MODEL = "meta-llama/Llama-3.1-8B"
HALVED = {"training.micro_batch": 2, "training.gradient_accumulation": 4}
FULL = {"training.activation_checkpointing": "full"}


def of_line(line: str, changes: dict[str, Any], tmp_path: Path) -> list[str]:
    argv = shlex.split(line)
    reading = read_launch(argv, environ={}, cwd=tmp_path)
    return [e.words for e in tool_edits(reading, reading.job(), changes, tool=tool_of_line(argv))]


def of_file(path: Path, text: str, changes: dict[str, Any]) -> list[str]:
    path.write_text(text)
    reading = read_config_file(path, environ={})
    return [e.words for e in tool_edits(reading, reading.job(), changes, tool=tool_of_file(path))]


TRL = (
    f"trl sft --model_name_or_path {MODEL} --per_device_train_batch_size 4 --gradient_accumulation_steps=2 "
    "--max-length 4096"
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (HALVED, ["--per_device_train_batch_size 4 -> 2", "--gradient_accumulation_steps 2 -> 4"]),
        ({"training.sequence_length": 2048}, ["--max-length 4096 -> 2048"]),
        ({"training.optimizer": "adamw-8bit"}, ["--optim adamw_bnb_8bit (new)"]),
        (
            {"lora.rank": 16, "lora.targets": "all-linear"},
            ["--use_peft (new)", "--lora_r 16 (new)", "--lora_target_modules all-linear (new)"],
        ),
        ({"parallel.reshard_after_forward": False}, ["parallel.reshard_after_forward: true -> false"]),
    ],
)
def test_flags_of_a_launch_line(changes: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    assert of_line(TRL, changes, tmp_path) == words


OWN_FLAGS = """import argparse
from transformers import Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, default=8)
args = parser.parse_args()
arguments = TrainingArguments("out", per_device_train_batch_size=args.bs, optim="adamw_torch")
Trainer(model, arguments).train()
"""


ALL_BY_FLAGS = OWN_FLAGS.replace('"out", ', "").replace(', optim="adamw_torch"', "")
OTHERS = "peft's LoraConfig(r=8), train.py line 6: gradient_checkpointing=True (new), optim='adamw' -> 'adamw_bnb_8bit'"
COLLATOR = """from transformers import DataCollatorForSeq2Seq, HfArgumentParser, Trainer, TrainingArguments
(arguments,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
collator = DataCollatorForSeq2Seq(tokenizer=tokenizer, label_pad_token_id=-100)
Trainer(model, arguments, data_collator=collator).train()
"""


@pytest.mark.parametrize(
    ("script", "flags", "changes", "words"),
    [
        (OWN_FLAGS, " --bs 4", {"training.optimizer": "adamw-8bit", "lora.rank": 8}, f"--bs 4 -> 2, {OTHERS}"),
        (OWN_FLAGS, "", {"training.optimizer": "adamw-8bit", "lora.rank": 8}, f"--bs 8 -> 2, {OTHERS}"),  # its default
        (ALL_BY_FLAGS, "", {}, "--bs 8 -> 2, train.py line 6: gradient_checkpointing=True (new)"),
        (
            COLLATOR,
            f" --output_dir o --model_name_or_path {MODEL} --per_device_train_batch_size 4",
            {},
            "--per_device_train_batch_size 4 -> 2, --gradient_checkpointing (new)",
        ),
    ],
)
def test_a_script_that_makes_its_arguments_has_flags_of_its_own(script, flags, changes, words, tmp_path) -> None:
    (tmp_path / "train.py").write_text(script)
    argv = f"python train.py{flags}".split()
    reading = read_launch(argv, environ={}, cwd=tmp_path)
    job = reading.job({"model.id": MODEL, "training.sequence_length": 64})
    found = tool_edits(reading, job, {"training.micro_batch": 2, **FULL, **changes}, tool=tool_of_line(argv))
    assert edits_text(found, ", ") == words


def test_deepspeeds_file_takes_no_arguments_of_the_trainers(tmp_path: Path) -> None:
    buckets = '"reduce_bucket_size": 1, "stage3_prefetch_bucket_size": 2, "sub_group_size": 3, "overlap_comm": true'
    (tmp_path / "ds.json").write_text(f'{{"zero_optimization": {{"stage": 3, {buckets}}}}}')
    change = {"training.optimizer": "adamw-8bit"}
    assert of_line(f"{TRL} --deepspeed ds.json", change, tmp_path) == ["--optim adamw_bnb_8bit (new)"]


def test_the_batch_of_preference_pairs_is_the_tools_own(tmp_path: Path) -> None:
    line = TRL.replace("trl sft", "trl dpo")
    assert of_line(line, {"training.micro_batch": 2}, tmp_path) == ["--per_device_train_batch_size 4 -> 2"]


def test_keys_of_other_tools_configuration_files(tmp_path: Path) -> None:
    axolotl = f"base_model: {MODEL}\nmicro_batch_size: 4\nsequence_len: 4096\ngradient_accumulation_steps: 2\n"
    assert of_file(tmp_path / "a.yaml", axolotl + "gradient_checkpointing: false\n", HALVED | FULL) == [
        "micro_batch_size: 4 -> 2",
        "gradient_accumulation_steps: 2 -> 4",
        "gradient_checkpointing: false -> true",
    ]
    factory = (
        f"model_name_or_path: {MODEL}\nstage: sft\ncutoff_len: 4096\nper_device_train_batch_size: 4\n"
        "finetuning_type: full\ndisable_gradient_checkpointing: true\n"
    )
    assert of_file(tmp_path / "f.yaml", factory, FULL | {"training.sequence_length": 2048}) == [
        "disable_gradient_checkpointing: true -> false",
        "cutoff_len: 4096 -> 2048",
    ]
    titan = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 4\nseq_len = 8192\n'
        '[activation_checkpoint]\nmode = "selective"\n[parallelism]\ndata_parallel_shard_degree = 8\n'
    )
    assert of_file(tmp_path / "t.toml", titan, HALVED | FULL | {"parallel.data_shard": 16}) == [
        "training.local_batch_size: 4 -> 2",
        "training.gradient_accumulation becomes 4 automatically: training.global_batch_size stays the same",
        "activation_checkpoint.mode: selective -> full",
        "parallelism.data_parallel_shard_degree: 8 -> 16",
    ]


def test_vramtop_flags() -> None:
    changes = {**HALVED, "software.torch": "2.4"}
    flags = {"training.micro_batch": "--micro-batch", "training.gradient_accumulation": "--gradient-accumulation"}
    edits = flag_edits(Job(), changes, flags)
    assert [e.words for e in edits] == ["--micro-batch 2", "--gradient-accumulation 4", "--set software.torch=2.4"]
    assert edits[0].old == "1"
