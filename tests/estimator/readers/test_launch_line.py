"""Launch lines: what they start, with which settings, and what the Trainer saves."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.settings import Zero
from vramtop.estimator.readers.config_file import read_config_file
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

VERSIONS = {"transformers": "5.2.0", "trl": "1.16.0", "torch": "2.13.0"}
Read = Callable[..., JobReading]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a function that reads a launch line in an empty folder, with no environment and known versions."""

    def read_line(line: str, **more: Any) -> JobReading:
        return read_launch(shlex.split(line), **{"environ": {}, "cwd": tmp_path, "versions": VERSIONS, **more})

    return read_line


def found(reading: JobReading, *keys: str) -> tuple[Any, ...]:
    return tuple(reading.value(key) for key in keys)


def test_missing_settings_have_the_default_of_the_version(read: Read) -> None:
    reading = read("python run_clm.py --model_name_or_path gpt2 --output_dir out")
    batch = next(finding for finding in reading.findings if finding.key == "training.micro_batch")
    assert (batch.value, batch.written, batch.origin) == (8, False, "default of transformers 5.2.0")
    assert reading.missing == ("training.sequence_length",)


@pytest.mark.parametrize(
    ("versions", "precision"), [({"transformers": "5.2.0"}, "bf16"), ({"transformers": "4.57.1"}, "fp32")]
)
def test_weights_load_as_stored_since_transformers_5(read: Read, versions: dict[str, str], precision: str) -> None:
    reading = read("python run.py --model_name_or_path no/such-model --output_dir out", versions=versions)
    assert found(reading, "training.precision") == (precision,)


