"""The closed form compared with torch: every allocation of two real training steps, counted on fake tensors.

The count is independent of the closed form: a dispatch mode sees each new storage of forward, backward and optimizer
step, and a finalizer sees it go. No memory is used, so the models can be of a size at which the shares matter.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers
from model_configs import llama_config
from slow_cases import quick_every
from storage_counter import StorageCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import masking_utils

from vramtop.estimator.budget import Budget
from vramtop.estimator.formula.process_memory import workspace_bytes
from vramtop.estimator.job.gpu_catalogue import generation_of

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
MODELS = {
    "causal-lm": transformers.AutoModelForCausalLM,
    "masked-lm": transformers.AutoModelForMaskedLM,
    "sequence-classification": transformers.AutoModelForSequenceClassification,
}
DTYPES = {"bf16": torch.bfloat16}
BATCH, LENGTH = 2, 1024


@dataclass
class Step:
    """Peaks of the second step, in bytes."""

    forward: int = 0
    backward: int = 0
    optimizer_step: int = 0


def take_steps(config: dict[str, Any], settings: dict[str, Any]) -> Step:
    """Run two training steps of the real model in a plain loop."""
    fields = dict(config)
    made = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    made.use_cache = False
    task = settings.get("model.task", "causal-lm")
    precision = settings["training.precision"]
    step = Step()
    with FakeTensorMode(allow_non_fake_inputs=True), StorageCounter() as counter:
        model = MODELS[task].from_config(
            made,
            attn_implementation=settings.get("model.attention", "sdpa"),
            dtype=DTYPES.get(precision, torch.float32),
        )
        model.train()
        if settings.get("training.activation_checkpointing") == "full":
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for _ in range(2):
            for _ in range(settings.get("training.gradient_accumulation", 1)):
                ids = torch.randint(0, made.vocab_size, (BATCH, LENGTH))
                labels = torch.zeros(BATCH, dtype=torch.long) if "classification" in task else ids
                mixed = precision.endswith("-mixed")
                counter.reset_peak()
                with torch.autocast("cpu", dtype=torch.bfloat16) if mixed else contextlib.nullcontext():
                    loss = model(input_ids=ids, labels=labels).loss
                step.forward = counter.peak
                counter.reset_peak()
                loss.backward()
                del loss
                step.backward = counter.peak
            counter.reset_peak()
            optimizer.step()
            step.optimizer_step = counter.peak
            optimizer.zero_grad()
    return step


@pytest.fixture(autouse=True)
def _no_padding_mask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Report that no mask is needed, as transformers finds on real tensors without padding; fakes hold no values."""
    monkeypatch.setattr(masking_utils, "is_tracing", lambda *_: False)
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda *_: None)
    yield
    torch.set_default_dtype(torch.float32)


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
    ("family", "settings"), quick_every(3, CASES), ids=[f"{f}-{'-'.join(map(str, s.values()))}" for f, s in CASES]
)
def test_each_phase_lies_within_three_per_cent_of_what_torch_allocates(
    budget_of: Callable[..., Budget], family: str, settings: dict[str, Any]
) -> None:
    counted = take_steps(CONFIGS[family], settings)
    shape = {"training.micro_batch": BATCH, "training.sequence_length": LENGTH, "training.optimizer": "adamw"}
    budget = budget_of(CONFIGS[family], shape | settings)
    expected = {"forward": counted.forward, "backward": counted.backward, "optimizer step": counted.optimizer_step}
    for phase in budget.phases[1:]:
        predicted = phase.allocated_bytes - workspace_bytes(generation_of(None))
        assert predicted == pytest.approx(expected[phase.name], rel=0.03), phase.name
