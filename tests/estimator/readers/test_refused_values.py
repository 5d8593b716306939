"""Values that are there and make no sense are named with their place: not called absent, not replaced by a default."""

import json
from pathlib import Path

import pytest

from vramtop.estimator.readers.config_file import read_config_file
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

BATCH, LENGTH, STEPS = "training.micro_batch", "training.sequence_length", "training.gradient_accumulation"
STRATEGY, SHARD, COPIES = "parallel.strategy", "parallel.data_shard", "parallel.data_replicate"
SCRIPT = """
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained("gpt2")
Trainer(model=model, args=args, train_dataset=None).train()
"""


def read_line(folder: Path, line: str, **environ: str) -> JobReading:
    (folder / "train.py").write_text(SCRIPT)
    return read_launch(line.split(" "), environ=environ, cwd=folder)


def check(reading: JobReading, key: str, sentence: str | None) -> None:
    """Check that a key is missing for this reason, and no other value is taken for it; None: that it is found."""
    if sentence is None:
        assert key not in reading.missing
        assert reading.value(key) is not None
        return
    assert reading.refused[key] == sentence
    assert key in reading.missing
    assert reading.value(key) is None
    assert f"{sentence}." in reading.warnings
    assert not reading.still_missing(dict.fromkeys(reading.missing, 1))


@pytest.mark.parametrize("value", ["-1", "0", "nan", "inf", "two", "true", "null", "2147483648", "1.5", ""])
@pytest.mark.parametrize(
    ("flag", "key", "what"),
    [
        ("--per_device_train_batch_size", BATCH, "batch size"),
        ("--max_seq_length", LENGTH, "sequence length"),
        ("--gradient_accumulation_steps", STEPS, "number of accumulation steps"),
    ],
)
def test_numbers_on_the_command_line(tmp_path: Path, flag: str, key: str, what: str, value: str) -> None:
    if value in ("null", "") and key != BATCH:  # these mean that it is not set
        return
    reading = read_line(tmp_path, f"python train.py {flag} {value}")
    check(reading, key, f"{flag} on the command line is {value or repr(value)}, which is not a valid {what}")


@pytest.mark.parametrize(("value", "number"), [("4", 4), (" 4 ", 4), ("4.0", 4), ("1e3", 1000), ("1_0", 10)])
def test_spellings_of_whole_numbers_are_taken(tmp_path: Path, value: str, number: int) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    reading = read_launch(["python", "train.py", "--per_device_train_batch_size", value], environ={}, cwd=tmp_path)
    assert reading.value(BATCH) == number


FACTORY = "model_name_or_path: gpt2\nstage: sft\nfinetuning_type: lora\ntemplate: x\n"
TUNE = "model: {_component_: torchtune.models.llama3.llama3_8b}\n"
MEGATRON = "num-layers: 2\nhidden-size: 64\nnum-attention-heads: 4\n"


@pytest.mark.parametrize(
    ("text", "key", "wrong", "what"),
    [
        ("base_model: gpt2\nmicro_batch_size: two", BATCH, "micro_batch_size is two", "batch size"),
        ("base_model: gpt2\nmicro_batch_size: [1, 2]", BATCH, "micro_batch_size is [1, 2]", "batch size"),
        ("base_model: gpt2\nsequence_len: many", LENGTH, "sequence_len is many", "sequence length"),
        (f"{FACTORY}lora_rank: 0", "lora.rank", "lora_rank is 0", "rank of adapters"),
        (f"{FACTORY}per_device_train_batch_size: null", BATCH, "per_device_train_batch_size is null", "batch size"),
        (f"{TUNE}batch_size: .nan", BATCH, "batch_size is nan", "batch size"),
        (f"{MEGATRON}micro-batch-size: true", BATCH, "micro-batch-size is true", "batch size"),
        (
            f"{MEGATRON}micro-batch-size: 1\nglobal-batch-size: -8",
            STEPS,
            "global-batch-size is -8",
            "batch size of all ranks",
        ),
        ("checkpoint_dir: x\ntrain: {micro_batch_size: 0}", BATCH, "train.micro_batch_size is 0", "batch size"),
        ("checkpoint_dir: x\ndevices: two\ntrain: {}", SHARD, "devices is two", "number of devices"),
    ],
)
def test_numbers_in_tools_files(tmp_path: Path, text: str, key: str, wrong: str, what: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    check(read_config_file(file, environ={}), key, f"job.yaml: {wrong}, which is not a valid {what}")


def test_numbers_in_torchtitans_file(tmp_path: Path) -> None:
    file = tmp_path / "titan.toml"
    file.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 0\nglobal_batch_size = -1\n'
        "[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 0\n"
    )
    reading = read_config_file(file, environ={})
    check(reading, BATCH, "titan.toml: training.local_batch_size is 0, which is not a valid batch size")
    name = "titan.toml: parallelism.tensor_parallel_degree"
    check(reading, "parallel.tensor", f"{name} is 0, which is not a valid number of tensor ranks")
    assert SHARD not in reading.refused  # -1 leaves it to torchtitan
    assert STEPS not in reading.refused


