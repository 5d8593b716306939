"""The model, built from its config without weights: task head, dtype, attention implementation, adapters."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from ..replaced import replaced
from ..request.protocol import RefusedError, UnsupportedError
from ..request.tasks import auto_class_name
from ..request.user_code import UserCode, build_user_model, refusing_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..request.request import Lora, OlderVersions, Request, Trainable, Training

# Dtypes of torch by the words of job files, and the dtype in which modules are created.


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""By the job file's words."""


def compute_dtype(training: Training) -> torch.dtype:
    """Return the dtype of matrix products, which the first word of the precision names: bf16 of ``bf16-mixed``."""
    return DTYPES[training.precision.partition("-")[0]]


@contextlib.contextmanager
def default_dtype(dtype: Any) -> Iterator[None]:
    """Create floating-point tensors in this dtype where none is stated."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# Auto classes of transformers for the tasks of job files.


def auto_class(task: str) -> Any:
    """Return the auto class of a task.

    Raises:
        RefusedError: this version of transformers does not have it.
    """
    import transformers

    found = getattr(transformers, auto_class_name(task), None)
    if found is None:
        raise RefusedError(f"transformers {transformers.__version__} has no {auto_class_name(task)} (task {task})")
    return found


# Parameters of a built model that train, by rules for their names.


def apply_trainable(model: Any, trainable: Trainable) -> None:
    """Set ``requires_grad`` of every parameter."""
    trained = trained_names(model, trainable)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)


def trained_names(model: Any, trainable: Trainable) -> set[str]:
    """Return the first names of the parameters that train; a rule that matches any name of a tied one matches it.

    Raises:
        UnsupportedError: a rule matches no parameter.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    rules = [(re.compile(rule), trains) for rule, trains, _ in trainable.rules]
    for (rule, _), (_, _, pattern) in zip(rules, trainable.rules):  # noqa: B905 - not in Python 3.9
        if pattern and not any(rule.search(name) for own in names.values() for name in own):
            raise UnsupportedError(f"no parameter of the model matches {pattern!r} of training.trainable")
    return {own[0] for own in names.values() if _trains(own, rules, trainable.otherwise)}


def owning_modules(names: set[str]) -> list[str]:
    """Return the paths of the modules that own parameters, sorted."""
    return sorted({name.rpartition(".")[0] for name in names})


def _trains(names: list[str], rules: list[tuple[Any, bool]], otherwise: bool) -> bool:
    for rule, trains in reversed(rules):
        if any(rule.search(name) for name in names):
            return bool(trains)
    return otherwise


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
            raise RefusedError(
                f"{type(model).__name__} has no gradient_checkpointing_enable, unlike transformers models"
            )
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
    from torch.utils.checkpoint import checkpoint

    known = "early_stop" in inspect.signature(checkpoint).parameters  # since torch 2.9
    return {"early_stop": False} if request.loop.recomputes_whole_blocks and known else {}


def add_lora_adapters(model: Any, lora: Lora, trainable: Trainable | None = None) -> Any:
    """Return the model with peft's LoRA adapters, and trained copies of the modules that train besides.

    Raises:
        RefusedError: peft is not installed, or finds nothing to adapt.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise RefusedError("adapters need the library peft, which this interpreter does not have") from None
    copied = owning_modules(trained_names(model, trainable)) if trainable is not None else []
    layers: Any = contextlib.nullcontext()
    if lora.quantization != "none":
        from .quantized import adapters_on_stand_ins

        layers = adapters_on_stand_ins()
    try:
        settings = LoraConfig(
            r=lora.rank, target_modules=lora.targets, lora_dropout=lora.dropout, modules_to_save=copied or None
        )
        # fake parameters cannot be moved; adapters are created in fp32, where peft's two casts would end as well
        with replaced((torch.nn.Module, "to", lambda module, *_args, **_kwargs: module)), layers:
            model = get_peft_model(model, settings)
    except ValueError as error:
        raise RefusedError(f"peft cannot adapt this model: {' '.join(str(error).split())[:200]}") from None
    if lora.adapter_dtype is not None:
        from .quantized import cast_adapters

        cast_adapters(model, DTYPES[lora.adapter_dtype])
    return model


def _take_older_forms(model: Any, request: Request) -> None:
    """Give the model the experts and the loss of older transformers versions that the job states."""
    if request.older.expert_names:
        separate_experts(model, request.older.expert_names)
    use_older_loss(model, request.task, request.older)


def _take_own_experts(model: Any, request: Request) -> None:
    """Give the model the experts of the job's framework, if it has its own."""
    if request.loop.experts:
        from .experts import replace_experts

        replace_experts(model, request)


