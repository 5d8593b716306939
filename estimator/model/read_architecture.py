"""Reads an ``Architecture`` from a Hugging Face config: recognises the family and chooses the head to count."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeGuard, get_args

from ..common.errors import CannotTellError, InputError
from ..job.job_file.wrong_value import format_value
from ..job.settings import Task
from .architecture import Architecture
from .architecture_parts import MAX_LAYERS, POSITION_FIELDS, ConfigFields, MissingFieldError, read_parts
from .families.family import Family
from .families.registry import FAMILIES, GENERIC, family_of

RULED_TASKS: tuple[Task, ...] = (
    "causal-lm",
    "masked-lm",
    "seq2seq-lm",
    "sequence-classification",
    "token-classification",
    "question-answering",
    "feature-extraction",
)
"""The heads that the formula has rules for."""
_STAND_INS: Mapping[Task, Task | None] = MappingProxyType(
    {
        "multiple-choice": "sequence-classification",
        "next-sentence-prediction": "sequence-classification",
        "text-encoding": "feature-extraction",
        "image-text-to-text": "causal-lm",
        "multimodal-lm": "causal-lm",
        "pretraining": None,
    }
)
"""Heads that are counted as another one; None: as the family's usual head."""
_ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
_RECURRENT_FIELDS = (
    *("mamba_d_state", "mamba_expand", "ssm_state_size", "state_size", "hybrid_override_pattern"),
    *(
        "linear_conv_kernel_dim",
        "linear_num_heads",
        "linear_num_value_heads",
        "conv_L_cache",
        "lru_width",
        "attention_hidden_size",
    ),
)
"""Config fields that only models with other blocks than attention have: Mamba, linear attention, convolutions, RWKV."""
_TWO_STACKS = {"decoder_layers", "num_decoder_layers", "d_kv"}
"""Config fields that only models with an encoder and a decoder have."""


def read_architecture(
    config: Mapping[str, Any], task: Task = "causal-lm", *, where: str = "the model's config"
) -> Architecture:
    """Return the architecture that a config describes.

    Args:
        config: the fields of a Hugging Face config.json.
        task: the head on top.
        where: name of the config in error messages.

    Raises:
        InputError: a field is missing or wrong, or the family has no such head.
        CannotTellError: the formula has no rule for this kind of model or head.
    """
    uncounted = _other_parts(config, where)
    config = _text_part(complete_config(config, where=where))
    name = config["model_type"]
    family = family_of(name)
    served = _served_task(name, family, task, where)
    if unruled := _unruled(name, config):
        raise CannotTellError(f"the formula has no rule for models of type {name!r}, {unruled}")
    try:
        own = {field: config.get(theirs) for field, theirs in family.field_names.items()}
        parts = read_parts(ConfigFields({**config, **own}, where, family.absent), family, served)
    except MissingFieldError as error:
        if name in FAMILIES:
            raise
        raise CannotTellError(f"the formula has no rule for models of type {name!r} ({error.message})") from None
    return Architecture(
        family=name,
        own_code=name not in FAMILIES and bool(config.get("auto_map")),
        recurrent=name not in FAMILIES and has_recurrent_blocks(config),
        approximate=name not in FAMILIES
        or served != task
        or served in family.without_head
        or "text_config" in config
        or bool(uncounted),
        task=served,
        uncounted_parts=tuple(uncounted),
        uncounted_parameters=sum(uncounted.values()),
        **parts,
    )


def _unruled(name: str, config: Mapping[str, Any]) -> str | None:
    """Return why the formula has no rule for a model's blocks, as a relative clause; None: it may have one."""
    if name not in FAMILIES and (config.get("is_encoder_decoder") or _TWO_STACKS & config.keys()):
        return "of an encoder and a decoder"
    if "num_hidden_groups" in config:
        return "whose blocks share weights"
    if "attention_window" in config:
        return "whose attention runs over chunks"
    return "whose attention scores positions apart" if config.get("pos_att_type") else None


def complete_config(config: Mapping[str, Any], *, where: str = "the model's config") -> dict[str, Any]:
    """Return the config with a ``model_type``, recognised from its other fields if it has none.

    Raises:
        InputError: the family cannot be recognised.
    """
    given = config.get("model_type")
    if given is not None and not (isinstance(given, str) and given.isprintable()):
        raise InputError(f"{where}: model_type = {given!r} is not a word")
    name = given or _recognise(config)
    if name is None:
        raise InputError(f"{where}: model_type is missing, such as {', '.join(list(FAMILIES)[:3])}")
    return {**config, "model_type": name}


def has_recurrent_blocks(config: Mapping[str, Any]) -> bool:
    """Return True if blocks of the model are recurrent (state space, linear attention, convolution), all or some.

    No rule describes them, and their fused kernels keep less than the plain operations that a trace runs.
    """
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and any(str(kind) not in _ATTENTION_LAYERS for kind in kinds):
        return True
    return any(field in config for field in _RECURRENT_FIELDS)


_AFTER_PADDING = re.compile("roberta|camembert|longformer|mpnet|xmod|data2vec-text|ibert|layoutlmv3")


def max_positions(config: Mapping[str, Any]) -> int | None:
    """Return the longest sequence of a model that its config states; None: it states none.

    Positions of RoBERTa and its like begin after the padding token's (``create_position_ids_from_input_ids``).
    """
    part = _text_part(dict(config))
    found = next((part[name] for name in POSITION_FIELDS if type(part.get(name)) is int), None)
    return found - 2 if found and _AFTER_PADDING.search(str(part.get("model_type"))) else found


