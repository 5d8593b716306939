"""How other training tools call the settings of a job, for writing changes down in their own words.

Only names that stand for one job key and nothing else; the readers (``readers``) know many more. Sources are those
that each tool's reader names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

_OPTIMIZERS = {
    "adamw-fused": "adamw_torch_fused",
    "adamw-8bit": "adamw_bnb_8bit",
    "paged-adamw-8bit": "paged_adamw_8bit",
}
_ON: Mapping[Any, Any] = MappingProxyType({"full": True, "none": False})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolKey:
    """A setting of a tool."""

    name: str
    values: Mapping[Any, Any] | None = None
    """The tool's value for each value of the job; None: they are the same."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """What has to be set with it."""


def _batches(batch: str, accumulation: str, length: str) -> dict[str, ToolKey]:
    return {
        "training.micro_batch": ToolKey(name=batch),
        "training.gradient_accumulation": ToolKey(name=accumulation),
        "training.sequence_length": ToolKey(name=length),
    }


_TRAINER = {
    **_batches("per_device_train_batch_size", "gradient_accumulation_steps", "max_length"),
    "training.activation_checkpointing": ToolKey(name="gradient_checkpointing", values=_ON),
    "training.activation_offload": ToolKey(name="activation_offloading"),
    "training.optimizer": ToolKey(name="optim", values=_OPTIMIZERS),
    "training.loss": ToolKey(name="use_liger_kernel", values={"fused-linear": True}),
}
TOOL_KEYS: Mapping[str, Mapping[str, ToolKey]] = MappingProxyType(
    {
        "transformers": {
            key: value
            for key, value in _TRAINER.items()
            if key not in ("training.activation_offload", "training.sequence_length")
        },
        "TRL": {
            **_TRAINER,
            "model.attention": ToolKey(name="attn_implementation"),
            "training.precision": ToolKey(name="dtype", values={"bf16": "bfloat16"}),
            "lora.rank": ToolKey(name="lora_r", also={"use_peft": True}),
            "lora.targets": ToolKey(name="lora_target_modules"),
            "lora.quantization": ToolKey(
                name="load_in_4bit", values={"nf4-double": True}, also={"use_bnb_nested_quant": True}
            ),
        },
        "axolotl": {
            **_batches("micro_batch_size", "gradient_accumulation_steps", "sequence_len"),
            "training.activation_checkpointing": ToolKey(name="gradient_checkpointing", values=_ON),
            "training.activation_offload": ToolKey(name="gradient_checkpointing", values={True: "offload"}),
            "training.optimizer": ToolKey(name="optimizer", values=_OPTIMIZERS),
            "model.attention": ToolKey(name="sdp_attention", values={"sdpa": True}),
            "lora.rank": ToolKey(name="lora_r", also={"adapter": "lora"}),
            "lora.targets": ToolKey(name="lora_target_linear", values={"all-linear": True}),
            "lora.quantization": ToolKey(name="load_in_4bit", values={"nf4-double": True}, also={"adapter": "qlora"}),
        },
        "LLaMA-Factory": {
            **_batches("per_device_train_batch_size", "gradient_accumulation_steps", "cutoff_len"),
            "training.activation_checkpointing": ToolKey(
                name="disable_gradient_checkpointing", values={"full": False, "none": True}
            ),
            "training.activation_offload": ToolKey(name="use_unsloth_gc"),
            "training.optimizer": ToolKey(name="optim", values=_OPTIMIZERS),
            "training.loss": ToolKey(name="enable_liger_kernel", values={"fused-linear": True}),
            "training.precision": ToolKey(name="pure_bf16", values={"bf16": True}),
            "model.attention": ToolKey(name="flash_attn", values={"sdpa": "sdpa", "flash_attention_2": "fa2"}),
            "lora.rank": ToolKey(name="lora_rank", also={"finetuning_type": "lora"}),
            "lora.targets": ToolKey(name="lora_target", values={"all-linear": "all"}),
            "lora.quantization": ToolKey(name="quantization_bit", values={"nf4-double": 4}),
        },
        "ms-swift": {
            **_batches("per_device_train_batch_size", "gradient_accumulation_steps", "max_length"),
            "training.activation_checkpointing": ToolKey(name="gradient_checkpointing", values=_ON),
            "training.optimizer": ToolKey(name="optim", values=_OPTIMIZERS),
            "training.loss": ToolKey(name="use_liger_kernel", values={"fused-linear": True}),
            "model.attention": ToolKey(name="attn_impl"),
            "lora.rank": ToolKey(name="lora_rank", also={"tuner_type": "lora"}),
            "lora.targets": ToolKey(name="target_modules"),
            "lora.quantization": ToolKey(name="quant_bits", values={"nf4-double": 4}, also={"quant_method": "bnb"}),
        },
        "torchtune": {
            **_batches("batch_size", "gradient_accumulation_steps", "tokenizer.max_seq_len"),
            "training.activation_checkpointing": ToolKey(name="enable_activation_checkpointing", values=_ON),
            "training.activation_offload": ToolKey(name="enable_activation_offloading"),
            "training.optimizer": ToolKey(name="optimizer.fused", values={"adamw-fused": True}),
            "training.precision": ToolKey(name="dtype", values={"bf16": "bf16"}),
            "parallel.reshard_after_forward": ToolKey(name="fsdp_reshard_after_forward"),
            "parallel.cpu_offload": ToolKey(name="fsdp_cpu_offload", values={"all": True}),
        },
        "torchtitan": {
            "training.micro_batch": ToolKey(name="training.local_batch_size"),
            "training.sequence_length": ToolKey(name="training.seq_len"),
            "training.activation_checkpointing": ToolKey(name="activation_checkpoint.mode"),
            "parallel.data_shard": ToolKey(name="parallelism.data_parallel_shard_degree"),
            "parallel.reshard_after_forward": ToolKey(
                name="parallelism.fsdp_reshard_after_forward", values={True: "always", False: "never"}
            ),
            "parallel.cpu_offload": ToolKey(name="training.enable_cpu_offload", values={"all": True}),
        },
        "LitGPT": {
            "training.micro_batch": ToolKey(name="train.micro_batch_size"),
            "training.sequence_length": ToolKey(name="train.max_seq_length"),
            "training.precision": ToolKey(name="precision", values={"bf16": "bf16-true", "bf16-mixed": "bf16-mixed"}),
            "lora.rank": ToolKey(name="lora_r"),
            "lora.quantization": ToolKey(name="quantize", values={"nf4-double": "bnb.nf4-dq", "nf4": "bnb.nf4"}),
        },
        "NeMo Automodel": {
            "training.micro_batch": ToolKey(name="step_scheduler.local_batch_size"),
            "training.sequence_length": ToolKey(name="packed_sequence.packed_sequence_size"),
            "training.activation_checkpointing": ToolKey(name="distributed.activation_checkpointing", values=_ON),
            "parallel.reshard_after_forward": ToolKey(name="distributed.reshard_after_forward"),
            "lora.rank": ToolKey(name="peft.dim"),
        },
        "vLLM": {
            "training.micro_batch": ToolKey(name="max-num-seqs"),
            "training.sequence_length": ToolKey(name="max-model-len"),
            "training.precision": ToolKey(name="dtype", values={"bf16": "bfloat16", "fp16": "float16"}),
            "inference.cache_dtype": ToolKey(name="kv-cache-dtype"),
            "inference.weights": ToolKey(name="quantization", values={"fp8": "fp8"}),
            "inference.gpu_memory_utilization": ToolKey(name="gpu-memory-utilization"),
            "inference.prefill_tokens": ToolKey(name="max-num-batched-tokens"),
            "parallel.tensor": ToolKey(name="tensor-parallel-size"),
        },
        "Megatron-LM": {
            "training.micro_batch": ToolKey(name="micro-batch-size"),
            "training.sequence_length": ToolKey(name="seq-length"),
            "training.activation_checkpointing": ToolKey(
                name="recompute-granularity", values={"full": "full", "selective": "selective"}
            ),
        },
    }
)
"""By tool, as ``readers.tools.registry`` names them; ``TRL`` and ``transformers`` besides."""

DERIVED_KEYS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "LitGPT": {"training.gradient_accumulation": "train.global_batch_size"},
        "NeMo Automodel": {"training.gradient_accumulation": "step_scheduler.global_batch_size"},
        "Megatron-LM": {"training.gradient_accumulation": "--global-batch-size"},
        "torchtitan": {"training.gradient_accumulation": "training.global_batch_size"},
    }
)
"""Job keys that a tool works out of another setting, which stays as it is."""
