"""Defaults of each tool for missing settings, and results that several settings decide together."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.readers.config_file import read_config_file
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

Read = Callable[..., JobReading]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a function that reads a launch line beside x.yaml with a given text."""

    def read_line(line: str, text: str = "", **environ: str) -> JobReading:
        (tmp_path / "x.yaml").write_text(text)
        return read_launch(shlex.split(line), environ=environ, cwd=tmp_path, versions={"transformers": "5.2.0"})

    return read_line


def found(reading: JobReading, *keys: str) -> tuple[Any, ...]:
    return tuple(reading.value(key) for key in keys)


AXOLOTL = "base_model: org/model\nmicro_batch_size: 2\n"


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("", "bf16"),
        ("fp16: true\n", "fp16"),
        ("bf16: false\n", "fp32"),
        ("bf16: false\nload_in_8bit: true\nadapter: lora\n", "fp16"),
        ("bf16: auto\nfp16: true\n", "fp16"),
        ("float16: true\nbf16: false\nfp16: false\n", "fp16"),
        ("bfloat16: true\nbf16: false\n", "bf16"),
        ("float16: true\n", "bf16"),  # bf16: auto, axolotl's default, is on where float16 stands alone
        ("bf16: full\n", "bf16"),
        ("bf16: null\n", "fp32"),
    ],
)
def test_axolotl_computes_in_bf16_by_default(read: Read, text: str, precision: str) -> None:
    assert found(read("axolotl train x.yaml", AXOLOTL + text), "training.precision") == (precision,)


def test_batch_size_of_axolotl_is_that_of_a_whole_step(read: Read) -> None:
    reading = read("axolotl train x.yaml", AXOLOTL + "batch_size: 12\n")
    assert found(reading, "training.micro_batch", "training.gradient_accumulation") == (2, 6)


@pytest.mark.parametrize(
    ("text", "quantization"),
    [
        ("adapter: qlora\nload_in_4bit: true\n", "nf4-double"),
        ("adapter: qlora\nload_in_4bit: true\nbnb_config_kwargs: {bnb_4bit_use_double_quant: false}\n", "nf4"),
        ("adapter: lora\npeft: {backend: torchao, weight_dtype: int4}\n", "nf4-double"),
        ("adapter: lora\npeft: {backend: bnb, weight_dtype: int8}\n", "int8"),
        ("adapter: lora\nload_in_8bit: true\n", "int8"),
        ("adapter: lora\nload_in_4bit: true\n", "nf4"),
        ("adapter: lora\n", None),
    ],
)
def test_quantization_of_axolotl(read: Read, text: str, quantization: str | None) -> None:
    assert found(read("axolotl train x.yaml", AXOLOTL + text), "lora.quantization") == (quantization,)


def test_litgpt_does_not_state_its_precision(read: Read) -> None:
    line = "litgpt finetune_full checkpoints/org/model --train.max_seq_length 64"
    one, two = read(line), read(f"{line} --devices 2")
    assert found(one, "training.precision", "training.gradient_accumulation", "training.activation_checkpointing") == (
        ("bf16-mixed", 16, None)
    )
    assert found(two, "training.gradient_accumulation", "training.activation_checkpointing", "parallel.strategy") == (
        (8, "full", "fsdp1")
    )
    quantized = read(
        "litgpt finetune_lora org/model --precision bf16-true --quantize bnb.nf4 --train.max_seq_length 64"
    )
    assert found(quantized, "training.optimizer", "lora.quantization") == ("paged-adamw", "nf4")


def test_litgpt_pretrains_on_all_gpus(read: Read) -> None:
    line = "litgpt pretrain EleutherAI/pythia-160m --train.max_seq_length 64"
    reading = read(line, CUDA_VISIBLE_DEVICES="0,1,2,3")
    keys = ("parallel.data_shard", "training.optimizer", "training.compile", "training.micro_batch")
    assert found(reading, *keys) == (4, "adamw-fused", True, 4)
    assert found(reading, "training.gradient_accumulation", "training.activation_checkpointing") == (32, None)
    assert read(line).missing == ("parallel.data_shard",)
    assert found(read(f"{line} --devices 1"), "parallel.strategy") == (None,)