@pytest.mark.parametrize(
    ("stage", "named"),
    [
        (99, "99"),
        (-1, "-1"),
        ("auto", "auto"),
        (True, "true"),
        ("x", "x"),
        (1.5, "1.5"),
        (3, None),
        ("3 ", None),
        (1.0, None),
        (0, None),
        ("0", None),
    ],
)
def test_stages_of_zero(tmp_path: Path, stage: object, named: str | None) -> None:
    what = "which is not a valid stage of ZeRO (0 to 3)"
    config = {"zero_optimization": {"stage": stage}, "train_micro_batch_size_per_gpu": 2}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    reading = read_line(tmp_path, "torchrun --nproc-per-node 8 train.py --deepspeed ds.json")
    check(reading, STRATEGY, named and f"ds.json: zero_optimization.stage is {named}, {what}")
    if isinstance(stage, bool):
        return
    (tmp_path / "acc.yaml").write_text(
        json.dumps({"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": stage}})
    )
    reading = read_line(tmp_path, "accelerate launch --config_file acc.yaml --num_processes 8 train.py")
    check(reading, STRATEGY, named and f"acc.yaml: deepspeed_config.zero_stage is {named}, {what}")
    word = str(stage).strip()
    reading = read_line(tmp_path, f"accelerate launch --use_deepspeed --zero_stage={word} --num_processes 8 train.py")
    check(reading, STRATEGY, named and f"--zero_stage of accelerate is {word}, {what}")
    environ = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": word, "RANK": "0"}
    reading = read_line(tmp_path, "python train.py", WORLD_SIZE="8", **environ)
    check(reading, STRATEGY, named and f"ACCELERATE_DEEPSPEED_ZERO_STAGE in the environment is {word}, {what}")


RANKS = ", which is not a valid number of ranks"
MANY = ": 99,999,999 ranks on a machine are more GPUs than any machine has (at most 1,024)"
ENDLESS = "7,999,999,992 ranks are more GPUs than any cluster has (at most 1,048,576)"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("torchrun --nproc-per-node -1", f"--nproc-per-node of torchrun is -1{RANKS}"),
        ("torchrun --nproc-per-node two", f"--nproc-per-node of torchrun is two{RANKS}"),
        ("torchrun --nproc-per-node 99999999", f"--nproc-per-node of torchrun{MANY}"),
        (
            "torchrun --nproc-per-node 8 --nnodes 999999999",
            f"--nproc-per-node of torchrun times --nnodes of torchrun: {ENDLESS}",
        ),
        ("torchrun --nproc-per-node 8 --nnodes 1:0", f"--nnodes of torchrun is 1:0{RANKS}"),
        ("accelerate launch --num_processes abc", f"--num_processes of accelerate is abc{RANKS}"),
        ("deepspeed --num_gpus 8 --num_nodes zero", f"--num_nodes of deepspeed is zero{RANKS}"),
    ],
)
def test_numbers_of_ranks(tmp_path: Path, line: str, sentence: str) -> None:
    check(read_line(tmp_path, f"{line} train.py"), COPIES, sentence)


@pytest.mark.parametrize("value", ["abc", "0", "-5", "1.5"])
def test_numbers_of_ranks_in_the_environment(tmp_path: Path, value: str) -> None:
    for rank in ({}, {"RANK": "0"}):
        reading = read_line(tmp_path, "python train.py", WORLD_SIZE=value, **rank)
        check(reading, COPIES, f"WORLD_SIZE in the environment is {value}{RANKS}")


def test_empty_variables_are_not_set(tmp_path: Path) -> None:
    reading = read_line(tmp_path, "python train.py", WORLD_SIZE="", ACCELERATE_DEEPSPEED_ZERO_STAGE=" ")
    assert reading.refused == {}
    assert COPIES not in reading.missing


def test_what_the_user_gives_needs_no_warning(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    line = ["python", "train.py", "--per_device_train_batch_size", "-1", "--optim", "own_optimizer"]
    assert len(read_launch(line, environ={}, cwd=tmp_path).warnings) == 2
    given = {BATCH: 2, "training.optimizer": "sgd"}
    reading = read_launch(line, environ={}, cwd=tmp_path, given=given)
    assert (reading.warnings, reading.refused) == ((), {})
    assert reading.job(given).training.micro_batch == 2


FILES = {
    "axolotl": "base_model: gpt2\nmicro_batch_size: null\ngradient_accumulation_steps: 2\nsequence_len: 128\n"
    "datasets: [{path: x, type: alpaca}]\n",
    "llamafactory": "model_name_or_path: gpt2\nstage: sft\nfinetuning_type: full\nper_device_train_batch_size: null\n"
    "cutoff_len: 128\ntemplate: default\n",
    "litgpt": "checkpoint_dir: checkpoints/openai-community/gpt2\n"
    "train: {global_batch_size: 4, micro_batch_size: null, max_seq_length: 128}\nprecision: bf16-true\n",
}


@pytest.mark.parametrize("tool", FILES)
def test_null_in_a_tools_file_is_named_and_the_batch_is_asked_for(tool: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(FILES[tool])
    reading = read_config_file(file, environ={})
    assert "training.micro_batch" in reading.missing
    assert "run.yaml" in reading.refused["training.micro_batch"]
    file.write_text(FILES[tool].replace("batch_size: null", "batch_size: 3"))
    assert read_config_file(file, environ={}).value("training.micro_batch") == 3
