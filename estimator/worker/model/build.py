"""The model, built from its config without weights: task head, dtype, attention implementation, adapters."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ..request.errors import RefusedError
from ..request.user_code import UserCode, build_user_model, refusing_errors
from .dtypes import DTYPES, default_dtype
from .tasks import auto_class
from .trainable import apply_trainable, owning_modules, trained_names

if TYPE_CHECKING:
    from ..request.request import Lora, Request, Trainable

IGNORED_CONFIG_FIELDS = {
    "model_type",
    "architectures",
    "auto_map",  # names code that came with the model
    "transformers_version",
    "quantization_config",  # parameters are counted before quantization
    "_attn_implementation",
    "attn_implementation",
    "_name_or_path",
    "dtype",  # the job's precision decides
    "torch_dtype",
}


def build_model(
    fields: dict[str, Any], task: str, *, attention: str = "eager", dtype: Any = None, code: UserCode | None = None
) -> Any:
    """Build a model on the current default device or under the current fake mode.

    Args:
        fields: of the Hugging Face config.
        task: the head, named as in job files.
        attention: the attention implementation, named as in transformers.
        dtype: of the weights; fp32 by default.
        code: code that the user allows to run beside the installed libraries; a model of the user's is not changed.

    Raises:
        RefusedError: transformers does not know the model type or has no such head for it, or the user's code fails.
    """
    with default_dtype(dtype or DTYPES["fp32"]):  # ``from_config(dtype=...)`` has other names in other versions
        if code is not None and code.model:
            return build_user_model(code.model, code.folder)
        if code is not None and code.remote and fields.get("auto_map"):
            return _from_remote_code(code, task, attention)
        return _from_transformers(fields, task, attention)


def import_model_code(fields: dict[str, Any], task: str) -> None:
    """Import the module of the model's class, which transformers does when it is first used."""
    with contextlib.suppress(Exception):  # building the model gives the reason
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        auto_class(task)._model_mapping[CONFIG_MAPPING[fields["model_type"]]]


def resolved_config(fields: dict[str, Any]) -> Any:
    """Return the config with transformers' defaults for the fields that it leaves out."""
    import transformers

    kwargs = {key: value for key, value in fields.items() if key not in IGNORED_CONFIG_FIELDS}
    return transformers.AutoConfig.for_model(fields["model_type"], **kwargs)


def prepare_for_training(model: Any, request: Request) -> Any:
    """Return the model as a training script prepares it: adapters, checkpointing, no inference cache."""
    config: Any = getattr(model, "config", None)
    if config is not None:
        config.use_cache = False
    if request.task == "seq2seq-lm" and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0  # transformers 5 keeps it in the generation config
    _take_older_forms(model, request)
    _take_own_experts(model, request)
    if request.lora is not None:
        _quantize(model, request)
        model = add_lora_adapters(model, request.lora, request.trainable)
    elif request.trainable is not None:
        apply_trainable(model, request.trainable)
    if request.training.activation_checkpointing == "full" and not request.loop.checkpoints_parts:
        if not hasattr(model, "gradient_checkpointing_enable"):
            raise RefusedError(f"{type(model).__name__} has no gradient_checkpointing_enable, as transformers' have")
        reentrant = request.older.reentrant_checkpoints
        settings = {"use_reentrant": reentrant, **recomputing(request)}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
        if request.lora is not None:
            model.enable_input_require_grads()
        elif request.older.checkpoints_without_gradient and hasattr(model, "disable_input_require_grads"):
            model.disable_input_require_grads()
    model.train()
    return model


def recomputing(request: Request) -> dict[str, Any]:
    """Return the argument with which a loop's checkpoints recompute whole blocks; empty: they stop early."""
    import inspect

    from torch.utils.checkpoint import checkpoint

    known = "early_stop" in inspect.signature(checkpoint).parameters  # since torch 2.9
    return {"early_stop": False} if request.loop.recomputes_whole_blocks and known else {}