SWIFT = "swift sft --model org/model --max_length 64"


@pytest.mark.parametrize(
    ("flags", "environ", "steps"),
    [
        ("", {}, 16),
        ("--per_device_train_batch_size 3", {}, 6),
        ("", {"NPROC_PER_NODE": "4"}, 4),
        ("--gradient_accumulation_steps 2", {"NPROC_PER_NODE": "4"}, 2),
    ],
)
def test_swift_takes_sixteen_examples_a_step(read: Read, flags: str, environ: dict[str, str], steps: int) -> None:
    assert found(read(f"{SWIFT} {flags}", **environ), "training.gradient_accumulation") == (steps,)


def test_swifts_own_deepspeed_configurations_have_their_sizes(read: Read) -> None:
    keys = ("parallel.strategy", "zero.reduce_bucket", "zero.allgather_bucket", "zero.max_live_parameters")
    two, three = (read(f"{SWIFT} --deepspeed {each}", NPROC_PER_NODE="8") for each in ("zero2", "zero3"))
    assert found(two, *keys) == ("zero2", 200_000_000, 200_000_000, None)
    assert found(three, "parallel.strategy", "zero.max_live_parameters") == ("zero3", 1_000_000_000)


def test_swifts_own_fsdp_and_one_process_for_several_gpus(read: Read) -> None:
    sharded = read(f"{SWIFT} --fsdp fsdp2 --tuner_type full", NPROC_PER_NODE="2", NNODES="2")
    keys = ("parallel.strategy", "parallel.data_shard", "training.activation_checkpointing", "training.precision")
    assert found(sharded, *keys) == ("fsdp2", 4, "full", "bf16-mixed")
    alone = read(SWIFT, CUDA_VISIBLE_DEVICES="0,1")
    assert found(alone, "parallel.strategy", "parallel.device_map", "parallel.pipeline") == (None, "auto", 2)
    assert read(SWIFT).spreads_layers == "auto"
    assert read(SWIFT, SWIFT_SINGLE_DEVICE_MODE="1", CUDA_VISIBLE_DEVICES="0,1").value("parallel.device_map") is None


@pytest.mark.parametrize(
    ("flags", "length"),
    [("--rlhf_type dpo", 64), ("--rlhf_type grpo", 576), ("--rlhf_type grpo --max_completion_length 36", 100)],
)
def test_swifts_length_is_that_of_prompts_where_text_is_generated(read: Read, flags: str, length: int) -> None:
    assert read(f"{SWIFT.replace('sft', 'rlhf')} {flags}").value("training.sequence_length") == length


@pytest.mark.parametrize(
    ("flags", "quantization", "warning"),
    [
        ("--quant_method bnb --quant_bits 4", "nf4-double", None),
        ("--quant_method bnb --quant_bits 8", "int8", None),
        ("--quant_bits 4", None, "no effect without quant_method"),
        ("--quant_method hqq --quant_bits 3", "nf4-double", "counted as bitsandbytes"),
    ],
)
def test_swift_quantizes_by_the_stated_method(
    read: Read, flags: str, quantization: str | None, warning: str | None
) -> None:
    reading = read(f"{SWIFT} {flags} --use_logits_to_keep false")
    assert found(reading, "lora.quantization") == (quantization,)
    assert [said for said in reading.warnings if warning is None or warning not in said] == []
    assert bool(reading.warnings) == bool(warning)


@pytest.mark.parametrize(("flags", "doubt"), [("", "less"), ("--use_logits_to_keep false", "no")])
def test_swift_leaves_out_logits_of_prompts(read: Read, flags: str, doubt: str) -> None:
    assert read(f"{SWIFT} {flags}").job({"model.id": "gpt2"}).unsure.logits == doubt