def _quantize(model: Any, request: Request) -> None:
    """Quantize the model's linear layers, and prepare its other parameters, if the job asks for that."""
    if request.lora is None or request.lora.quantization == "none":
        return
    from .quantized import cast_to_fp32, quantize_linear_layers

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
            f"the model type {name!r} comes with its own code; give --trust-remote-code (model.trust_remote_code = "
            "true) to run it"
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


# Contents of a built model in lists that JSON can hold: parameters, ties, buffers, experts, adapters, plans.


LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
FIRST_LAYER_NUMBER = re.compile(r"^(.*?)\.\d+(?=\.)")
EXPERT_MODULE = re.compile(r"(^|\.)experts?(\.|$)")
EXPERT_COUNT_FIELDS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def parameter_groups(model: Any, *, places: bool = False) -> dict[str, Any]:
    """Return ``groups`` of parameters, tied ones once under their first name, and the number of numbered ``layers``.

    Args:
        model: the model.
        places: with the numbers in the names of each group's parameters.
    """
    modules = dict(model.named_modules())
    kept = modules_kept_by_bitsandbytes(model)
    groups: Counter[tuple[Any, ...]] = Counter()
    numbers: dict[tuple[Any, ...], list[list[int]]] = {}
    layers = set()
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        kind = parameter_kind(modules[path], leaf)
        quantized = leaf == "weight" and is_quantizable(path, modules[path], kept)
        group = _without_numbers(name), tuple(parameter.shape), kind, _dtype(parameter), quantized
        groups[group] += 1
        if ".*." in group[0]:
            numbers.setdefault(group, []).append([int(number) for number in LAYER_NUMBER.findall(name)])
        layer = FIRST_LAYER_NUMBER.match(name)
        if layer:
            layers.add(layer.group(0))
    found = _as_mappings(groups, ("name", "shape", "kind", "dtype", "quantized"))
    if places:
        found = [{**each, "places": numbers.get(group)} for each, group in zip(found, groups)]  # noqa: B905 - 3.9
    return {"groups": found, "layers": len(layers)}


def parameter_kind(module: Any, leaf: str) -> str:
    """Return a parameter's kind: ``linear``, ``conv1d``, ``embedding``, ``norm``, ``bias`` or ``parameter``."""
    class_name = type(module).__name__
    if "norm" in class_name.lower():
        return "norm"
    if isinstance(module, torch.nn.Linear):
        return "linear" if leaf == "weight" else "bias"
    if class_name == "Conv1D":
        return "conv1d" if leaf == "weight" else "bias"
    if isinstance(module, torch.nn.Embedding):
        return "embedding"
    return "parameter"


def tied_parameters(model: Any) -> list[list[str]]:
    """Return the names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [found for found in names.values() if len(found) > 1]


def buffer_groups(model: Any) -> list[dict[str, Any]]:
    """Return groups of buffers; a checkpoint holds the persistent ones."""
    modules = dict(model.named_modules())
    groups: Counter[tuple[Any, ...]] = Counter()
    for name, buffer in model.named_buffers():
        path, _, leaf = name.rpartition(".")
        persistent = leaf not in modules[path]._non_persistent_buffers_set
        buffer_bytes = buffer.element_size() * buffer.numel()
        groups[_without_numbers(name), tuple(buffer.shape), _dtype(buffer), buffer_bytes, persistent] += 1
    return _as_mappings(groups, ("name", "shape", "dtype", "tensor_bytes", "persistent"))


def routed_experts(model: Any) -> dict[str, int] | None:
    """Return the most routed experts of a layer and the elements of all experts; None: the model has none."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    counts = [getattr(text, field, None) for field in EXPERT_COUNT_FIELDS]
    count = next((count for count in counts if isinstance(count, int)), 0)
    elements = sum(p.numel() for name, p in model.named_parameters() if EXPERT_MODULE.search(name))
    return {"count": count, "elements": elements} if elements else None


