"""Real training steps of a model on fake tensors: what they allocate, phase by phase, as ``StorageCounter`` counts it.

No memory is used, so the models can be of a size at which the shares matter.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from storage_counter import StorageCounter
from torch._subclasses.fake_tensor import FakeTensorMode

from vramtop.estimator.budget import Budget
from vramtop.estimator.formula.process_memory import workspace_bytes
from vramtop.estimator.job.gpu_catalogue import generation_of

MODELS = {
    "causal-lm": transformers.AutoModelForCausalLM,
    "masked-lm": transformers.AutoModelForMaskedLM,
    "sequence-classification": transformers.AutoModelForSequenceClassification,
}
BATCH, LENGTH = 2, 1024


def take_steps(
    config: dict[str, Any], settings: dict[str, Any], freeze: Callable[[Any], object] = id
) -> tuple[dict[str, int], int]:
    """Run two training steps in a plain loop; return each phase's peak in the second, and the trained parameters."""
    fields = dict(config)
    made = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    made.use_cache, made.pad_token_id = config.get("use_cache", False), 0
    task, precision = settings.get("model.task", "causal-lm"), settings["training.precision"]
    peaks: dict[str, int] = {}
    with FakeTensorMode(allow_non_fake_inputs=True), StorageCounter() as counter:
        model = MODELS[task].from_config(
            made,
            attn_implementation=settings.get("model.attention", "sdpa"),
            dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
        )
        model.train()
        freeze(model)
        if settings.get("training.activation_checkpointing") == "full":
            model.activation_checkpointing_enable()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, foreach=True)
        for _ in range(2):
            for _ in range(settings.get("training.gradient_accumulation", 1)):
                ids = torch.randint(0, made.vocab_size, (BATCH, LENGTH))
                labels = torch.zeros(BATCH, dtype=torch.long) if "classification" in task else ids
                mixed = precision.endswith("-mixed")
                counter.reset_peak()
                with torch.autocast("cpu", dtype=torch.bfloat16) if mixed else contextlib.nullcontext():
                    loss = model(input_ids=ids, labels=labels).loss
                peaks["forward"] = counter.peak
                counter.reset_peak()
                loss.backward()
                del loss
                peaks["backward"] = counter.peak
            counter.reset_peak()
            optimizer.step()
            peaks["optimizer step"] = counter.peak
            optimizer.zero_grad()
    return peaks, sum(parameter.numel() for parameter in trained)


def check_phases(budget: Budget, peaks: dict[str, int]) -> None:
    """Hold each phase of a budget to three per cent of what was counted."""
    for phase in budget.phases[1:]:
        predicted = phase.allocated_bytes - workspace_bytes(generation_of(None))
        assert predicted == pytest.approx(peaks[phase.name], rel=0.03), phase.name
