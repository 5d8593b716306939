"""The command line takes precedence over files, files over the environment, and all of them over defaults."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

Read = Callable[..., JobReading]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a function that reads a launch line beside files with given texts, and an empty script."""
    (tmp_path / "t.py").touch()

    def read_line(line: str, files: dict[str, str] | None = None, **environ: str) -> JobReading:
        for name, text in (files or {}).items():
            (tmp_path / name).write_text(text)
        return read_launch(shlex.split(line), environ=environ, cwd=tmp_path, versions={"transformers": "5.2.0"})

    return read_line


AXOLOTL = """
base_model: org/model
micro_batch_size: 1
sequence_len: 512
bf16: true
fsdp_version: 2
fsdp_config: {offload_params: false, reshard_after_forward: true}
"""
FACTORY = "model_name_or_path: org/model\nstage: sft\ncutoff_len: 512\nper_device_train_batch_size: 1\nbf16: true\n"
SWIFT = "model: org/model\ntuner_type: lora\nmax_length: 512\nper_device_train_batch_size: 1\ntorch_dtype: bfloat16\n"
TUNE = """
model: {_component_: torchtune.models.llama3_1.llama3_1_8b}
tokenizer: {max_seq_len: 512}
batch_size: 1
dtype: bf16
"""
TITAN = """
[job]
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 512
"""
AUTOMODEL = """
step_scheduler: {local_batch_size: 1, global_batch_size: 8}
model: {pretrained_model_name_or_path: org/model, torch_dtype: bfloat16}
dataset: {_target_: a.b, seq_length: 512}
distributed: {strategy: fsdp2, tp_size: 1}
"""
LITGPT = "checkpoint_dir: org/model\nprecision: bf16-true\ntrain: {micro_batch_size: 1, max_seq_length: 512}\n"
UNSLOTH = "model: org/model\ntraining: {batch_size: 1, max_seq_length: 512}\n"
MEGATRON = "pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 100 --seq-length 512"


@pytest.mark.parametrize(
    ("text", "plain", "overrides"),
    [
        (AXOLOTL, "axolotl train FILE", "--micro-batch-size=4 --sequence-len 1024"),
        (FACTORY, "llamafactory-cli train FILE", "per_device_train_batch_size=4 cutoff_len=1024"),
        (SWIFT, "swift sft FILE", "--per_device_train_batch_size 4 --max_length 1024"),
        (SWIFT, "swift sft --config FILE", "--per_device_train_batch_size 4 --max_length 1024"),
        (TUNE, "tune run full_finetune_single_device --config FILE", "batch_size=4 tokenizer.max_seq_len=1024"),
        (
            TITAN,
            "torchrun --nproc_per_node 2 -m torchtitan.train --job.config_file FILE",
            "--training.local_batch_size 4 --training.seq_len=1024",
        ),
        (AUTOMODEL, "automodel FILE", "--step_scheduler.local_batch_size=4 --dataset.seq_length 1024"),
        (LITGPT, "litgpt finetune_lora --config FILE", "--train.micro_batch_size 4 --train.max_seq_length=1024"),
        (UNSLOTH, "unsloth train --config FILE", "--batch-size 4 --max-seq-length 1024"),
        ("", f"{MEGATRON} --micro-batch-size 1", "--micro-batch-size 4 --seq-length 1024"),
        (
            "model_name_or_path: gpt2\n",
            "trl sft --config FILE --per_device_train_batch_size 1 --max_length 512",
            "--per_device_train_batch_size 4 --max_length=1024",
        ),
    ],
)
def test_overrides_take_precedence_over_the_file(read: Read, text: str, plain: str, overrides: str) -> None:
    name = "x.toml" if text == TITAN else "x.yaml"
    line = plain.replace("FILE", name)
    before, after = read(line, {name: text}), read(f"{line} {overrides}", {name: text})
    keys = ("training.micro_batch", "training.sequence_length")
    assert [before.value(key) for key in keys] == [1, 512]
    assert [after.value(key) for key in keys] == [4, 1024]
    assert "on the command line" in after.evidence()["training.micro_batch"]
    assert before.value("model.id") == after.value("model.id")
    untouched = {key: value for key, value in before.evidence().items() if key == "training.precision"}
    assert untouched.items() <= after.evidence().items()


def test_nested_overrides_of_axolotl(read: Read) -> None:
    line = "axolotl train x.yaml --fsdp-config__offload-params=true --fsdp_config__reshard_after_forward false"
    reading = read(line, {"x.yaml": AXOLOTL})
    assert reading.value("parallel.cpu_offload") == "all"
    assert reading.value("parallel.reshard_after_forward") is False


def test_nested_overrides_of_automodel(read: Read) -> None:
    reading = read("automodel x.yaml --nproc-per-node 8 --distributed.tp_size=2", {"x.yaml": AUTOMODEL})
    assert (reading.value("parallel.tensor"), reading.value("parallel.data_shard")) == (2, 4)


@pytest.mark.parametrize("text", [FACTORY, FACTORY.replace("cutoff_len: 512\n", "")])
def test_an_override_with_null_falls_back_to_the_default(read: Read, text: str) -> None:
    reading = read("llamafactory-cli train x.yaml cutoff_len=null", {"x.yaml": text})
    assert reading.value("training.sequence_length") == 2048


def test_flags_of_accelerate_take_precedence_over_its_file_and_that_over_the_environment(read: Read) -> None:
    file = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 2\nfsdp_config: {fsdp_version: 2}\n"
    line = "accelerate launch --config_file a.yaml FLAGS t.py --model_name_or_path org/model --dtype float32"
    environ = {"ACCELERATE_MIXED_PRECISION": "no"}
    plain = read(line.replace("FLAGS", ""), {"a.yaml": file}, **environ)
    flagged = read(line.replace("FLAGS", "--mixed_precision fp16 --num-processes=4"), {"a.yaml": file}, **environ)
    assert (plain.value("training.precision"), plain.value("parallel.data_shard")) == ("bf16-mixed", 2)
    assert (flagged.value("training.precision"), flagged.value("parallel.data_shard")) == ("fp16-mixed", 4)
    bare = read(
        "accelerate launch t.py --model_name_or_path org/model --dtype float32", ACCELERATE_MIXED_PRECISION="fp16"
    )
    assert bare.value("training.precision") == "fp16-mixed"


AUTO = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW"},
    "zero_optimization": {"stage": 2},
}


def test_weights_offloaded_without_the_optimizer_are_not_all_offloaded(read: Read) -> None:
    zero = {"stage": 3, "offload_param": {"device": "cpu"}}
    line = "deepspeed --num_gpus 2 t.py --deepspeed d.json --model_name_or_path gpt2 --per_device_train_batch_size 1"
    alone = read(line, {"d.json": json.dumps(AUTO | {"zero_optimization": zero})})
    both = read(
        line, {"d.json": json.dumps(AUTO | {"zero_optimization": zero | {"offload_optimizer": {"device": "cpu"}}})}
    )
    assert alone.value("parallel.cpu_offload") is None
    assert any("counted on the GPU" in warning for warning in alone.warnings)
    assert alone.job({"training.sequence_length": 8}).unsure.weights == "less"
    assert both.value("parallel.cpu_offload") == "all"