def usual_task(config: Mapping[str, Any], *, where: str = "the model's config") -> Task:
    """Return the task that a model of this family is usually trained for.

    For an unknown family it is the task of the class in ``architectures``.
    """
    name = complete_config(config, where=where)["model_type"]
    return FAMILIES[name].tasks[0] if name in FAMILIES else _task_of_class(config) or GENERIC.tasks[0]


def _text_part(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a multimodal model's language model; the other parts are not counted."""
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, Mapping) else config


_MODAL_PART = re.compile(r"(vision|visual|vit|image|video|audio|speech)\w*_config")
_NO_PARTS = {"text_config", "quantization_config", "compression_config", "generation_config"}
_PART_WIDTHS = ("embed_dim", "d_model", "hidden_size")
"""Qwen2-VL's ``hidden_size`` is that of what leaves the encoder."""
_PART_LAYERS = ("num_hidden_layers", "depth", "num_layers", "encoder_layers")
_PART_MLPS = ("intermediate_size", "encoder_ffn_dim")
_PART_INPUTS = (
    *("num_attention_heads", "num_heads", "encoder_attention_heads", "image_size", "patch_size"),
    *("num_channels", "in_channels", "in_chans", "num_mel_bins", "temporal_patch_size", "spatial_merge_size"),
)
_PART_LIMITS = {
    **dict.fromkeys((*_PART_WIDTHS, *_PART_MLPS), 2**20),
    **dict.fromkeys(_PART_LAYERS, MAX_LAYERS),
    **dict.fromkeys(_PART_INPUTS, 2**16),
}
"""Most of each size, which no encoder reaches."""


def _other_parts(config: Mapping[str, Any], where: str) -> dict[str, int]:
    """Return the encoders beside a multimodal model's language model, with their parameters as plain Transformers.

    Raises:
        InputError: one is no table, or a size of it is not that of any model.
    """
    found: dict[str, int] = {}
    for name, part in config.items():
        if part is None or name in _NO_PARTS or not name.endswith("_config"):
            continue
        if isinstance(part, Mapping):
            _check_part(part, f"{where}: {name}")
            inner = _other_parts(part, f"{where}: {name}")
            if _size_of(part, _PART_WIDTHS) is not None:
                found[name] = _transformer_parameters(part) + sum(inner.values())
            else:
                found |= inner
        elif _MODAL_PART.fullmatch(name):
            raise InputError(f"{where}: {name} = {format_value(part)} is not a table of a model's sizes")
    return found


def _check_part(part: Mapping[str, Any], where: str) -> None:
    for name, most in _PART_LIMITS.items():
        value = part.get(name)
        for each in value if isinstance(value, list | tuple) else (value,):  # by stage, or by side
            if isinstance(each, list | tuple | Mapping):
                continue
            size = ConfigFields({name: each}, where).optional_size(name)
            if size is not None and size > most:
                raise InputError(f"{where}: {name} = {size:,} is larger than that of any model")


def _transformer_parameters(part: Mapping[str, Any]) -> int:
    """Return the parameters of a part's blocks with plain attention, and an MLP that has a gate if it uses silu."""
    hidden, layers, mlp = (_size_of(part, names) for names in (_PART_WIDTHS, _PART_LAYERS, _PART_MLPS))
    if not (_is_whole(hidden) and _is_whole(layers)):
        return 0
    matrices = 3 if part.get("hidden_act") == "silu" else 2
    return layers * (4 * hidden * hidden + matrices * hidden * (mlp if _is_whole(mlp) else 4 * hidden))


def _size_of(part: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((part[name] for name in names if part.get(name) is not None), None)


def _is_whole(size: Any) -> TypeGuard[int]:
    return type(size) is int


def _recognise(config: Mapping[str, Any]) -> str | None:
    """Return the ``model_type`` that the class in ``architectures``, or a field of one family only, suggests."""
    classes = config.get("architectures")
    if isinstance(classes, list) and classes:
        stem = str(classes[0]).partition("For")[0].removesuffix("Model").removesuffix("LMHead").lower()
        known = {name.replace("_", ""): name for name in FAMILIES}
        if stem in known:
            return known[stem]
    marked = {family.marker_field: name for name, family in FAMILIES.items() if family.marker_field}
    return next((marked[mark] for mark in reversed(marked) if mark in config), None)


def _task_of_class(config: Mapping[str, Any]) -> Task | None:
    """Return the task of the class in ``architectures``: image-classification for ``ViTForImageClassification``."""
    classes = config.get("architectures")
    words = str(classes[0]).partition("For")[2] if isinstance(classes, list) and classes else ""
    if words == "ConditionalGeneration":
        if "num_mel_bins" in config:
            return "speech-seq2seq"
        return "image-text-to-text" if "vision_config" in config else "seq2seq-lm"
    return {task.replace("-", ""): task for task in get_args(Task)}.get(words.lower())


def _served_task(name: str, family: Family, task: Task, where: str) -> Task:
    """Return the head by whose rule the task's head is counted.

    Raises:
        InputError: the family has no such head.
        CannotTellError: no rule applies.
    """
    if task in RULED_TASKS and name in FAMILIES and task not in family.tasks:
        raise InputError(
            f"{where}: a {name} model has no {task} head; set model.task to one of {', '.join(family.tasks)}"
        )
    if task in family.tasks:
        return task
    stand_in = _STAND_INS.get(task, family.tasks[0] if task in ("masked-lm", "seq2seq-lm") else task)
    served = family.tasks[0] if stand_in is None else stand_in
    if served not in family.tasks:
        raise CannotTellError(f"the formula has no rule for the {task} head of models of type {name!r}")
    return served
