"""The closed form compared with torch: every allocation of two real training steps, counted on fake tensors.

The count is independent of the closed form: a dispatch mode sees each new storage of forward, backward and optimizer
step, and a finalizer sees it go. No memory is used, so the models can be of a size at which the shares matter.
"""

from collections.abc import Callable
from typing import Any

import pytest
from fake_steps import BATCH, LENGTH, check_phases, take_steps
from model_configs import llama_config
from slow_cases import quick_every

from vramtop.estimator.budget import Budget

SMALL = {"vocab_size": 4000, "num_hidden_layers": 4}
DROPLESS = {"attention_dropout": 0.0, "hidden_dropout": 0.0}
LLAMA = llama_config(hidden=512, mlp=1408, heads=8, kv_heads=2, **SMALL)
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "qwen3": LLAMA | {"model_type": "qwen3", "head_dim": 64},
    "phi3": LLAMA | {"model_type": "phi3", "num_key_value_heads": 8, "pad_token_id": 0},
    "gemma2": LLAMA | {"model_type": "gemma2", "head_dim": 64},
    "mixtral": LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_neox": LLAMA | {"model_type": "gpt_neox", "num_key_value_heads": 8, **DROPLESS},
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 512,
        "n_layer": 4,
        "n_head": 8,
        "n_positions": 1024,
        "vocab_size": 4000,
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
    },
    "bert": {
        "model_type": "bert",
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
        "max_position_embeddings": 1024,
        "attention_probs_dropout_prob": 0.0,
        "hidden_dropout_prob": 0.0,
        **SMALL,
    },
}
pytestmark = pytest.mark.usefixtures("no_padding_mask")

CASES = [
    *[(family, {"training.precision": "bf16"}) for family in CONFIGS if family not in ("bert", "gemma2")],
    *[(family, {"training.precision": "bf16-mixed"}) for family in ("llama", "qwen3", "phi3", "gpt_neox")],
    ("phi3", {"training.precision": "fp32"}),  # without grouped heads: with them, a GPU keeps all scores in fp32
    ("llama", {"training.precision": "bf16", "training.activation_checkpointing": "full"}),
    ("llama", {"training.precision": "bf16-mixed", "training.activation_checkpointing": "full"}),
    ("llama", {"training.precision": "bf16", "training.gradient_accumulation": 2}),
    ("llama", {"training.precision": "bf16", "model.attention": "eager"}),
    ("gemma2", {"training.precision": "bf16", "model.attention": "eager"}),
    ("bert", {"training.precision": "fp32", "model.task": "masked-lm"}),
    ("bert", {"training.precision": "bf16-mixed", "model.task": "masked-lm"}),
    ("bert", {"training.precision": "fp32", "model.task": "sequence-classification"}),
]


@pytest.mark.parametrize(
    ("family", "settings"), quick_every(12, CASES), ids=[f"{f}-{'-'.join(map(str, s.values()))}" for f, s in CASES]
)
def test_each_phase_lies_within_three_per_cent_of_what_torch_allocates(
    budget_of: Callable[..., Budget], family: str, settings: dict[str, Any]
) -> None:
    peaks, _ = take_steps(CONFIGS[family], settings)
    shape = {"training.micro_batch": BATCH, "training.sequence_length": LENGTH, "training.optimizer": "adamw"}
    check_phases(budget_of(CONFIGS[family], shape | settings), peaks)
