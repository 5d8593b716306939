"""The model itself, built from its config without weights: with a task's head, a dtype, an attention, adapters."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from .protocol import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .request import Lora, Request

AUTO_CLASSES = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "feature-extraction": "AutoModel",
}
IGNORED_FIELDS = {
    "model_type",
    "architectures",
    "auto_map",  # names code that came with the model
    "transformers_version",
    "quantization_config",  # the count is of the parameters before any quantization
    "_attn_implementation",
    "attn_implementation",
    "_name_or_path",
    "dtype",  # the job says in what precision it trains
    "torch_dtype",
}


def build_model(fields: dict[str, Any], task: str, *, attention: str = "eager", dtype: Any = None) -> Any:
    """A model of that config and task, on the current default device or under the current fake mode.

    Args:
        fields: of the Hugging Face config.
        task: the head, as job files name it.
        attention: the implementation, as transformers names it.
        dtype: of the weights; fp32 when left out.

    Raises:
        RefusedError: transformers does not know the model type or has no such head for it.
    """
    import torch
    import transformers

    name = fields["model_type"]
    if name not in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
        raise RefusedError(f"transformers {transformers.__version__} does not know the model type {name!r}")
    kwargs = {key: value for key, value in fields.items() if key not in IGNORED_FIELDS}
    config = transformers.AutoConfig.for_model(name, **kwargs)
    auto_class = getattr(transformers, AUTO_CLASSES[task])
    if type(config) not in auto_class._model_mapping:
        raise RefusedError(f"transformers {transformers.__version__} has no {task} head for the model type {name!r}")
    with _default_dtype(dtype or torch.float32):
        model = auto_class.from_config(config, attn_implementation=attention, trust_remote_code=False)
    if fields.get("tie_word_embeddings") is False and has_tied_head(model):
        # transformers 5 ties T5's head whatever the config says, but keeps apart what a checkpoint holds apart
        output = model.get_output_embeddings()
        output.weight = torch.nn.Parameter(torch.empty_like(output.weight))
    return model


def prepare_for_training(model: Any, request: Request) -> Any:
    """The model as a training script hands it on: adapters applied, checkpointing on, caches of inference off."""
    model.config.use_cache = False
    if request.task == "seq2seq-lm" and getattr(model.config, "decoder_start_token_id", None) is None:
        model.config.decoder_start_token_id = 0  # transformers 5 keeps it with the settings of generation
    if request.lora is not None:
        model = _with_adapters(model, request.lora)
    if request.training.activation_checkpointing == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if request.lora is not None:
            model.enable_input_require_grads()
    model.train()
    return model


def has_tied_head(model: Any) -> bool:
    """The output layer's weight is the token embedding itself."""
    head, tokens = model.get_output_embeddings(), model.get_input_embeddings()
    return head is not None and tokens is not None and getattr(head, "weight", None) is tokens.weight


def _with_adapters(model: Any, lora: Lora) -> Any:
    import torch

    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise RefusedError("adapters need the library peft, which this interpreter does not have") from None
    move = torch.nn.Module.to
    # fake parameters cannot be moved; adapters are made in fp32, which peft's casts there and back end in too
    torch.nn.Module.to = lambda module, *_args, **_kwargs: module
    try:
        return get_peft_model(model, LoraConfig(r=lora.rank, target_modules=lora.targets))
    finally:
        torch.nn.Module.to = move


@contextlib.contextmanager
def _default_dtype(dtype: Any) -> Iterator[None]:
    """Parameters are made in that type: what ``from_config(dtype=...)`` does, in every version of transformers."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