@pytest.mark.parametrize(("dtype", "precision"), [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp16-mixed")])
def test_swift_computes_in_the_dtype_of_its_weights(read: Read, dtype: str, precision: str) -> None:
    assert found(read(f"{SWIFT} --torch_dtype {dtype}"), "training.precision") == (precision,)


AUTOMODEL = """
step_scheduler: {local_batch_size: 2, global_batch_size: 32}
model: {pretrained_model_name_or_path: org/model, torch_dtype: DTYPE}
dataset: {_target_: a.b, seq_length: 64}
"""


@pytest.mark.parametrize("distributed", ["{strategy: fsdp2, AC}", "{strategy: ddp, AC}"])
@pytest.mark.parametrize("gpus", [1, 4])
def test_automodel_checkpoints_on_one_gpu_and_under_ddp_too(read: Read, distributed: str, gpus: int) -> None:
    text = AUTOMODEL + f"distributed: {distributed.replace('AC', 'activation_checkpointing: true')}\n"
    reading = read(f"automodel x.yaml --nproc-per-node {gpus}", text)
    assert found(reading, "training.activation_checkpointing") == ("full",)
    assert found(reading, "training.gradient_accumulation") == (16 // gpus,)


@pytest.mark.parametrize(
    ("dtype", "gpus", "precision"), [("float32", 4, "bf16-mixed"), ("float32", 1, "fp32"), ("bfloat16", 4, "bf16")]
)
def test_automodel_gathers_in_bf16(read: Read, dtype: str, gpus: int, precision: str) -> None:
    text = AUTOMODEL.replace("DTYPE", dtype) + "distributed: {strategy: fsdp2}\n"
    assert found(read(f"automodel x.yaml --nproc-per-node {gpus}", text), "training.precision") == (precision,)


def test_automodel_with_experts_and_copies(read: Read) -> None:
    text = AUTOMODEL + "distributed: {strategy: fsdp2, ep_size: 4, dp_size: 8, dp_replicate_size: 2}\n"
    reading = read("automodel x.yaml --nproc-per-node 8", text)
    keys = ("expert", "data_shard", "data_replicate", "reshard_after_forward")
    assert found(reading, *(f"parallel.{key}" for key in keys)) == (4, 4, 2, False)


@pytest.mark.parametrize(
    ("distributed", "expected"), [("{dp_size: none, tp_size: 1}", ("fsdp2", None, "fp32", "bf16"))]
)
def test_sharding_strategies_of_automodel(read: Read, distributed: str, expected: tuple[str | None, ...]) -> None:
    text = AUTOMODEL.replace("DTYPE", "bfloat16") + f"distributed: {distributed}\n"
    reading = read("automodel x.yaml --nproc-per-node 4", text)
    keys = ("parallel.strategy", "parallel.sharding", "parallel.reduce_dtype", "training.precision")
    assert found(reading, *keys) == expected


def test_the_accumulation_follows_from_the_number_of_ranks(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(AUTOMODEL + "distributed: {strategy: fsdp2}\nrecipe: r\n")
    reading = read_config_file(tmp_path / "a.yaml", environ={})
    assert reading.value("training.gradient_accumulation") is None
    assert reading.job({"parallel.data_shard": 4}).training.gradient_accumulation == 4
    assert reading.job({"parallel.data_shard": 4, "training.micro_batch": 4}).training.gradient_accumulation == 2
    assert (
        reading.job({"parallel.data_shard": 4, "training.gradient_accumulation": 3}).training.gradient_accumulation == 3
    )


def test_global_batch_of_torchtitan(read: Read) -> None:
    line = "torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --training.seq_len 64"
    reading = read(f"{line} --training.local_batch_size 2 --training.global_batch_size 64")
    assert found(reading, "training.gradient_accumulation") == (4,)


@pytest.mark.parametrize(
    ("word", "value"), [("none", "none"), ("full", "full"), ("selective", "selective"), ("memory-budget", "selective")]
)
def test_checkpointing_modes_of_torchtitan(read: Read, word: str, value: str) -> None:
    line = "python -m torchtitan.train --module llama3 --config llama3_8b --training.max_context_length 64"
    reading = read(f"{line} activation-checkpoint:{word}")
    assert found(reading, "training.activation_checkpointing", "training.sequence_length") == (value, 64)
    assert (reading.job({"training.micro_batch": 1}).unsure.activations == "either") == (word == "memory-budget")


def test_llamafactory_reads_the_number_of_processes_from_the_environment(read: Read) -> None:
    text = "model_name_or_path: org/model\nstage: sft\nbf16: true\n"
    reading = read("llamafactory-cli train x.yaml", text, NPROC_PER_NODE="8", NNODES="2")
    assert found(reading, "parallel.strategy", "parallel.data_replicate") == ("ddp", 16)
    assert reading.evidence()["parallel.data_replicate"] == "NPROC_PER_NODE times NNODES in the environment"


@pytest.mark.parametrize(
    ("line", "environ", "starts"),
    [
        ("llamafactory-cli train x.yaml", {}, True),
        ("llamafactory-cli train x.yaml", {"NPROC_PER_NODE": "1"}, False),
        ("llamafactory-cli train x.yaml", {"USE_RAY": "1"}, False),
        ("axolotl train x.yaml", {}, True),
        ("axolotl train x.yaml --launcher python", {}, False),
        ("swift sft --config x.yaml", {}, False),
    ],
)
def test_tools_that_start_one_process_per_gpu(read: Read, line: str, environ: dict[str, str], starts: bool) -> None:
    text = "base_model: org/model\nmicro_batch_size: 1\n" if "axolotl" in line else "model: org/model\n"
    reading = read(line, text if "llama" not in line else "model_name_or_path: org/model\nstage: sft\n", **environ)
    assert (reading.one_per_gpu is not None) == starts
    assert any("starts one process per GPU" in each for each in reading.warnings) == starts


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("requirements.txt", "transformers==4.30.1", None),  # older than LLaMA-Factory runs with: another program's
        ("requirements.txt", "transformers==4.45.2", "4.45.2"),
        ("setup.py", 'setup(install_requires=["transformers==4.45.2"])', "4.45.2"),
        ("setup.py", 'extra_require = {\n"dev": ["transformers==4.45.2"],\n"b": []}', None),
        ("setup.py", 'extras["dev"] = [\n"transformers==4.45.2"\n]', None),
        ("setup.cfg", "[options.extras_require]\ndev =\n  x\n\n  transformers==4.45.2", None),
        ("pyproject.toml", '[dependency-groups]\ndev = [\n"transformers==4.45.2",\n]', None),
        (
            "pyproject.toml",
            '[project.optional-dependencies]\ndev = ["transformers==4.44.0"]\n[x]\ny = ["transformers==4.45.2"]',
            "4.45.2",
        ),
    ],
)
def test_pins_hold_for_what_everybody_installs(tmp_path: Path, name: str, text: str, version: str | None) -> None:
    (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "x.yaml").write_text("model_name_or_path: org/model\nstage: sft\n")
    reading = read_launch(["llamafactory-cli", "train", "x.yaml"], environ={}, cwd=tmp_path)
    assert reading.value("software.transformers") == version


def test_llamafactory_makes_only_what_trains_fp32(read: Read) -> None:
    text = "model_name_or_path: org/model\nstage: dpo\nfinetuning_type: full\nbf16: true\n"
    reading = read("llamafactory-cli train x.yaml", text)
    assert found(reading, "training.precision", "other_models") == (
        "bf16-mixed",
        [{"role": "reference", "dtype": "bf16"}],
    )


@pytest.mark.parametrize(
    ("text", "flags", "length"),
    [
        ("cutoff_len: int = field(\n  default=1024,\nself.cutoff_len -= 1", "", 1024),
        ("cutoff_len: int = field(default=1024,", "--cutoff_len 64", 64),
        ("max_source_length: Optional[int] = field(default=512,\nmax_target_length: int = field(default=256,", "", 768),
        ("    max_source_length: int = 512\n    max_target_length: int = 256", "--max_source_length 4096", 4352),
        ("x = 1", "", 2048),
    ],
)
def test_a_copy_of_llamafactory_has_a_length_of_its_own(
    read: Read, tmp_path: Path, text: str, flags: str, length: int
) -> None:
    (tmp_path / "src/llmtuner/hparams").mkdir(parents=True)
    (tmp_path / "src/llmtuner/hparams/data_args.py").write_text(text)
    line = f"llamafactory-cli train --model_name_or_path org/model --stage sft {flags}"
    assert read(line).value("training.sequence_length") == length


def test_llamafactory_in_one_process_stops_with_several_gpus(read: Read) -> None:
    text = "model_name_or_path: org/model\nstage: sft\n"
    assert "stops where one process finds" in str(read("python src/train.py x.yaml", text).more_gpus)
    assert read("env CUDA_VISIBLE_DEVICES=0 python src/train.py x.yaml", text).more_gpus is None


def test_other_training_methods_of_llamafactory(read: Read) -> None:
    text = "model_name_or_path: org/model\nstage: sft\nfinetuning_type: oft\n"
    reading = read("llamafactory-cli train x.yaml", text, NPROC_PER_NODE="1")
    assert (reading.job().unsure.gradients, reading.job().unsure.optimizer) == ("less", "less")
    assert any("counted as training all weights" in warning for warning in reading.warnings)


def test_a_file_alone_is_read_as_one_assumed_rank(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(AXOLOTL)
    reading = read_config_file(tmp_path / "a.yml", environ={})
    (finding,) = [each for each in reading.findings if each.key == "parallel.strategy"]
    assert (finding.value, finding.written) == ("none", False)


def test_the_unsloth_command_and_its_defaults(read: Read) -> None:
    text = (
        "model: unsloth/Qwen3-8B\ntraining: {max_seq_length: 64, training_type: full, gradient_checkpointing: none}\n"
    )
    full, lora = read("unsloth train --config x.yaml", text), read("unsloth train --model unsloth/Qwen3-8B --lora-r 8")
    assert found(full, "lora.rank", "training.activation_checkpointing", "training.precision") == (None, "none", "bf16")
    keys = ("lora.rank", "lora.quantization", "training.sequence_length", "training.activation_offload")
    assert found(lora, *keys) == (8, "nf4-double", 2048, True)


@pytest.mark.parametrize(
    ("line", "spreads"),
    [
        ("python -m axolotl.cli.train x.yaml", "auto"),
        ("axolotl train x.yaml --launcher python", "auto"),
        ("axolotl train x.yaml", None),
        ("accelerate launch --num_processes 1 -m axolotl.cli.train x.yaml", None),
    ],
)
def test_axolotl_without_a_launcher_spreads_the_layers(read: Read, line: str, spreads: str | None) -> None:
    assert read(line, AXOLOTL).spreads_layers == spreads
    if spreads:
        two = read(line, AXOLOTL, CUDA_VISIBLE_DEVICES="0,1")
        assert found(two, "parallel.device_map", "parallel.pipeline") == ("auto", 2)


def test_axolotl_adds_all_linear_layers_to_those_that_are_named(read: Read) -> None:
    text = f"{AXOLOTL}adapter: lora\nlora_target_linear: true\nlora_target_modules: [q_proj, v_proj]\n"
    assert read("axolotl train x.yaml", text).value("lora.targets") == "all-linear"


def test_axolotl_evaluates_as_many_sequences_as_it_trains(read: Read) -> None:
    reading = read("axolotl train x.yaml", f"{AXOLOTL}val_set_size: 0.1\n")
    assert found(reading, "training.micro_batch", "training.evaluation_batch") == (2, 2)
