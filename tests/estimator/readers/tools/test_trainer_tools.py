"""Tools built on transformers' Trainer: configuration file, launch line and worker give the same job."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.readers.config_file import read_config_file
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

Read = Callable[..., JobReading]
WORKER = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}


def values(reading: JobReading, *keys: str) -> tuple[Any, ...]:
    return tuple(reading.value(key) for key in keys)


AXOLOTL = """
base_model: org/model
adapter: qlora
sequence_len: 1024
micro_batch_size: 3
gradient_accumulation_steps: 5
lora_r: 12
lora_target_linear: true
bf16: auto
optimizer: adamw_bnb_8bit
gradient_checkpointing: offload
flash_attention: true
"""


@pytest.mark.parametrize(
    ("line", "environ"),
    [
        ("axolotl train cfg.yml", {}),
        ("accelerate launch -m axolotl.cli.train cfg.yml", {}),
        ("python -u -m axolotl.cli.train cfg.yml", {}),
        (None, {}),
    ],
)
def test_axolotl(read: Read, tmp_path: Path, line: str | None, environ: dict[str, str]) -> None:
    (tmp_path / "cfg.yml").write_text(AXOLOTL)
    reading = read(line, **environ) if line else read_config_file(tmp_path / "cfg.yml", environ={})
    job = reading.job()
    assert (job.model.id, job.model.attention) == ("org/model", "flash_attention_2")
    training = job.training
    assert (training.micro_batch, training.sequence_length, training.gradient_accumulation) == (3, 1024, 5)
    assert (training.precision, training.optimizer) == ("bf16", "adamw-8bit")
    assert (training.activation_checkpointing, training.activation_offload) == ("full", True)
    assert job.lora is not None
    assert (job.lora.rank, job.lora.targets, job.lora.quantization) == (12, "all-linear", "nf4-double")
    assert reading.missing == ()
    assert reading.evidence()["training.sequence_length"] == "cfg.yml: sequence_len"
    assert training.varying_lengths is True


def types_around_adapters(reading: JobReading) -> tuple[Any, ...]:
    return values(reading, "lora.kbit_preparation", "lora.adapter_dtype", "lora.dropout")


def test_types_around_adapters(read: Read, tmp_path: Path) -> None:
    """axolotl casts back what peft's preparation made fp32, unless TRL adds the adapters; ms-swift never calls it."""
    path = tmp_path / "cfg.yml"
    path.write_text(AXOLOTL + "lora_dropout: 0.1\n")
    assert types_around_adapters(read("axolotl train cfg.yml")) == (False, None, 0.1)
    path.write_text(AXOLOTL + "peft_autocast_adapter_dtype: false\n")
    assert types_around_adapters(read("axolotl train cfg.yml")) == (False, "bf16", None)
    path.write_text(AXOLOTL + "rl: dpo\n")
    trl = read_launch(["axolotl", "train", "cfg.yml"], environ={}, cwd=tmp_path, versions={"trl": "0.24.0"})
    assert types_around_adapters(trl)[0] is True
    assert trl.job({"model.id": "gpt2"}).unsure.older == {}
    older = read("axolotl train cfg.yml").job({"model.id": "gpt2"}).unsure.older
    assert (older["software.trl"], older["training.loss"]) == ("0.21", "log-probs")
    line = "swift sft --model org/model --quant_method bnb --quant_bits 4 --torch_dtype bfloat16"
    assert types_around_adapters(read(line)) == (False, None, 0.05)
    named = read(f"{line} --lora_dtype bfloat16 --lora_dropout 0")
    assert (types_around_adapters(named), named.job().unsure.weights) == ((False, None, 0.0), "either")


@pytest.mark.parametrize(("stage", "loss", "in_place"), [("sft", "fused-linear", False), ("rm", None, True)])
def test_ligers_loss_needs_logits_outside_of_supervised_training(
    read: Read, tmp_path: Path, stage: str, loss: str | None, in_place: bool
) -> None:
    text = FACTORY.replace("stage: sft", f"stage: {stage}")
    (tmp_path / "x.yaml").write_text(f"{text}enable_liger_kernel: true\nlora_dropout: 0.1\n")
    reading = read("llamafactory-cli train x.yaml")
    kernels = {"norm", "mlp", "rope"} | ({"cross-entropy"} if in_place else set())
    assert values(reading, "training.loss", "model.task") == (loss, "causal-lm" if stage == "rm" else None)
    assert set(reading.value("training.fused_kernels")) == kernels
    assert types_around_adapters(reading) == (False, "fp32", 0.1)