def test_a_config_without_a_dtype_means_an_fp32_checkpoint(read: Read, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text('{"model_type": "bert"}')
    reading = read("python run.py --model_name_or_path ./old --output_dir out")
    assert found(reading, "training.precision") == ("fp32",)


@pytest.mark.parametrize(
    ("flags", "value"),
    [("--gradient_checkpointing False", "none"), ("--no_gradient_checkpointing", "none"), ("", "full")],
)
def test_booleans_and_defaults_of_trl(read: Read, flags: str, value: str) -> None:
    assert found(read(f"trl sft --model_name_or_path gpt2 {flags}"), "training.activation_checkpointing") == (value,)


def test_a_user_fills_in_what_is_missing(read: Read) -> None:
    reading = read("python run_clm.py --model_name_or_path gpt2 --output_dir out")
    job = reading.job({"training.sequence_length": 256, "training.micro_batch": 2})
    assert (job.training.sequence_length, job.training.micro_batch) == (256, 2)
    assert reading.still_missing({"training.sequence_length": 256}) == ()
    with pytest.raises(InputError, match=r"micro_batch"):
        reading.job({"training.micro_batches": 2})


def test_torchrun_without_sharding_is_ddp(read: Read) -> None:
    reading = read("torchrun --standalone --nnodes=2 --nproc_per_node 4 train.py --model_name_or_path gpt2")
    assert found(reading, "parallel.strategy", "parallel.data_replicate") == ("ddp", 8)


def test_one_process_per_gpu_counts_the_visible_ones(read: Read) -> None:
    line = "torchrun --nproc-per-node gpu train.py --model_name_or_path gpt2"
    assert found(read(f"CUDA_VISIBLE_DEVICES=2,3,5 {line}"), "parallel.data_replicate") == (3,)
    assert read(line).one_per_gpu is not None
    assert read("deepspeed train.py --model_name_or_path gpt2").one_per_gpu is not None
    for sharded in ("accelerate launch --use_fsdp", "deepspeed", "deepspeed --num_nodes 2"):
        zero = ' --deepspeed \'{"zero_optimization": {"stage": 2}}\'' if "deepspeed" in sharded else ""
        assert "parallel.data_shard" in read(f"{sharded} train.py --model_name_or_path gpt2{zero}").missing


def test_the_cublas_workspace_size_is_read_from_the_environment(read: Read) -> None:
    line = "python run_clm.py --model_name_or_path gpt2 --output_dir out"
    assert found(read(f"CUBLAS_WORKSPACE_CONFIG=:4096:8 {line}"), "software.cublas_workspace") == (":4096:8",)
    assert found(read(line, environ={"CUBLAS_WORKSPACE_CONFIG": "odd"}), "software.cublas_workspace") == (None,)


def test_a_torchrun_worker_has_its_world_size(read: Read) -> None:
    environ = {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
    reading = read("python -u train.py --model_name_or_path gpt2 --fsdp true", environ=environ)
    assert found(reading, "parallel.strategy", "parallel.data_shard") == ("fsdp2", 16)
    assert reading.evidence()["parallel.data_shard"] == "WORLD_SIZE in the environment"


def test_accelerate_with_fsdp_in_a_file(read: Read, tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 2\n"
        "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n  fsdp_offload_params: true\n"
    )
    reading = read("accelerate launch --config_file two.yaml --num_processes 6 train.py --model_name_or_path gpt2")
    parallel = reading.job().parallel
    assert (parallel.strategy, parallel.data_shard, parallel.reshard_after_forward) == ("fsdp2", 6, False)
    assert (parallel.cpu_offload, parallel.reduce_dtype) == ("all", "bf16")
    assert reading.job().training.precision == "bf16-mixed"
    assert reading.evidence()["parallel.strategy"] == "two.yaml: fsdp_config.fsdp_version"
    assert reading.evidence()["parallel.data_shard"] == "--num_processes of accelerate"


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED"])
def test_a_flag_for_the_kind_of_accelerates_training_wins_over_its_file(read: Read, tmp_path: Path, kind: str) -> None:
    (tmp_path / "two.yaml").write_text(f"distributed_type: {kind}\nnum_processes: 2\n")
    line = "accelerate launch{} --config_file two.yaml train.py --model_name_or_path gpt2"
    assert found(read(line.format(" --multi_gpu")), "parallel.strategy", "parallel.data_replicate") == ("ddp", 2)
    assert read(line.format("")).value("parallel.strategy") != "ddp"


@pytest.mark.parametrize("sharding", ["--fsdp full_shard", "--deepspeed zero3.json"])
def test_accelerate_starts_a_process_per_gpu_so_that_sharding_asks_for_their_number(
    read: Read, tmp_path: Path, sharding: str
) -> None:
    (tmp_path / "zero3.json").write_text('{"zero_optimization": {"stage": 3}}')
    line = f"train.py --model_name_or_path gpt2 --per_device_train_batch_size 2 {sharding}"
    assert "parallel.data_shard" in read(f"accelerate launch {line}").missing
    assert read(f"accelerate launch {line}").value("parallel.data_shard") is None
    known = {"environ": {"CUDA_VISIBLE_DEVICES": "0,1,2"}}
    for reading, ranks in (
        (read(f"accelerate launch --num_processes 4 {line}"), 4),
        (read(f"accelerate launch {line}", **known), 3),
        (read(f"python {line}"), 1),
    ):
        assert reading.value("parallel.data_shard") == ranks
        assert "parallel.data_shard" not in reading.missing


def test_accelerate_without_sharding_counts_one_process_and_doubts_it(read: Read, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    line = "train.py --model_name_or_path gpt2 --per_device_train_batch_size 2 --output_dir out"
    reading = read(f"accelerate launch {line}")
    assert not {"parallel.data_shard", "parallel.data_replicate"} & set(reading.missing)
    assert any("one process per GPU" in each for each in reading.warnings)
    assert ("gradients", "more") in {(each.component, each.direction) for each in reading.uncertainties}
    for certain in (
        read(f"accelerate launch --num_processes 1 {line}"),
        read(f"accelerate launch --cpu {line}"),
        read(f"python {line}"),
    ):
        assert not any("one process per GPU" in each for each in certain.warnings)
        assert not certain.uncertainties


@pytest.mark.parametrize(
    ("file", "flags", "precision"),
    [
        ({}, "--bf16 True", "bf16-mixed"),
        ({}, "--fp16", "fp16-mixed"),
        ({}, "", "fp32"),
        ({"fp16": {"enabled": False}}, "--bf16 True", "bf16-mixed"),
        ({"bf16": {"enabled": False}}, "", "fp32"),
        ({"bf16": {"enabled": True}}, "", "bf16-mixed"),
        ({"bfloat16": {"enabled": True}}, "--bf16 True", "bf16-mixed"),
        ({"bfloat16": {"enabled": True}}, "", "fp32"),
    ],
)
def test_the_trainer_adds_the_precision_of_which_deepspeeds_file_says_nothing(
    read: Read, tmp_path: Path, file: dict[str, Any], flags: str, precision: str
) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 3}, **file}))
    line = "deepspeed --num_gpus 4 train.py --model_name_or_path gpt2 --torch_dtype float32 --output_dir out"
    reading = read(f"{line} --deepspeed ds.json {flags}")
    assert found(reading, "training.precision") == (precision,)
    assert not any("contradicts" in each for each in reading.warnings)


