"""One batch for a training step: what the model's forward pass takes, by its task and by what it reads."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from ..request.limits import UnsupportedError

if TYPE_CHECKING:
    from ..request.request import Request

LABELS = ("labels", "next_sentence_label", "start_positions", "end_positions")
CHOICES = 4
"""Answers per question of multiple choice, as in SWAG (transformers' example ``run_swag.py``)."""
ONE_LABEL = (
    "sequence-classification",
    "next-sentence-prediction",
    "multiple-choice",
    "image-classification",
    "audio-classification",
    "video-classification",
)
"""Tasks with one label per sequence."""
PER_TOKEN = (
    "causal-lm",
    "masked-lm",
    "seq2seq-lm",
    "token-classification",
    "pretraining",
    "speech-seq2seq",
    "ctc",
    "image-text-to-text",
    "multimodal-lm",
    "feature-extraction",
    "text-encoding",
)
"""Tasks with one label per token; and those without labels, of which no step can be taken."""


def make_inputs(model: Any, request: Request) -> dict[str, Any]:
    """A batch without padding.

    Raises:
        UnsupportedError: the model reads something that cannot be made from its config, or the task's labels cannot.
    """
    rows, tokens = request.training.micro_batch, request.training.sequence_length
    inputs = _read(model, request, rows, tokens)
    one_per_row = torch.zeros(rows, dtype=torch.long)
    if request.task in ONE_LABEL:
        config: Any = getattr(model, "config", None)
        if "input_ids" in inputs and getattr(config, "pad_token_id", 0) is None:
            config.pad_token_id = 0
        return {**inputs, "labels": one_per_row}
    if request.task == "question-answering":
        return {**inputs, "start_positions": one_per_row, "end_positions": one_per_row.clone()}
    if request.task not in PER_TOKEN:
        raise UnsupportedError(f"no batch can be made for the task {request.task}")
    inputs["labels"] = torch.randint(0, 2, (rows, tokens))
    if "next_sentence_label" in inspect.signature(model.forward).parameters:  # BERT's pretraining
        inputs["next_sentence_label"] = one_per_row
    return inputs


def _read(model: Any, request: Request, rows: int, tokens: int) -> dict[str, Any]:
    """What the model reads, by the name it has for it."""
    name = getattr(model, "main_input_name", "input_ids")
    config: Any = getattr(model, "config", None)
    if name == "input_ids":
        shape = (rows, CHOICES, tokens) if request.task == "multiple-choice" else (rows, tokens)
        return {name: torch.randint(0, 2, shape)}
    if name == "pixel_values" and getattr(config, "image_size", None):
        size = config.image_size
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return {name: _noise(model, rows, getattr(config, "num_channels", 3), height, width)}
    if name == "input_features" and getattr(config, "num_mel_bins", None) and hasattr(config, "max_source_positions"):
        frames = 2 * config.max_source_positions  # Whisper's first convolutions halve them
        return {name: _noise(model, rows, config.num_mel_bins, frames)}
    if name == "input_values":
        return {name: _noise(model, rows, tokens)}  # samples
    raise UnsupportedError(f"{type(model).__name__} reads {name}, whose size its config does not say")


def _noise(model: Any, *shape: int) -> Any:
    """In the type of the weights, as a collator of a low-precision job makes it."""
    return torch.randn(shape, dtype=next(model.parameters()).dtype)
