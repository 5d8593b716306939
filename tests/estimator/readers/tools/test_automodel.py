"""NeMo Automodel's recipes: a setting that memory depends on is counted, or named with the direction of its doubt."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

ReadRecipe = Callable[..., JobReading]
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


@pytest.fixture
def read(tmp_path: Path) -> ReadRecipe:
    """Return a function that reads a recipe with some sections, on a number of GPUs."""

    def read_recipe(
        *, gpus: int = 8, version: str = "0.5.0", config: dict[str, Any] | None = None, **sections: Any
    ) -> JobReading:
        model = tmp_path / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(str(config or LLAMA).replace("'", '"'))
        recipe: dict[str, Any] = {
            "step_scheduler": {"local_batch_size": 2},
            "dataset": {"_target_": "own.data", "seq_length": 64},
            **sections,
        }
        recipe["model"] = {"pretrained_model_name_or_path": str(model), "torch_dtype": "bfloat16"} | recipe.get(
            "model", {}
        )
        (tmp_path / "r.yaml").write_text(yaml.safe_dump(recipe))
        line = f"automodel r.yaml --nproc-per-node {gpus}"
        return read_launch(shlex.split(line), environ={}, cwd=tmp_path, versions={"nemo_automodel": version})

    return read_recipe


def values(reading: JobReading, *keys: str) -> tuple[Any, ...]:
    return tuple(reading.value(key) for key in keys)


def test_older_versions_are_rehearsed(read: ReadRecipe) -> None:
    with pytest.raises(CannotTellError) as failed:
        read(version="0.4.0")
    assert "vramtop rehearse" in failed.value.message


@pytest.mark.parametrize(("strategy", "precision"), [("fsdp2", "fp32"), ("ddp", "bf16"), ("megatron_fsdp", "bf16")])
def test_managers_cast_the_model_on_one_gpu_except_for_fsdp2(read: ReadRecipe, strategy: str, precision: str) -> None:
    reading = read(gpus=1, model={"torch_dtype": "float32"}, distributed={"strategy": strategy})
    assert values(reading, "training.precision") == (precision,)


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({"reshard_after_forward": False}, "parallel.reshard_after_forward", False),
        ({"reshard_after_forward": True}, "parallel.reshard_after_forward", True),
        ({}, "parallel.reshard_after_forward", None),
        ({}, "parallel.sync_every_micro_batch", False),
        ({"defer_fsdp_grad_sync": False}, "parallel.sync_every_micro_batch", True),
        ({"sequence_parallel": True, "tp_size": 2}, "parallel.sequence_parallel", True),
        ({"activation_checkpointing": "selective"}, "training.activation_checkpointing", "selective"),
        ({"activation_checkpointing": "on"}, "training.activation_checkpointing", "full"),
        ({"activation_checkpointing": False}, "training.activation_checkpointing", "none"),
        (
            {"offload_policy": {"_target_": "torch.distributed.fsdp.CPUOffloadPolicy", "pin_memory": False}},
            "parallel.cpu_offload",
            "all",
        ),
        ({"offload_policy": {"pin_memory": False}}, "parallel.cpu_offload", "all"),
        ({"offload_policy": None}, "parallel.cpu_offload", None),
        ({"enable_compile": True}, "training.compile", True),
        ({"pp_size": 2, "pipeline": {"pp_microbatch_size": 1}}, "training.micro_batch", 1),
        ({"pp_size": 1, "pipeline": {"pp_microbatch_size": 1}}, "training.micro_batch", 2),
    ],
)
def test_settings_of_fsdp2(read: ReadRecipe, settings: dict[str, Any], key: str, value: Any) -> None:
    assert values(read(distributed={"strategy": "fsdp2"} | settings), key) == (value,)


@pytest.mark.parametrize(
    ("settings", "component", "direction"),
    [
        ({"enable_fsdp2_prefetch": True}, "communication", "more"),
        ({"enable_fsdp2_prefetch": False}, "communication", "no"),
        ({"enable_async_tensor_parallel": True}, "communication", "more"),
        ({"autocast_dtype": "bfloat16"}, "activations", "more"),
        ({"activation_checkpointing": True, "activation_checkpointing_scope": "vision"}, "activations", "more"),
        ({"mp_policy": {"param_dtype": "bfloat16", "output_dtype": "float32"}}, "logits", "either"),
        ({"multimodal": {"frozen_sharding": "replicate"}}, "weights", "more"),
        ({"multimodal": {"frozen_sharding": "root"}}, "weights", "no"),
        ({"ep_size": 2, "moe": {"lm_head_precision": "float32"}}, "logits", "more"),
        ({"pp_size": 2, "pipeline": {"pp_schedule": "interleaved1f1b"}}, "activations", "more"),
        ({"pp_size": 2, "pipeline": {"pp_schedule": "1f1b"}}, "activations", "no"),
        ({"tp_size": 2, "tp_plan": "plans.by_model"}, "weights", "more"),
        ({"tp_size": 2, "tp_plan": "elsewhere.plan"}, "weights", "more"),
        ({"tp_size": 2, "custom_tp_plan": {"lm_head": "colwise"}}, "weights", "more"),
        ({"tp_size": 1, "tp_plan": "elsewhere.plan"}, "weights", "no"),
    ],
)
def test_direction_of_doubt_of_fsdp2(
    read: ReadRecipe, settings: dict[str, Any], component: str, direction: str
) -> None:
    reading = read(distributed={"strategy": "fsdp2"} | settings)
    assert getattr(reading.job().unsure, component) == direction
    assert bool(reading.warnings) == (direction != "no")


@pytest.mark.parametrize("strategy", [{"strategy": "megatron_fsdp"}, {"_target_": "distributed.nvfsdp.NVFSDPManager"}])
def test_megatron_fsdp_is_counted_as_fsdp2_with_a_doubt(read: ReadRecipe, strategy: dict[str, Any]) -> None:
    reading = read(distributed=strategy)
    assert values(reading, "parallel.strategy") == ("fsdp2",)
    assert reading.job().unsure.weights == "more"


def test_ddp_with_gradients_in_its_buckets(read: ReadRecipe) -> None:
    reading = read(distributed={"strategy": "ddp", "gradient_as_bucket_view": True})
    assert values(reading, "parallel.data_replicate", "parallel.gradient_as_bucket_view") == (8, True)
    assert values(read(distributed={"strategy": "ddp", "dp_size": "none"}), "parallel.data_replicate") == (8,)


@pytest.mark.parametrize(
    ("sections", "loss", "kernels"),
    [
        ({"loss_fn": {"_target_": "l.masked_ce.MaskedCrossEntropy"}}, "full", None),
        ({"loss_fn": {"_target_": "l.chunked_ce.ChunkedCrossEntropy"}}, "chunked", None),
        ({"loss_fn": {"_target_": "l.linear_ce.FusedLinearCrossEntropy"}}, "fused-linear", None),
        (
            {"loss_fn": {"_target_": "l.te_parallel_ce.TEParallelCrossEntropy"}},
            "full",
            ["norm", "mlp", "rope", "cross-entropy"],
        ),
        ({"model": {"use_liger_kernel": False}}, None, []),
        ({"distributed": {"strategy": "fsdp2", "tp_size": 2}}, None, []),
    ],
)
def test_loss_and_fused_kernels(read: ReadRecipe, sections: Any, loss: str | None, kernels: list[str] | None) -> None:
    assert values(read(**sections), "training.loss", "training.fused_kernels") == (loss, kernels)


def test_packed_sequences_have_one_length_and_flash_attention(read: ReadRecipe) -> None:
    keys = ("training.sequence_length", "training.varying_lengths", "model.attention")
    assert values(read(packed_sequence={"packed_sequence_size": 512}), *keys) == (512, False, "flash_attention_2")
    assert values(read(packed_sequence={"packed_sequence_size": 0}), *keys) == (64, True, "sdpa")


def test_adapters(read: ReadRecipe) -> None:
    peft = {"_target_": "p.PeftConfig", "target_modules": "*_proj", "dropout": 0.1, "lora_dtype": "torch.float32"}
    reading = read(peft=peft, quantization={"load_in_4bit": True})
    keys = ("lora.rank", "lora.dropout", "lora.adapter_dtype", "lora.quantization", "saving.weights")
    assert values(reading, *keys) == (8, 0.1, "fp32", "nf4", "adapters")
    assert read(peft=peft | {"use_dora": True}).job().unsure.activations == "more"
    assert read(peft=peft | {"target_modules": ["*"]}).value("lora.targets") == "all-linear"


@pytest.mark.parametrize(
    ("sections", "component", "direction"),
    [
        ({"fp8": {"enabled": True}}, "activations", "either"),
        ({"qat": {"enabled": True}}, "activations", "more"),
        ({"model": {"backend": {"attn": "te", "linear": "te"}}}, "activations", "either"),
        ({"loss_fn": {"_target_": "l.MaskedCrossEntropy", "fp32_upcast": False}}, "logits", "less"),
        ({"loss_fn": {"_target_": "own.Loss"}}, "logits", "either"),
        ({"model": {"output_hidden_states": True}}, "activations", "more"),
    ],
)
def test_direction_of_doubt_of_other_sections(read: ReadRecipe, sections: Any, component: str, direction: str) -> None:
    assert getattr(read(**sections).job().unsure, component) == direction


def test_checkpoints_are_sharded(read: ReadRecipe) -> None:
    reading = read(checkpoint={"enabled": True, "save_consolidated": "final"})
    assert values(reading, "saving.weights", "saving.optimizer") == ("sharded", True)
    assert read(checkpoint={"enabled": False}).job().saving is None


def test_an_unknown_dtype_of_adapters_is_a_doubt(read: ReadRecipe) -> None:
    reading = read(peft={"_target_": "x.PeftConfig", "dim": 4, "lora_dtype": "auto8"})
    assert "'auto8' is not supported" in " ".join(reading.warnings)
    assert reading.job().unsure.weights == "either"