def test_a_precision_that_contradicts_deepspeeds_file_is_doubted(read: Read, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": false}}')
    line = "deepspeed --num_gpus 4 train.py --model_name_or_path gpt2 --torch_dtype float32 --output_dir out"
    reading = read(f"{line} --deepspeed ds.json --bf16 True")
    assert found(reading, "training.precision") == ("fp32",)
    assert any("--bf16 on the command line contradicts ds.json" in each for each in reading.warnings)
    assert {each.component for each in reading.uncertainties} >= {"weights", "gradients", "optimizer"}


@pytest.mark.parametrize(("name", "precision"), [("bf16", "bf16-mixed"), ("bfloat16", "bf16-mixed"), ("", "fp32")])
def test_deepspeeds_file_alone_decides_in_a_loop_of_its_own(
    read: Read, tmp_path: Path, name: str, precision: str
) -> None:
    config = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 2}
    config |= {name: {"enabled": True}} if name else {}
    (tmp_path / "train.py").write_text(
        "import argparse, deepspeed\nfrom transformers import AutoModelForCausalLM\n"
        "p = argparse.ArgumentParser()\np.add_argument('--bf16', action='store_true')\np.parse_args()\n"
        "model = AutoModelForCausalLM.from_pretrained('gpt2', torch_dtype='float32')\n"
        f"engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={config!r})\n"
        "engine.step()\n"
    )
    assert found(read("deepspeed --num_gpus 4 train.py --bf16"), "training.precision") == (precision,)


def test_the_sharding_strategy_of_fsdp1_is_ignored_for_fsdp2(read: Read) -> None:
    environ = {
        "RANK": "0",
        "WORLD_SIZE": "4",
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_SHARDING_STRATEGY": "FULL_SHARD",
        "FSDP_RESHARD_AFTER_FORWARD": "false",
    }
    parallel = read("python train.py --model_name_or_path gpt2", environ=environ).job().parallel
    assert (parallel.strategy, parallel.reshard_after_forward) == ("fsdp2", False)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("SHARD_GRAD_OP", ("fsdp1", "grad_op", 8, None)),
        ("2", ("fsdp1", "grad_op", 8, None)),
        ("HYBRID_SHARD", ("fsdp1", "hybrid", 4, 2)),
        ("HYBRID_SHARD_ZERO2", ("fsdp1", "hybrid_grad_op", 4, 2)),
        ("NO_SHARD", ("fsdp1", "none", None, 8)),
    ],
)
def test_sharding_strategies_of_fsdp1(read: Read, strategy: str, expected: tuple[Any, ...]) -> None:
    environ = {
        "RANK": "0",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "1",
        "FSDP_SHARDING_STRATEGY": strategy,
    }
    keys = [f"parallel.{key}" for key in ("strategy", "sharding", "data_shard", "data_replicate")]
    assert found(read("python train.py --model_name_or_path gpt2", environ=environ), *keys) == expected