def add_lora_adapters(model: Any, lora: Lora, trainable: Trainable | None = None) -> Any:
    """Return the model with peft's LoRA adapters, and trained copies of the modules that train besides.

    Raises:
        RefusedError: peft is not installed, or finds nothing to adapt.
    """
    import torch

    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise RefusedError("adapters need the library peft, which this interpreter does not have") from None
    copied = owning_modules(trained_names(model, trainable)) if trainable is not None else []
    move = torch.nn.Module.to
    # fake parameters cannot be moved; adapters are created in fp32, where peft's two casts would end as well
    torch.nn.Module.to = lambda module, *_args, **_kwargs: module
    try:
        settings = LoraConfig(
            r=lora.rank, target_modules=lora.targets, lora_dropout=lora.dropout, modules_to_save=copied or None
        )
        if lora.quantization == "none":
            model = get_peft_model(model, settings)
        else:
            from .quantized.peft_layers import adapters_on_stand_ins

            with adapters_on_stand_ins():
                model = get_peft_model(model, settings)
    except ValueError as error:
        raise RefusedError(f"peft cannot adapt this model: {' '.join(str(error).split())[:200]}") from None
    finally:
        torch.nn.Module.to = move
    if lora.adapter_dtype is not None:
        from .quantized.kbit_preparation import cast_adapters

        cast_adapters(model, DTYPES[lora.adapter_dtype])
    return model


def _take_older_forms(model: Any, request: Request) -> None:
    """Give the model the experts and the loss of older transformers versions that the job states."""
    from .older.causal_loss import use_older_loss
    from .older.separate_experts import separate_experts

    if request.older.expert_names:
        separate_experts(model, request.older.expert_names)
    use_older_loss(model, request.task, request.older)


def _take_own_experts(model: Any, request: Request) -> None:
    """Give the model the experts of the job's framework, if it has its own."""
    if request.loop.experts:
        from .experts.replace_experts import replace_experts

        replace_experts(model, request)


def _quantize(model: Any, request: Request) -> None:
    """Quantize the model's linear layers, and prepare its other parameters, if the job asks for that."""
    if request.lora is None or request.lora.quantization == "none":
        return
    from .quantized.kbit_preparation import cast_to_fp32
    from .quantized.replace_layers import quantize_linear_layers

    quantize_linear_layers(model, request)
    cast_to_fp32(model, request.lora.fp32_parameters)


def has_tied_head(model: Any) -> bool:
    """Return True if the output layer's weight is the token embedding's parameter."""
    if not hasattr(model, "get_output_embeddings"):
        return False
    head, tokens = model.get_output_embeddings(), _input_embeddings(model)
    return head is not None and tokens is not None and getattr(head, "weight", None) is getattr(tokens, "weight", None)


def without_adapters(model: Any) -> Any:
    """Return the transformers model below peft's wrapper, or the model itself if there is none."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def vocabulary_size(model: Any) -> int:
    """Return the size of the output vocabulary; 0: the config has none."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return getattr(text, "vocab_size", None) or 0


def transformer_blocks(model: Any) -> dict[str, Any]:
    """Return the model's repeated blocks by path; empty: the model does not name their classes."""
    class_names = set(getattr(model, "_no_split_modules", None) or ())
    return {name: module for name, module in model.named_modules() if type(module).__name__ in class_names}


def _from_transformers(fields: dict[str, Any], task: str, attention: str) -> Any:
    """Build a model of a type that the installed transformers has."""
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
    config = resolved_config(fields)
    head = auto_class(task)
    if type(config) not in head._model_mapping:
        raise RefusedError(f"transformers {transformers.__version__} has no {task} head for the model type {name!r}")
    model_class = head._model_mapping[type(config)]
    if attention == "sdpa" and not getattr(model_class, "_supports_sdpa", True):
        attention = "eager"  # as transformers does where no implementation is requested
    model = head.from_config(config, attn_implementation=attention, trust_remote_code=False)
    if fields.get("tie_word_embeddings") is False and has_tied_head(model):
        import torch

        # transformers 5 ties T5's head whatever the config says, but unties what a checkpoint holds apart
        output = model.get_output_embeddings()
        output.weight = torch.nn.Parameter(torch.empty_like(output.weight))
    return model


def _from_remote_code(code: UserCode, task: str, attention: str) -> Any:
    """Build a model from the code in its folder, which transformers imports by the config's ``auto_map``."""
    import transformers

    head = auto_class(task)
    with refusing_errors(f"the code in {code.folder}", code.folder):
        config = transformers.AutoConfig.from_pretrained(code.folder, trust_remote_code=True)
        if head.__name__ not in (getattr(config, "auto_map", None) or {}) and type(config) not in head._model_mapping:
            raise RefusedError(f"{code.folder}: its auto_map has no {head.__name__} (task {task})")
        for name in ("dtype", "torch_dtype"):
            if getattr(config, name, None) is not None:
                setattr(config, name, None)  # the job's precision decides
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
    except NotImplementedError:  # raised by transformers' models of some other modalities
        return None