def test_llamafactorys_preferences_are_scored_from_all_logits(read: Read, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(FACTORY.replace("sft", "dpo") + "enable_liger_kernel: true\n")
    reading = read("llamafactory-cli train x.yaml")
    assert values(reading, "training.loss") == ("log-probs",)
    assert set(reading.value("training.fused_kernels")) == {"norm", "mlp", "rope"}


@pytest.mark.parametrize(
    ("plugin", "loss"),
    [
        ("cut_cross_entropy.CutCrossEntropyPlugin", None),
        ("liger.LigerPlugin]\nliger_fused_linear_cross_entropy: true\nmore: [x", "full"),
    ],
)
def test_evaluation_with_liger_makes_all_logits_but_not_with_cut_cross_entropy(
    read: Read, tmp_path: Path, plugin: str, loss: str | None
) -> None:
    (tmp_path / "cfg.yml").write_text(f"{AXOLOTL}val_set_size: 0.1\nplugins: [axolotl.integrations.{plugin}]\n")
    reading = read("axolotl train cfg.yml")
    assert values(reading, "training.loss", "training.evaluation_loss") == ("fused-linear", loss)


def test_axolotl_quantizes_experts(read: Read, tmp_path: Path) -> None:
    (tmp_path / "cfg.yml").write_text(AXOLOTL + "quantize_moe_experts: true\n")
    assert read("axolotl train cfg.yml").value("lora.quantize_experts") is True


def test_swift_evaluates_a_part_of_its_data(read: Read) -> None:
    line = "swift sft --model gpt2 --max_length 64 --split_dataset_ratio"
    assert [read(f"{line} {part}").value("training.evaluation_batch") for part in ("0.01", "0")] == [1, None]


def test_swift_may_run_with_older_libraries(tmp_path: Path) -> None:
    line = "swift sft --model gpt2 --max_length 64"
    older = read_launch(line.split(), environ={}, cwd=tmp_path).job().unsure.older
    assert older["training.optimizer"] == "adamw"


def test_sharded_axolotl_lacks_the_ranks_unless_read_from_a_worker(read: Read, tmp_path: Path) -> None:
    (tmp_path / "cfg.yml").write_text(
        "base_model: org/model\nmicro_batch_size: 1\nsequence_len: 512\nbf16: true\nfsdp_version: 2\n"
        "fsdp: [full_shard]\nfsdp_config:\n  reshard_after_forward: false\n  offload_params: true\n"
        "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n"
    )
    assert read("axolotl train cfg.yml").missing == ("parallel.data_shard",)
    reading = read("python -m axolotl.cli.train cfg.yml", **WORKER)
    assert values(reading, "parallel.strategy", "parallel.data_shard", "parallel.reshard_after_forward") == (
        ("fsdp2", 4, False)
    )
    assert values(reading, "parallel.cpu_offload", "training.loss") == ("all", "fused-linear")


FACTORY = """
model_name_or_path: org/model
stage: sft
finetuning_type: lora
cutoff_len: 700
per_device_train_batch_size: 2
quantization_bit: 4
bf16: true
use_unsloth_gc: true
flash_attn: fa2
"""


@pytest.mark.parametrize(
    "line", ["llamafactory-cli train x.yaml", "python -u /s/llamafactory/launcher.py x.yaml", None]
)
def test_llamafactory(read: Read, tmp_path: Path, line: str | None) -> None:
    (tmp_path / "x.yaml").write_text(FACTORY)
    reading = read(line) if line else read_config_file(tmp_path / "x.yaml", environ={})
    job = reading.job()
    assert (job.training.micro_batch, job.training.sequence_length, job.training.precision) == (2, 700, "bf16")
    assert (job.training.activation_checkpointing, job.training.activation_offload) == ("full", True)
    assert job.model.attention == "flash_attention_2"
    assert job.lora is not None
    assert (job.lora.rank, job.lora.targets, job.lora.quantization) == (8, "all-linear", "nf4-double")
    rank = next(finding for finding in reading.findings if finding.key == "lora.rank")
    assert (rank.origin, rank.written) == ("LLaMA-Factory's default", False)
    assert job.training.varying_lengths is True


def test_a_deepspeed_file_beside_the_configurations_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "examples" / "full").mkdir(parents=True)
    (tmp_path / "examples" / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    text = FACTORY + "deepspeed: examples/ds.json\n"
    (tmp_path / "examples" / "full" / "x.yaml").write_text(text)
    reading = read_config_file(tmp_path / "examples" / "full" / "x.yaml", environ={})
    assert values(reading, "parallel.strategy") == ("zero2",)
    assert reading.missing == ("parallel.data_shard",)


def test_a_zero_stage_is_inferred_from_the_name_of_a_file_that_is_not_here(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(FACTORY + "deepspeed: elsewhere/ds_z3_offload.json\n")
    reading = read_config_file(tmp_path / "x.yaml", environ={})
    finding = next(finding for finding in reading.findings if finding.key == "parallel.strategy")
    assert (finding.value, finding.written) == ("zero3", False)
    assert any("ds_z3_offload.json: no such file" in warning for warning in reading.warnings)


@pytest.mark.parametrize(
    "line",
    [
        "swift sft --model org/model --max_length 800 --deepspeed zero2 --torch_dtype bfloat16 --attn_impl flash_attn",
        "python /s/swift/cli/sft.py --model org/model --max_length 800 --deepspeed zero2 --attn_impl flash_attn",
    ],
)
def test_swift(read: Read, line: str) -> None:
    reading = read(line, **WORKER)
    job = reading.job()
    assert (job.training.micro_batch, job.training.sequence_length) == (1, 800)
    assert (job.parallel.strategy, job.parallel.data_shard) == ("zero2", 4)
    assert job.model.attention == "flash_attention_2"
    assert job.lora is not None
    assert (job.lora.rank, job.lora.targets) == (8, "all-linear")


def test_swift_full_training(read: Read) -> None:
    reading = read("swift sft --model org/model --max_length 800 --tuner_type full --gradient_checkpointing false")
    assert values(reading, "lora.rank", "training.precision", "training.activation_checkpointing") == (
        (None, "bf16", "none")
    )


def test_flags_of_swift_2_are_read_with_a_doubt(read: Read) -> None:
    line = "swift sft --model_id_or_path org/model --sft_type full --batch_size 4 --max_length 64"
    reading = read(f"{line} --deepspeed default-zero3", **WORKER)
    assert values(reading, "model.id", "training.micro_batch", "parallel.strategy") == ("org/model", 4, "zero3")
    assert (reading.job().lora, reading.job().unsure.optimizer) == (None, "either")
    assert any("is of ms-swift 2, whose defaults are not read" in each for each in reading.warnings)


def test_swift_splits_sequences_over_ranks(read: Read) -> None:
    reading = read("swift sft --model org/model --max_length 800 --sequence_parallel_size 2", NPROC_PER_NODE="4")
    assert values(reading, "parallel.context", "parallel.data_replicate") == (2, 2)
    assert reading.job().unsure.logits == "less"


def test_settings_of_the_allocator_in_a_launch_line_are_the_jobs(read: Read) -> None:
    words = "swift sft --model org/model --max_length 800"
    key = "software.allocator_conf"
    assert read(f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True {words}").value(key) == "expandable_segments:True"
    assert read(f"env PYTORCH_ALLOC_CONF=max_split_size_mb:64 {words}").value(key) == "max_split_size_mb:64"
    assert read(words).value(key) is None


@pytest.mark.parametrize("key", ["do_predict: true", "infer_backend: vllm", "export_dir: merged", "n_shot: 5"])
def test_llamafactory_trains_nothing_in_its_other_commands(read: Read, tmp_path: Path, key: str) -> None:
    (tmp_path / "other.yaml").write_text(f"model_name_or_path: org/model\nfinetuning_type: lora\n{key}\n")
    with pytest.raises(CannotTellError, match="trains nothing"):
        read("llamafactory-cli train other.yaml")
    assert read("llamafactory-cli train other.yaml do_train=true").value("lora.rank") == 8


def test_swift_names_groups_of_adapted_layers(read: Read) -> None:
    line = "swift sft --model Qwen/Qwen3-0.6B --max_length 64"
    reading = read(f"{line} --target_regex '.*\\.(q_proj|v_proj)'")
    assert reading.job().unsure.optimizer == "either"
    assert read(f"{line} --tuner_type adalora").job().unsure.weights == "more"
    embeddings = read(f"{line} --target_modules all-linear all-embedding")
    assert embeddings.value("lora.targets") == "all-linear"
    assert embeddings.job().unsure.gradients == "more"


def test_swift_says_what_it_does_not_count(read: Read, tmp_path: Path) -> None:
    line = "swift sft --max_length 64 --model"
    (tmp_path / "vlm").mkdir()
    (tmp_path / "vlm" / "config.json").write_text('{"model_type": "llava", "text_config": {}, "vision_config": {}}')
    assert read(f"{line} ./vlm").job().unsure.activations == "less"
    assert read(f"{line} ./vlm --freeze_vit false --freeze_aligner false").job().unsure.activations == "no"
    assert read(f"{line} Qwen/Qwen3-0.6B --adapters ./saved").job().unsure.optimizer == "either"
    assert read(f"{line} Qwen/Qwen3-0.6B --task_type embedding").job().unsure.logits == "less"
    assert read(f"{line} Qwen/Qwen3-0.6B --tuner_backend unsloth").job().unsure.activations == "less"