def test_units_of_fsdp1(read: Read) -> None:
    environ = {
        "RANK": "0",
        "WORLD_SIZE": "8",
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "1",
        "FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP",
        "FSDP_BACKWARD_PREFETCH": "NO_PREFETCH",
    }
    line = "python train.py --model_name_or_path gpt2"
    keys = [f"parallel.fsdp_{key}" for key in ("units", "min_unit_parameters", "wrap_classes", "backward_prefetch")]
    environ["FSDP_MIN_NUM_PARAMS"] = "5000000"
    by_size = read(line, environ=environ)
    assert found(by_size, *keys) == ("model", None, None, "none")
    assert any((each.unless, each.direction) == (keys[0], "less") for each in by_size.uncertainties)
    environ |= {"FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_TRANSFORMER_CLS_TO_WRAP": "GPT2MLP"}
    assert found(read(line, environ=environ), *keys) == (None, None, ["GPT2MLP"], "none")


def test_training_arguments_take_precedence_over_the_precision_of_accelerate(read: Read) -> None:
    environ = {"ACCELERATE_MIXED_PRECISION": "no"}
    reading = read("python train.py --model_name_or_path x --bf16 --dtype float32", environ=environ)
    assert found(reading, "training.precision") == ("bf16-mixed",)


def test_the_precision_of_accelerate_applies_without_training_arguments(read: Read) -> None:
    environ = {"ACCELERATE_MIXED_PRECISION": "fp16"}
    reading = read("python train.py --model_name_or_path x --dtype float32", environ=environ)
    assert found(reading, "training.precision") == ("fp16-mixed",)


def test_parallelism_config_splits_the_world(read: Read) -> None:
    reading = read(
        "accelerate launch --num_processes 16 --use_parallelism_config --parallelism_config_tp_size 2 --use_fsdp"
        " --fsdp_version 2 --parallelism_config_dp_replicate_size 2 train.py --model_name_or_path gpt2"
    )
    parallel = reading.job().parallel
    assert (parallel.tensor, parallel.data_replicate, parallel.data_shard, parallel.world_size) == (2, 2, 4, 16)


def test_deepspeed_file_with_auto_takes_the_arguments(read: Read, tmp_path: Path) -> None:
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    }
    (tmp_path / "z3.json").write_text(json.dumps(config))
    job = read(
        "deepspeed --num_gpus=8 train.py --deepspeed z3.json --model_name_or_path gpt2 --bf16"
        " --per_device_train_batch_size 3"
    ).job()
    assert (job.parallel.strategy, job.parallel.data_shard, job.parallel.cpu_offload) == ("zero3", 8, "optimizer")
    assert (job.training.precision, job.training.micro_batch) == ("bf16-mixed", 3)


def test_deepspeeds_bucket_sizes_are_read_and_auto_follows_the_hidden_size(read: Read, tmp_path: Path) -> None:
    zero = {
        "stage": 3,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 2e8,
        "sub_group_size": 1e12,
        "overlap_comm": True,
    }
    (tmp_path / "z3.json").write_text(
        json.dumps({"zero_optimization": zero, "data_types": {"grad_accum_dtype": "fp32"}})
    )
    job = read("deepspeed --num_gpus=8 train.py --deepspeed z3.json --model_name_or_path gpt2 --bf16").job()
    assert job.zero == Zero(
        reduce_bucket=768**2,
        prefetch_bucket=int(0.9 * 768**2),
        persistence_threshold=7680,
        max_live_parameters=200_000_000,
        sub_group=10**12,
        overlap_comm=True,
    )
    assert job.parallel.gradient_dtype == "fp32"


