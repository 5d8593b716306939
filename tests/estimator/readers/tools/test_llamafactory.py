"""LLaMA-Factory's version 1, and the parameters that freezing leaves to train in both versions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.estimation import estimate
from vramtop.estimator.readers.config_file import read_config_file, tool_of_file
from vramtop.estimator.readers.source.evidence import JobReading

Read = Callable[..., JobReading]
MODEL = "Qwen/Qwen3-0.6B"
TRAINED_WHOLE = f"""
model: {MODEL}
model_class: llm
kernel_config:
  name: auto
quant_config: null
dist_config:
  name: fsdp2
  dcp_path: null
train_dataset: data/v1_sft_demo.yaml
output_dir: outputs/test_fsdp2
micro_batch_size: 2
cutoff_len: 1024
"""


def values(reading: JobReading, *keys: str) -> tuple[Any, ...]:
    return tuple(reading.value(key) for key in keys)


@pytest.fixture
def read_v1(read: Read, tmp_path: Path) -> Read:
    def read_text(text: str, command: str = "sft", overrides: str = "", **environ: str) -> JobReading:
        (tmp_path / "v1.yaml").write_text(text)
        return read(
            f"llamafactory-cli {command} v1.yaml {overrides}", **{"USE_V1": "1", "NPROC_PER_NODE": "4"} | environ
        )

    return read_text


def test_all_weights_under_fsdp2(read_v1: Read) -> None:
    reading = read_v1(TRAINED_WHOLE)
    assert values(reading, "model.id", "training.micro_batch", "training.sequence_length") == (MODEL, 2, 1024)
    assert values(reading, "parallel.strategy", "parallel.data_shard", "parallel.reduce_dtype") == ("fsdp2", 4, "fp32")
    keys = ("training.precision", "training.activation_checkpointing", "training.optimizer", "lora.rank")
    assert values(reading, *keys) == ("bf16-mixed", "full", "adamw", None)
    assert reading.missing == ()


def test_file_alone_is_recognised_and_lacks_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "v1.yaml").write_text(TRAINED_WHOLE)
    reading = read_config_file(tmp_path / "v1.yaml", environ={})
    assert tool_of_file(tmp_path / "v1.yaml") == "LLaMA-Factory"
    assert values(reading, "parallel.strategy", "training.precision", "training.micro_batch") == (
        "fsdp2",
        "bf16-mixed",
        2,
    )
    assert reading.missing == ("parallel.data_shard",)


def test_nothing_casts_without_a_backend(read_v1: Read) -> None:
    """Only FSDP2 and DeepSpeed apply bf16; a single process is not sharded."""
    one = read_v1(TRAINED_WHOLE, NPROC_PER_NODE="1")
    assert values(one, "training.precision", "parallel.data_shard") == ("fp32", 1)
    copies = read_v1(f"model: {MODEL}\nmicro_batch_size: 1\ncutoff_len: 64\n")
    assert values(copies, "training.precision", "parallel.strategy", "parallel.data_replicate") == ("fp32", "ddp", 4)


def test_worker_under_torchrun(read: Read, tmp_path: Path) -> None:
    (tmp_path / "v1.yaml").write_text(TRAINED_WHOLE)
    line = "python -u /s/llamafactory/v1/launcher.py sft v1.yaml micro_batch_size=3"
    reading = read(line, RANK="1", LOCAL_RANK="1", WORLD_SIZE="8")
    assert values(reading, "training.micro_batch", "parallel.data_shard") == (3, 8)


ADAPTERS = f"model: {MODEL}\npeft_config:\n  name: lora\n  r: 16\n  target_modules: all\ncutoff_len: 64\n"


def test_adapters_on_quantized_weights(read_v1: Read) -> None:
    reading = read_v1(f"{ADAPTERS}quant_config:\n  name: bnb\n  quantization_bit: 4\n", NPROC_PER_NODE="1")
    keys = ("lora.rank", "lora.targets", "lora.quantization", "training.precision")
    assert values(reading, *keys) == (16, "all-linear", "nf4-double", "bf16")
    by_json = read_v1(f"model: {MODEL}\ncutoff_len: 64\n", overrides='--peft_config \'{"name": "lora", "r": 4}\'')
    assert values(by_json, "lora.rank", "lora.targets") == (4, "all-linear")


def test_sharding_batch_and_context(read_v1: Read) -> None:
    more = "global_batch_size: 16\nmp_replicate_size: 2\ncp_size: 2\nflash_attn: flash_attention_2\n"
    options = "dist_config: {name: fsdp2, reshard_after_forward: false, offload_params: true}\n"
    reading = read_v1(f"model: {MODEL}\nmicro_batch_size: 2\ncutoff_len: 64\n{more}{options}", NPROC_PER_NODE="8")
    keys = ("parallel.data_shard", "parallel.data_replicate", "parallel.context", "training.gradient_accumulation")
    assert values(reading, *keys) == (2, 2, 2, 2)
    keys = ("parallel.reshard_after_forward", "parallel.cpu_offload", "model.attention")
    assert values(reading, *keys) == (False, "all", "flash_attention_2")


def test_deepspeed_and_muon(read_v1: Read, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}')
    text = f"model: {MODEL}\ncutoff_len: 64\ndist_config: {{name: deepspeed, config_file: ds.json}}\n"
    reading = read_v1(f"{text}optim_config: {{name: muon, wd: 0.1}}\n")
    keys = ("parallel.strategy", "parallel.data_shard", "training.precision", "training.optimizer")
    assert values(reading, *keys) == ("zero3", 4, "bf16-mixed", "muon")


def test_dpo_copies_the_model_unless_it_has_adapters(read_v1: Read) -> None:
    whole = read_v1(TRAINED_WHOLE, command="dpo")
    assert whole.value("other_models") == [{"role": "reference", "sharded": True}]
    assert read_v1(ADAPTERS, command="dpo").value("other_models") is None
    assert read_v1(f"{TRAINED_WHOLE}pref_loss: simpo\n", command="dpo").value("other_models") is None


def test_what_is_not_known_is_a_warning(read_v1: Read) -> None:
    backend = read_v1(f"model: {MODEL}\ncutoff_len: 64\ndist_config: {{name: tensorland}}\n")
    assert any("'tensorland' is not supported" in warning for warning in backend.warnings)
    assert backend.job().unsure.weights == "either"
    dora = read_v1(ADAPTERS.replace("r: 16", "r: 16\n  use_dora: true"))
    assert any("use_dora may change the memory" in warning for warning in dora.warnings)


FREEZE_V0 = f"model_name_or_path: {MODEL}\nstage: sft\nfinetuning_type: freeze\nbf16: true\n"


@pytest.mark.parametrize(
    ("settings", "patterns"),
    [
        ("", ["*.26.*", "*.27.*"]),
        ("freeze_trainable_layers: -1\n", ["*.0.*"]),
        ("freeze_trainable_layers: 1\nfreeze_trainable_modules: mlp,self_attn\n", ["*.27.mlp*", "*.27.self_attn*"]),
        ("freeze_trainable_layers: 1\nfreeze_extra_modules: embed_tokens\n", ["*.27.*", "*embed_tokens*"]),
        ("freeze_trainable_layers: 2\nuse_llama_pro: true\n", ["*.13.*", "*.27.*"]),
    ],
)
def test_layers_that_freezing_leaves_to_train(read: Read, tmp_path: Path, settings: str, patterns: list[str]) -> None:
    (tmp_path / "x.yaml").write_text(FREEZE_V0 + settings)
    assert read("llamafactory-cli train x.yaml").value("training.trainable") == patterns


def test_version_1_freezes_by_a_plugin(read_v1: Read) -> None:
    plugin = "{name: freeze, freeze_trainable_layers: 1, freeze_extra_modules: null}"
    reading = read_v1(f"model: {MODEL}\ncutoff_len: 64\npeft_config: {plugin}\ndist_config: {{name: fsdp2}}\n")
    assert values(reading, "training.trainable", "lora.rank", "training.precision") == (["*.27.*"], None, "bf16-mixed")
    assert reading.job().unsure.weights == "less"


def test_vision_tower_and_projector_are_frozen_by_default(read: Read, tmp_path: Path) -> None:
    folder = tmp_path / "vlm"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llava", "text_config": {}, "vision_config": {}}')
    text = "model_name_or_path: ./vlm\nstage: sft\nfinetuning_type: full\n"
    (tmp_path / "x.yaml").write_text(text)
    frozen = read("llamafactory-cli train x.yaml").value("training.trainable")
    assert {"!*vision_tower*", "!*multi_modal_projector*"} <= set(frozen)
    (tmp_path / "x.yaml").write_text(f"{text}freeze_multi_modal_projector: false\n")
    assert "!*multi_modal_projector*" not in read("llamafactory-cli train x.yaml").value("training.trainable")


def test_estimate_of_a_frozen_model_needs_its_config(read: Read, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(FREEZE_V0.replace(MODEL, "some/model"))
    reading = read("llamafactory-cli train x.yaml")
    assert reading.value("training.trainable") is None
    assert reading.job().unsure.optimizer == "less"
    (tmp_path / "x.yaml").write_text(FREEZE_V0)
    assert estimate(read("llamafactory-cli train x.yaml").job(), method="formula").model.parameters == 596_049_920