def adapter_groups(model: Any) -> list[dict[str, Any]]:
    """Return groups of the parameters that peft trains, under peft's names without its prefix."""
    groups: Counter[tuple[Any, ...]] = Counter()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            own_name = _without_numbers(name.replace("base_model.model.", "", 1))
            groups[own_name, tuple(parameter.shape), "linear", _dtype(parameter)] += 1
    return _as_mappings(groups, ("name", "shape", "kind", "dtype"))


def tensor_parallel_plan(model: Any) -> dict[str, str]:
    """Return the model's own tensor-parallel plan, by pattern; empty: it has none."""
    plan = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None) or {}
    return {str(name): str(style) for name, style in plan.items()}


def config_fields(model: Any) -> dict[str, Any] | None:
    """Return the model's Hugging Face config; None: it has none."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        return None
    fields: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    return fields


def modules_kept_by_bitsandbytes(model: Any) -> list[str]:
    """Return the modules that transformers does not quantize: the output head, tied modules, the last module."""
    if not hasattr(model, "get_output_embeddings"):
        return []
    try:
        from transformers.quantizers.base import get_keys_to_not_convert
    except ImportError:  # before 5
        try:
            from transformers.integrations.bitsandbytes import get_keys_to_not_convert
        except ImportError:
            return []
    names: list[str] = get_keys_to_not_convert(model)
    return names


def is_quantizable(path: str, module: Any, kept: list[str]) -> bool:
    """Return True for a module that bitsandbytes replaces, as ``should_convert_module`` of transformers decides.

    Args:
        path: of the module.
        module: the module; subclasses of ``Linear`` stay as they are.
        kept: from ``modules_kept_by_bitsandbytes``.
    """
    if type(module) is not torch.nn.Linear and type(module).__name__ != "Conv1D":
        return False
    boundary = r"(?:(?<=\.)|(?=\.|$))"
    return not any(re.match(rf"(?:{name}){boundary}", path) or path.endswith(name) for name in kept)


def _as_mappings(groups: Counter[tuple[Any, ...]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{**dict(zip(names, key)), "repeat": repeat} for key, repeat in groups.items()]  # noqa: B905 - Python 3.9


def _without_numbers(name: str) -> str:
    """Return a parameter's name with ``*`` for layer numbers."""
    return LAYER_NUMBER.sub("*", name)


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).replace("torch.", "")


# The batch of a training step: inputs of the model's modality and labels of the task.


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
        raise UnsupportedError(f"vramtop cannot make a batch for the task {request.task}")
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
    raise UnsupportedError(f"{type(model).__name__} reads {name}, but its config does not state the size")


def _ids(model: Any, request: Request) -> int:
    """Return the number of different tokens: a mixture of experts spreads many over its experts, not two."""
    return max(2, vocabulary_size(model)) if request.task in _TASKS_OVER_VOCABULARY else 2


def _random_input(model: Any, *shape: int) -> Any:
    """Return random values in the dtype of the weights, as the collator of a low-precision job makes them."""
    return torch.randn(shape, dtype=next(model.parameters()).dtype)


# The causal loss of transformers 4: fp32 logits made by the model or the loss, and copied without the last token.
#
# Source: transformers 4.46 to 4.48, ``loss/loss_utils.py`` (``ForCausalLMLoss``); 4.45 and older, the model's own
# forward (``logits = logits.float()`` and ``logits[..., :-1, :].contiguous()`` in ``modeling_llama.py`` and its
# like).


def use_older_loss(model: Any, task: str, older: OlderVersions) -> None:
    """Give a causal language model the loss of the version that the job states, in place."""
    if task != "causal-lm" or not older.copies_shifted_logits or not hasattr(model, "loss_function"):
        return
    if older.casts_logits_in_model:
        _CastingModel(model)
    else:
        model.loss_function = _shifted_loss


