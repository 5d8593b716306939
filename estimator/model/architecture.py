"""A model's shape, normalised from its Hugging Face config: what the closed form and the parameter count work on.

Legend: V vocabulary, h hidden size, f MLP size, a heads, k KV heads, d head size, E experts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from ..common.errors import CannotTellError, InputError
from ..job.config_fields import ConfigFields, MissingFieldError
from ..job.job import Task
from .architecture_parts import read_parts
from .families import FAMILIES, GENERIC, Family

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
"""Heads that are counted as another; None: as what the family is usually trained for."""


_TWO_STACKS = {"decoder_layers", "num_decoder_layers", "d_kv"}
"""Fields of models with an encoder and a decoder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The shape of one model with one task head."""

    family: str
    """``model_type``."""
    approximate: bool
    """The family is not known (read as a Llama-like decoder), or has no such head in transformers."""
    task: Task
    """The head, or the one that stands in for it."""
    layers: int
    """Repeated blocks, encoder and decoder together."""
    encoder_layers: int
    """Blocks that see the whole sequence both ways; 0 for decoders."""
    decoder_layers: int
    """Causal blocks, those with cross attention included; 0 for encoders."""
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    """Of queries and keys."""
    value_head_dim: int
    """Of values: differs from ``head_dim`` only under latent attention."""
    query_size: int
    """Elements of all query heads per token: a d."""
    key_size: int
    """Elements of all key heads per token, as attention sees them: k d."""
    value_size: int
    """Elements of all value heads per token."""
    attention_output_size: int
    """Elements per token that enter the attention's output projection: a x value_head_dim."""
    mlp_size: int
    """f of the dense layers."""
    gated: bool
    """The MLP multiplies two projections (SwiGLU, GeGLU) instead of one."""
    activation: str
    vocab: int
    positions: int
    """Rows of the learned position embedding; 0 where positions are rotary or relative."""
    token_types: int
    """Rows of the token type embedding; 0 where there is none."""
    max_positions: int | None
    """The longest sequence the model was made for; None where the config does not say."""
    experts: int
    """Routed experts per MoE layer; 0 for dense models."""
    experts_per_token: int
    expert_mlp_size: int
    """f of one routed expert."""
    shared_mlp_size: int
    """f of the shared experts of one layer, all together; 0 where there are none."""
    moe_layers: int
    dense_layers: int
    """Layers with an ordinary MLP."""
    tied: bool
    """The output head is the token embedding (only where the task has such a head)."""
    hidden_dropout: float
    attention_dropout: float
    norms_per_layer: int
    """Over the hidden size; norms on queries and keys come on top."""
    norm: Literal["rms", "layer"]
    qk_norm: Literal["none", "head", "full"]
    """Norms on queries and keys: per head, or over all heads."""
    parallel_residual: bool
    """Attention and MLP read the same input."""
    sliding_window: int | None
    """Tokens a windowed layer looks back; None where every layer sees all."""
    sliding_layers: int
    """Layers that have that window."""
    q_lora_rank: int | None
    """Latent attention: rank of the query's compression; None where queries are not compressed."""
    kv_lora_rank: int | None
    """Latent attention: rank of keys and values; None for ordinary attention."""
    rope_head_dim: int
    """Elements of a head that are rotated; under latent attention the rest is not."""
    logit_softcap: float | None
    attention_softcap: float | None
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    relative_buckets: int
    """T5's buckets of relative positions; 0 elsewhere."""
    dtype: Literal["float32", "bfloat16", "float16"] | None
    """The type in which the checkpoint is stored; None where the config does not say."""
    causal: bool
    num_labels: int
    """Outputs of a classification head."""

    @property
    def encoder_decoder(self) -> bool:
        """There is an encoder and a decoder with cross attention."""
        return bool(self.encoder_layers and self.decoder_layers)

    @property
    def has_vocab_head(self) -> bool:
        """The output is one logit per word of the vocabulary."""
        return self.task in ("causal-lm", "masked-lm", "seq2seq-lm")


def read_architecture(
    config: Mapping[str, Any], task: Task = "causal-lm", *, where: str = "the model's config"
) -> Architecture:
    """The shape that a config describes.

    Args:
        config: the fields of a Hugging Face config.json.
        task: the head on top.
        where: what to call the config in an error.

    Raises:
        InputError: a field is missing or wrong, or the family has no such head.
        CannotTellError: the model or its head is of a kind that the formula has no rule for.
    """
    config = _text_part(complete_config(config, where=where))
    name = config["model_type"]
    family = FAMILIES.get(name, GENERIC)
    served = _served_task(name, family, task, where)
    if name not in FAMILIES and (config.get("is_encoder_decoder") or _TWO_STACKS & config.keys()):
        raise CannotTellError(f"the formula has no rule for models of type {name!r}, of an encoder and a decoder")
    try:
        parts = read_parts(ConfigFields(config, where, family.absent), family, served)
    except MissingFieldError as error:
        if name in FAMILIES:
            raise
        raise CannotTellError(f"the formula has no rule for models of type {name!r} ({error.message})") from None
    return Architecture(
        family=name,
        approximate=name not in FAMILIES or served != task or served in family.without_head or "text_config" in config,
        task=served,
        **parts,
    )


def complete_config(config: Mapping[str, Any], *, where: str = "the model's config") -> dict[str, Any]:
    """The config with a ``model_type``, recognised by its other fields where it has none.

    Raises:
        InputError: it is none that can be recognised.
    """
    given = config.get("model_type")
    if given is not None and not isinstance(given, str):
        raise InputError(f"{where}: model_type = {given!r} is not a word")
    name = given or _recognise(config)
    if name is None:
        raise InputError(f"{where}: model_type is missing, such as {', '.join(list(FAMILIES)[:3])}")
    return {**config, "model_type": name}


def usual_task(config: Mapping[str, Any], *, where: str = "the model's config") -> Task:
    """The task that a model of this family is usually trained for, where nobody says.

    Of a family that is not known, what the class in ``architectures`` is for.
    """
    name = complete_config(config, where=where)["model_type"]
    return FAMILIES[name].tasks[0] if name in FAMILIES else _task_of_class(config) or GENERIC.tasks[0]


def _text_part(config: dict[str, Any]) -> dict[str, Any]:
    """A model of several modalities is read as its language model, the rest not counted."""
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, Mapping) else config


def _recognise(config: Mapping[str, Any]) -> str | None:
    classes = config.get("architectures")
    if isinstance(classes, list) and classes:
        stem = str(classes[0]).partition("For")[0].removesuffix("Model").removesuffix("LMHead").lower()
        known = {name.replace("_", ""): name for name in FAMILIES}
        if stem in known:
            return known[stem]
    marks = {"type_vocab_size": "bert", "n_embd": "gpt2", "d_kv": "t5", "rms_norm_eps": "llama"}
    return next((family for mark, family in marks.items() if mark in config), None)


def _task_of_class(config: Mapping[str, Any]) -> Task | None:
    """``ViTForImageClassification`` is for image-classification."""
    classes = config.get("architectures")
    words = str(classes[0]).partition("For")[2] if isinstance(classes, list) and classes else ""
    if words == "ConditionalGeneration":
        if "num_mel_bins" in config:
            return "speech-seq2seq"
        return "image-text-to-text" if "vision_config" in config else "seq2seq-lm"
    known = {task.replace("-", ""): task for task in get_args(Task)}
    return known.get(words.lower())


def _served_task(name: str, family: Family, task: Task, where: str) -> Task:
    """The head by whose rule it is counted.

    Raises:
        InputError: the family has no such head.
        CannotTellError: no rule fits.
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
