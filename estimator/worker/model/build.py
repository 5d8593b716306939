"""The model itself, built from its config without weights: with a task's head, a dtype, an attention, adapters."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ..request.protocol import RefusedError
from ..request.user_code import Code, make_model, reported
from .tasks import auto_class

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..request.request import Lora, Request

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


def build_model(
    fields: dict[str, Any], task: str, *, attention: str = "eager", dtype: Any = None, code: Code | None = None
) -> Any:
    """A model of that config and task, on the current default device or under the current fake mode.

    Args:
        fields: of the Hugging Face config.
        task: the head, as job files name it.
        attention: the implementation, as transformers names it.
        dtype: of the weights; fp32 when left out.
        code: what the user allows to be run beside the installed libraries; his own model is taken as it comes.

    Raises:
        RefusedError: transformers does not know the model type or has no such head for it, or the user's code fails.
    """
    import torch

    with _default_dtype(dtype or torch.float32):
        if code is not None and code.model:
            return make_model(code.model, code.folder)
        if code is not None and code.remote and fields.get("auto_map"):
            return _from_own_code(code, task, attention)
        return _from_transformers(fields, task, attention)


def prepare_for_training(model: Any, request: Request) -> Any:
    """The model as a training script hands it on: adapters applied, checkpointing on, caches of inference off."""
    config: Any = getattr(model, "config", None)
    if config is not None:
        config.use_cache = False
    if request.task == "seq2seq-lm" and getattr(config, "decoder_start_token_id", 0) is None:
        config.decoder_start_token_id = 0  # transformers 5 keeps it with the settings of generation
    if request.lora is not None:
        model = with_adapters(model, request.lora)
    if request.training.activation_checkpointing == "full":
        if not hasattr(model, "gradient_checkpointing_enable"):
            raise RefusedError(f"{type(model).__name__} has no gradient_checkpointing_enable, as transformers' have")
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if request.lora is not None:
            model.enable_input_require_grads()
    model.train()
    return model


def has_tied_head(model: Any) -> bool:
    """The output layer's weight is the token embedding itself."""
    if not hasattr(model, "get_output_embeddings"):
        return False
    head, tokens = model.get_output_embeddings(), _input_embeddings(model)
    return head is not None and tokens is not None and getattr(head, "weight", None) is getattr(tokens, "weight", None)


def vocabulary(model: Any) -> int:
    """Words of the output's vocabulary; 0 where the model does not say."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return getattr(text, "vocab_size", None) or 0


def with_adapters(model: Any, lora: Lora) -> Any:
    """The model as peft adapts it.

    Raises:
        RefusedError: peft is not there, or finds nothing to adapt.
    """
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
    except ValueError as error:
        raise RefusedError(f"peft cannot adapt this model: {' '.join(str(error).split())[:200]}") from None
    finally:
        torch.nn.Module.to = move


def _from_transformers(fields: dict[str, Any], task: str, attention: str) -> Any:
    import transformers

    name = fields.get("model_type")
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if name not in known and fields.get("auto_map"):
        raise RefusedError(
            f"the model type {name!r} comes with code of its own; give --trust-remote-code "
            "(model.trust_remote_code = true) to have it run"
        )
    if name not in known:
        raise RefusedError(f"transformers {transformers.__version__} does not know the model type {name!r}")
    kwargs = {key: value for key, value in fields.items() if key not in IGNORED_FIELDS}
    config = transformers.AutoConfig.for_model(name, **kwargs)
    head = auto_class(task)
    if type(config) not in head._model_mapping:
        raise RefusedError(f"transformers {transformers.__version__} has no {task} head for the model type {name!r}")
    kind = head._model_mapping[type(config)]
    if attention == "sdpa" and not getattr(kind, "_supports_sdpa", True):
        attention = "eager"  # what transformers takes where nobody asks for one
    model = head.from_config(config, attn_implementation=attention, trust_remote_code=False)
    if fields.get("tie_word_embeddings") is False and has_tied_head(model):
        import torch

        # transformers 5 ties T5's head whatever the config says, but keeps apart what a checkpoint holds apart
        output = model.get_output_embeddings()
        output.weight = torch.nn.Parameter(torch.empty_like(output.weight))
    return model


def _from_own_code(code: Code, task: str, attention: str) -> Any:
    """A model whose folder holds its code, which transformers imports by the config's ``auto_map``."""
    import transformers

    head = auto_class(task)
    with reported(f"the code in {code.folder}", code.folder):
        config = transformers.AutoConfig.from_pretrained(code.folder, trust_remote_code=True)
        if head.__name__ not in (getattr(config, "auto_map", None) or {}) and type(config) not in head._model_mapping:
            raise RefusedError(f"{code.folder}: its auto_map has no {head.__name__} (task {task})")
        for name in ("dtype", "torch_dtype"):
            if getattr(config, name, None) is not None:
                setattr(config, name, None)  # the job says in what precision it trains
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        try:
            return head.from_config(config, attn_implementation=attention, trust_remote_code=True)
        except ValueError as error:
            if attention == "eager" or "attention implementation" not in str(error):
                raise
            return head.from_config(config, attn_implementation="eager", trust_remote_code=True)


def _input_embeddings(model: Any) -> Any:
    try:
        return model.get_input_embeddings()
    except NotImplementedError:  # some of transformers' models of other modalities say so
        return None


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
