"""The batch of a training step: inputs of the model's modality and labels of the task."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from ..request.errors import UnsupportedError
from .build import vocabulary_size

if TYPE_CHECKING:
    from ..request.request import Request

LABEL_NAMES = ("labels", "next_sentence_label", "start_positions", "end_positions")
CHOICES_PER_QUESTION = 4
"""Answers to a multiple-choice question, as in SWAG (transformers' example ``run_swag.py``)."""
TASKS_WITH_SEQUENCE_LABELS = (
    "sequence-classification",
    "next-sentence-prediction",
    "multiple-choice",
    "image-classification",
    "audio-classification",
    "video-classification",
)
"""Tasks with one label per sequence."""
TASKS_WITH_TOKEN_LABELS = (
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
"""Tasks with one label per token, and tasks without labels, whose models return no loss."""
_TASKS_OVER_VOCABULARY = ("causal-lm", "masked-lm", "seq2seq-lm")
"""Tasks whose inputs and labels are ids of one vocabulary."""


def make_inputs(model: Any, request: Request) -> dict[str, Any]:
    """Return a batch without padding, as keyword arguments of the model.

    Raises:
        UnsupportedError: the config does not give the size of the inputs, or no labels can be made for the task.
    """
    rows, tokens = request.training.sequences, request.training.sequence_length
    inputs = _model_inputs(model, request, rows, tokens)
    one_per_row = torch.zeros(rows, dtype=torch.long)
    if request.task in TASKS_WITH_SEQUENCE_LABELS:
        config: Any = getattr(model, "config", None)
        if "input_ids" in inputs and getattr(config, "pad_token_id", 0) is None:
            config.pad_token_id = 0
        return {**inputs, "labels": one_per_row}
    if request.task == "question-answering":
        return {**inputs, "start_positions": one_per_row, "end_positions": one_per_row.clone()}
    if request.task not in TASKS_WITH_TOKEN_LABELS:
        raise UnsupportedError(f"no batch can be made for the task {request.task}")
    inputs["labels"] = torch.randint(0, _ids(model, request), (rows, tokens))
    if "next_sentence_label" in inspect.signature(model.forward).parameters:  # BERT's pretraining
        inputs["next_sentence_label"] = one_per_row
    return inputs


def _model_inputs(model: Any, request: Request, rows: int, tokens: int) -> dict[str, Any]:
    """Return the model's main input, under its name."""
    name = getattr(model, "main_input_name", "input_ids")
    config: Any = getattr(model, "config", None)
    if name == "input_ids":
        shape = (rows, CHOICES_PER_QUESTION, tokens) if request.task == "multiple-choice" else (rows, tokens)
        return {name: torch.randint(0, _ids(model, request), shape)}
    if name == "pixel_values" and getattr(config, "image_size", None):
        size = config.image_size
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return {name: _random_input(model, rows, getattr(config, "num_channels", 3), height, width)}
    if name == "input_features" and getattr(config, "num_mel_bins", None) and hasattr(config, "max_source_positions"):
        frames = 2 * config.max_source_positions  # Whisper's first convolutions halve them
        return {name: _random_input(model, rows, config.num_mel_bins, frames)}
    if name == "input_values":
        return {name: _random_input(model, rows, tokens)}  # audio samples
    raise UnsupportedError(f"{type(model).__name__} reads {name}, whose size its config does not say")


def _ids(model: Any, request: Request) -> int:
    """Return the number of different tokens: a mixture of experts spreads many over its experts, not two."""
    return max(2, vocabulary_size(model)) if request.task in _TASKS_OVER_VOCABULARY else 2


def _random_input(model: Any, *shape: int) -> Any:
    """Return random values in the dtype of the weights, as the collator of a low-precision job makes them."""
    return torch.randn(shape, dtype=next(model.parameters()).dtype)