def _shifted_loss(logits: Any, labels: Any, vocab_size: int, *_: Any, **__: Any) -> Any:
    """Return the loss of all tokens but the last, on a copy of the fp32 logits."""
    logits = logits.float()
    shifted = logits[..., :-1, :].contiguous()
    return torch.nn.functional.cross_entropy(shifted.view(-1, vocab_size), labels[..., 1:].contiguous().view(-1))


class _CastingModel:
    """Makes a model return fp32 logits, and frees the 16-bit ones before the loss.

    A forward pass cannot be told to replace its variable ``logits``: the loss empties the storage of the 16-bit ones
    once they are cast, as no backward pass reads them.
    """

    def __init__(self, model: Any) -> None:
        self.logits: Any = None
        model.loss_function = self.loss
        model.register_forward_hook(self._return_logits)

    def loss(self, logits: Any, labels: Any, vocab_size: int, *_: Any, **__: Any) -> Any:
        """Return the loss on a copy of the fp32 logits, which the model returns."""
        self.logits = logits.float()
        if self.logits is not logits:
            logits.untyped_storage().resize_(0)
        return _shifted_loss(self.logits, labels, vocab_size)

    def _return_logits(self, _model: Any, _inputs: Any, outputs: Any) -> Any:
        kept, self.logits = self.logits, None
        if kept is not None and getattr(outputs, "logits", None) is not None:
            outputs.logits = kept
        return outputs


# Experts as transformers 4 had them: a list of MLPs of linear layers, each of which is called with its own tokens.
#
# Source: transformers 4.48, ``MixtralSparseMoeBlock`` (models/mixtral/modeling_mixtral.py); ``qwen2_moe``,
# ``qwen3_moe``, ``olmoe``, ``deepseek_v3`` and others have the same loop. Since 5.0 experts are two tensors, which
# bitsandbytes leaves as they are.


_FUSED_EXPERTS = ("gate_up_proj", "down_proj")


def separate_experts(model: Any, names: Sequence[str]) -> None:
    """Replace fused experts by one MLP of three linear layers each, in place.

    Args:
        model: the model, before it is quantized.
        names: of the gate, the other half and the last projection, under transformers 4.
    """
    for path, module in list(model.named_modules()):
        tensors = [getattr(module, name, None) for name in _FUSED_EXPERTS]
        if all(isinstance(tensor, torch.nn.Parameter) and tensor.dim() == 3 for tensor in tensors):
            model.set_submodule(path, _Experts(module, names))


class _Expert(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
    """One gated MLP."""

    def __init__(self, hidden: int, size: int, activation: Any, names: Sequence[str]) -> None:
        super().__init__()
        gate, up, down = names
        self.add_module(gate, torch.nn.Linear(hidden, size, bias=False))
        self.add_module(up, torch.nn.Linear(hidden, size, bias=False))
        self.add_module(down, torch.nn.Linear(size, hidden, bias=False))
        self.activation, self.names = activation, tuple(names)

    def forward(self, tensor: Any) -> Any:
        gate, up, down = (getattr(self, name) for name in self.names)
        return down(self.activation(gate(tensor)) * up(tensor))


class _Experts(torch.nn.ModuleList):  # type: ignore[misc] # torch is not type-checked
    """The experts of a block, each with an equal share of the tokens: which ones it gets depends on values."""

    def __init__(self, fused: Any, names: Sequence[str]) -> None:
        count, hidden, size = fused.down_proj.shape
        with default_dtype(fused.down_proj.dtype):
            super().__init__(_Expert(hidden, size, fused.act_fn, names) for _ in range(count))

    def forward(self, hidden: Any, indices: Any, weights: Any) -> Any:
        """Add up the experts' results, of each token's choices."""
        result = torch.zeros_like(hidden)
        weights = weights.to(hidden.dtype)
        share, rest = divmod(indices.numel(), len(self))
        for number, expert in enumerate(self):
            chosen = torch.zeros(share + (number < rest), dtype=torch.long)
            rank = torch.zeros_like(chosen)
            own = hidden[None, chosen].reshape(-1, hidden.shape[-1])
            found = expert(own) * weights[chosen, rank, None]
            result.index_add_(0, chosen, found.to(hidden.dtype))
        return result