def test_auto_bucket_sizes_of_an_unknown_model_are_a_doubt(read: Read, tmp_path: Path) -> None:
    (tmp_path / "z2.json").write_text(json.dumps({"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}))
    reading = read("deepspeed --num_gpus=8 train.py --deepspeed z2.json --model_name_or_path org/unknown")
    assert any("auto depends on the model's hidden size" in text for text in reading.warnings)


def test_a_missing_deepspeed_file_leaves_settings_open(read: Read) -> None:
    reading = read("deepspeed --num_gpus 2 train.py --deepspeed gone.json --model_name_or_path gpt2")
    assert "parallel.strategy" in reading.missing
    assert any("gone.json: no such file" in warning for warning in reading.warnings)


def test_trl_reads_its_file_and_the_command_line_takes_precedence(read: Read, tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(
        "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 4\nmax_length: 4096\nnum_processes: 4\n"
        "use_peft: true\nlora_r: 64\nlora_target_modules: all-linear\nload_in_4bit: true\nuse_bnb_nested_quant: true\n"
    )
    job = read("trl sft --config sft.yaml --per_device_train_batch_size 2 --accelerate_config zero2").job()
    assert (job.model.id, job.training.micro_batch, job.training.sequence_length) == ("Qwen/Qwen3-8B", 2, 4096)
    assert job.lora is not None
    assert (job.lora.rank, job.lora.targets, job.lora.quantization) == (64, "all-linear", "nf4-double")
    assert (job.parallel.strategy, job.parallel.data_shard) == ("zero2", 4)
    assert (job.training.loss, job.training.precision) == ("chunked", "bf16-mixed")


def test_a_trl_worker_gets_its_process_count_from_the_launcher_line(read: Read) -> None:
    worker = "python -u /venv/lib/python3.11/site-packages/trl/scripts/sft.py --model_name_or_path gpt2"
    reading = read(worker, launcher=shlex.split("/venv/bin/python /venv/bin/trl sft --use_fsdp true --num_processes 2"))
    assert found(reading, "training.sequence_length", "parallel.data_shard") == (1024, 2)


def test_a_single_json_file_in_place_of_flags(read: Read, tmp_path: Path) -> None:
    (tmp_path / "args.json").write_text(json.dumps({"model_name_or_path": "gpt2", "per_device_train_batch_size": 16}))
    reading = read("python run_glue.py args.json")
    assert found(reading, "model.id", "training.micro_batch") == ("gpt2", 16)
    assert reading.evidence()["training.micro_batch"] == "args.json: per_device_train_batch_size"


def test_a_relative_folder_becomes_an_absolute_path(read: Read, tmp_path: Path) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_text('{"model_type": "llama", "dtype": "float32"}')
    reading = read("python train.py --model_name_or_path models/tiny --output_dir out")
    assert found(reading, "model.id", "training.precision") == (str(tmp_path / "models" / "tiny"), "fp32")


def test_unknown_options_that_may_affect_memory_are_reported(read: Read) -> None:
    reading = read("python train.py --model_name_or_path gpt2 --quant_method hqq --optim brand_new_adamw --lr 1e-4")
    assert any("--quant_method" in warning for warning in reading.warnings)
    assert any("brand_new_adamw" in warning for warning in reading.warnings)
    assert not any("--lr" in warning for warning in reading.warnings)


@pytest.mark.parametrize("line", ["sleep 100", "python -c pass", "bash -c true", "trl env", "torchrun"])
def test_lines_without_a_program(read: Read, line: str) -> None:
    with pytest.raises(InputError, match="starts no Python"):
        read(line)


@pytest.mark.parametrize(
    "line",
    [
        "python -X faulthandler -u train.py",
        "env A=1 nohup python3.12 train.py",
        "uv run --frozen train.py",
        "srun --ntasks=1 python -m torch.distributed.run --nproc-per-node=1 train.py",
        "python -m accelerate.commands.launch --num_processes 1 train.py",
        "accelerate launch --mixed-precision bf16 --quiet train.py",
        "/opt/venv/bin/python /opt/venv/bin/torchrun --standalone train.py",
    ],
)
def test_ways_to_start_a_script(read: Read, tmp_path: Path, line: str) -> None:
    (tmp_path / "train.py").write_text("TrainingArguments(per_device_train_batch_size=5)\n")
    assert found(read(f"{line} --model_name_or_path gpt2"), "model.id", "training.micro_batch") == ("gpt2", 5)


@pytest.mark.parametrize(
    ("model", "targets"),
    [("gpt2", ["c_attn"]), ("bert-base-uncased", ["query", "value"]), ("no/such", ["q_proj", "v_proj"])],
)
def test_default_adapter_targets_are_those_of_peft_for_the_model(read: Read, model: str, targets: list[str]) -> None:
    reading = read(f"trl sft --model_name_or_path {model} --use_peft")
    assert found(reading, "lora.targets") == (targets,)
    assert reading.missing == ()


def test_adapter_targets_of_models_unknown_to_peft_are_missing(read: Read) -> None:
    line = "trl sft --model_name_or_path microsoft/Phi-3-mini-4k-instruct --use_peft"
    assert read(line).missing == ("lora.targets",)
    assert read(f"{line} --lora_target_modules qkv_proj").missing == ()
    pattern = read(f"{line} --lora_target_modules '.*(qkv|o)_proj'")
    assert pattern.value("lora.targets") == "all-linear"
    assert "lora.targets" in {each.unless for each in pattern.uncertainties}


def test_a_file_before_the_flags_is_the_configuration_of_the_program(read: Read, tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text("model_name_or_path: gpt2\nper_device_train_batch_size: 3\nmax_length: 64\n")
    reading = read("python train.py sft.yaml --per_device_train_batch_size 5")
    assert found(reading, "model.id", "training.micro_batch", "training.sequence_length") == ("gpt2", 5, 64)


def test_options_of_checkpointing(read: Read) -> None:
    line = "python run_clm.py --model_name_or_path gpt2 --activation_checkpointing --activation_checkpointing_kwargs"
    reading = read(f"""{line} '{{"offload": true, "every_n_layers": 2}}'""")
    assert found(reading, "training.activation_checkpointing", "training.activation_offload") == ("full", True)
    assert any("only every 2th layer" in warning for warning in reading.warnings)
    assert not any("layer" in warning for warning in read(f"""{line} '{{"use_reentrant": false}}'""").warnings)


@pytest.mark.parametrize(
    ("flags", "targets"),
    [
        ("--report_to wandb", ["wandb"]),
        ("--report_to wandb tensorboard", ["wandb", "tensorboard"]),
        ("--report_to none", None),
        ("--report_to all", None),
        ("", None),
    ],
)
def test_output_folders_and_reporting_targets_of_a_trainer(
    read: Read, tmp_path: Path, flags: str, targets: list[str] | None
) -> None:
    reading = read(f"python run.py --model_name_or_path gpt2 --output_dir out/a --save_total_limit 2 {flags}")
    assert found(reading, "run.output_dir", "run.save_total_limit") == (str(tmp_path / "out" / "a"), 2)
    assert reading.value("run.report_to") == targets
    assert reading.job({"training.sequence_length": 8}).run.output_dir == str(tmp_path / "out" / "a")


def test_relative_folders_in_a_file_alone_stay_relative(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text("model_name_or_path: gpt2\noutput_dir: out\nreport_to: [wandb, none]\n")
    reading = read_config_file(tmp_path / "sft.yaml", environ={})
    assert found(reading, "run.output_dir", "run.report_to") == ("out", ["wandb"])


def test_a_script_without_a_name(read: Read) -> None:
    reading = read("accelerate launch / --model_name_or_path gpt2 --per_device_train_batch_size 3")
    assert found(reading, "model.id", "training.micro_batch") == ("gpt2", 3)
    assert any("Could not read the script" in warning for warning in reading.warnings)


SAVES = """
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
    (tmp_path / "train.py").write_text(SAVES)
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": zero, "bf16": {"enabled": True}}))
    line = f"torchrun --nproc_per_node 4 train.py --output_dir out --bf16 {flags}"
    reading = read_launch(shlex.split(line), environ={}, cwd=tmp_path, versions={"transformers": "4.57.0"})
    assert (reading.value("saving.weights"), reading.value("saving.optimizer")) == expected
    assert not [warning for warning in reading.warnings if "state_dict" in warning or "gather" in warning]
