"""Reads an ``Architecture`` from a Hugging Face config: recognises the family and chooses the head to count."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeGuard, get_args

from ..common.errors import CannotTellError, InputError
from ..job.job_file.changes import format_value
from ..job.setting_values import Task
from .architecture import Architecture, Inventory, assign_roles
from .families.family import Family
from .families.registry import FAMILIES, GENERIC, family_of
from .families.task_heads import head_parameters

# Reads single fields of a model's config; errors name the field, its value and the config.


_MAX_SIZE = 2**31 - 1
_MAX_LAYERS = 2_000
"""Layers are processed one by one; Transformers were trained with 1,000 (arXiv 2203.00555)."""


class MissingFieldError(InputError):
    """A field that a rule needs is missing: the config may be of another kind of model."""


class ConfigFields:
    """Typed access to the fields of a model's config.

    Every getter takes the names that model families give to one quantity, and uses the first one present.

    Args:
        config: the fields of a Hugging Face config.json.
        where: name of the config in an error.
        absent: values of fields that the config leaves out.
    """

    def __init__(self, config: Mapping[str, Any], where: str, absent: Mapping[str, int] | None = None) -> None:
        self.config = config
        self.where = where
        self.absent = absent or {}

    def size(self, *names: str, default: int | None = None) -> int:
        """Return a whole number of at least 1.

        Raises:
            MissingFieldError: it is missing and has no default.
            InputError: it is anything else.
        """
        value = self.optional_size(*names)
        if value is None:
            value = self._absent(*names) or default
        if value is None:
            also = f" (nor {', '.join(names[1:])})" if len(names) > 1 else ""
            raise MissingFieldError(f"{self.where}: {names[0]} is missing{also}")
        return value

    def optional_size(self, *names: str, minimum: int = 1) -> int | None:
        """Return a whole number of at least ``minimum``; None if it is null, or missing without a default meaning."""
        name = self._present(*names)
        if name is None:
            return self._absent(*names)
        value = self.config[name]
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise InputError(
                f"{self.where}: {name} = {format_value(value)} is not a whole number of at least {minimum}"
            )
        if value > _MAX_SIZE:
            raise InputError(f"{self.where}: {name} = {format_value(value)} is larger than that of any model")
        return value

    def layers(self, *names: str, default: int | None = None) -> int:
        """Return a number of blocks, with the arguments and errors of ``size``."""
        count = self.size(*names, default=default)
        if count > _MAX_LAYERS:
            raise InputError(f"{self.where}: {self._present(*names)} = {count:,} layers are more than any model has")
        return count

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false; null counts as missing."""
        value = self._value(name, kinds=bool, words="neither true nor false")
        return default if value is None else bool(value)

    def number(self, *names: str, default: float | None = None) -> float | None:
        """Return a number; null counts as missing."""
        value = self._value(*names, kinds=(int, float), words="not a number")
        return default if value is None else float(value)

    def text(self, *names: str, default: str | None = None) -> str | None:
        """Return a string; null counts as missing."""
        value = self._value(*names, kinds=str, words="not a word")
        return default if value is None else str(value)

    def items(self, name: str) -> list[Any] | None:
        """Return a list; null counts as missing."""
        value = self._value(name, kinds=(list, tuple), words="not a list")
        return None if value is None else list(value)

    def _value(self, *names: str, kinds: type | tuple[type, ...], words: str) -> Any:
        """Return the value of the first name that is present; None: null or missing.

        Raises:
            InputError: it has none of the types.
        """
        name = self._present(*names)
        value = None if name is None else self.config[name]
        wrong = not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool)
        if value is not None and wrong:
            raise InputError(f"{self.where}: {name} = {format_value(value)} is {words}")
        return value

    def _absent(self, *names: str) -> int | None:
        return next((self.absent[name] for name in names if name in self.absent), None)

    def _present(self, *names: str) -> str | None:
        given = [name for name in names if name in self.config]
        return next((name for name in given if self.config[name] is not None), given[0] if given else None)


# Reads the parts of an architecture from a config: blocks, attention, window, MLP, experts, embeddings and dropout.


POSITION_FIELDS = ("max_position_embeddings", "n_positions", "n_ctx")
"""Fields of a config that state the longest sequence."""

_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")


def read_parts(fields: ConfigFields, family: Family, task: Task) -> dict[str, Any]:
    """Return every field of an ``Architecture`` that the config decides."""
    blocks = _blocks(fields, family, task)
    return {
        **blocks,
        "rules": family.rules,
        **_attention(fields, family),
        **_window(fields, family, blocks["layers"]),
        **_mlp(fields, family),
        **_experts(fields, family, blocks["layers"]),
        **_embeddings(fields, family),
    }


def _blocks(fields: ConfigFields, family: Family, task: Task) -> dict[str, Any]:
    layers = fields.layers("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    if family.stack == "encoder-decoder":
        decoder = 0 if task == "token-classification" else fields.layers("num_decoder_layers", default=layers)
        return {"layers": layers + decoder, "encoder_layers": layers, "decoder_layers": decoder, "causal": False}
    causal = family.stack == "decoder"
    return {
        "layers": layers,
        "encoder_layers": 0 if causal else layers,
        "decoder_layers": layers if causal else 0,
        "causal": causal or fields.flag("is_decoder", False),
    }


def _attention(fields: ConfigFields, family: Family) -> dict[str, Any]:
    hidden = fields.size("hidden_size", "n_embd", "d_model", "dim")
    heads = fields.size("num_attention_heads", "n_head", "num_heads", "n_heads")
    attention_bias = fields.flag("attention_bias", family.qkv_bias) if "attention_bias" in family.bias_fields else None
    qkv_bias = fields.flag("qkv_bias", family.qkv_bias) if "qkv_bias" in family.bias_fields else family.qkv_bias
    return {
        "hidden": hidden,
        "heads": heads,
        **(_latent(fields, heads) if fields.optional_size("kv_lora_rank") else _plain(fields, family, hidden, heads)),
        "norm": family.norm,
        "norms_per_layer": len(family.block_norms),
        "qk_norm": family.qk_norm,
        "qkv_bias": qkv_bias if attention_bias is None else attention_bias,
        "output_bias": family.output_bias if attention_bias is None else attention_bias,
        "attention_softcap": fields.number("attn_logit_softcapping", default=family.attention_softcap),
        "relative_buckets": fields.size("relative_attention_num_buckets", default=32)
        if family.relative_positions
        else 0,
    }


def _plain(fields: ConfigFields, family: Family, hidden: int, heads: int) -> dict[str, Any]:
    kv_heads = fields.optional_size("num_key_value_heads")
    head_dim = fields.optional_size("head_dim", "d_kv")
    kv_heads = (kv_heads if family.reads_kv_heads else None) or heads
    head_dim = (head_dim if family.reads_head_dim else None) or hidden // heads
    if head_dim < 1:
        raise InputError(f"{fields.where}: {heads} attention heads do not fit into a hidden size of {hidden}")
    return {
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "value_head_dim": head_dim,
        "query_size": heads * head_dim,
        "key_size": kv_heads * head_dim,
        "value_size": kv_heads * head_dim,
        "attention_output_size": heads * head_dim,
        "q_lora_rank": None,
        "kv_lora_rank": None,
        "rope_head_dim": head_dim,
    }


def _latent(fields: ConfigFields, heads: int) -> dict[str, Any]:
    """Return the sizes of DeepSeek's multi-head latent attention, where every head has its own keys and values.

    Source: arXiv 2405.04434.
    """
    rope = fields.size("qk_rope_head_dim")
    head_dim = rope + fields.size("qk_nope_head_dim")
    value_dim = fields.size("v_head_dim")
    return {
        "kv_heads": heads,
        "head_dim": head_dim,
        "value_head_dim": value_dim,
        "query_size": heads * head_dim,
        "key_size": heads * head_dim,
        "value_size": heads * value_dim,
        "attention_output_size": heads * value_dim,
        "q_lora_rank": fields.optional_size("q_lora_rank"),
        "kv_lora_rank": fields.size("kv_lora_rank"),
        "rope_head_dim": rope,
    }


def _window(fields: ConfigFields, family: Family, layers: int) -> dict[str, Any]:
    window = fields.optional_size("sliding_window", minimum=0)
    kinds = fields.items("layer_types")
    if kinds is not None:
        windowed = kinds.count("sliding_attention")
    elif family.full_attention_every:
        every = fields.size("sliding_window_pattern", default=family.full_attention_every)
        windowed = layers - layers // every
    elif "use_sliding_window" in fields.config or family.window_off_by_default:
        first = fields.optional_size("max_window_layers", minimum=0) or 0
        windowed = max(layers - first, 0) if fields.flag("use_sliding_window", False) else 0
    else:
        windowed = layers
    return {"sliding_window": (window or None) if windowed else None, "sliding_layers": windowed if window else 0}


def _mlp(fields: ConfigFields, family: Family) -> dict[str, Any]:
    hidden = fields.size("hidden_size", "n_embd", "d_model", "dim")
    activation = fields.text("hidden_activation", "hidden_act", "activation_function", "activation")
    gated = family.gated
    if family.feed_forward_proj:
        feed_forward = fields.text("feed_forward_proj", default="relu") or "relu"
        gated, activation = feed_forward.startswith("gated-"), feed_forward.removeprefix("gated-")
        activation = "gelu_new" if feed_forward == "gated-gelu" else activation  # as T5Config reads it
    # null n_inner is four times the hidden size wherever there is one: GPT-2, GPT-J, CodeGen (modeling_gptj.py)
    ratio = family.mlp_ratio or (4 if "n_inner" in fields.config else None)
    return {
        "mlp_size": fields.size(
            "intermediate_size",
            "n_inner",
            "d_ff",
            "hidden_dim",
            "ffn_dim",
            default=ratio * hidden if ratio else None,
        ),
        "gated": gated,
        "activation": activation or family.activation,
        "mlp_bias": fields.flag("mlp_bias", False) if "mlp_bias" in family.bias_fields else family.mlp_bias,
        "parallel_residual": family.parallel_residual == "always"
        or (family.parallel_residual == "by config" and fields.flag("use_parallel_residual", True)),
    }


def _experts(fields: ConfigFields, family: Family, layers: int) -> dict[str, Any]:
    experts = (fields.optional_size(*_EXPERT_COUNTS, minimum=0) or 0) if family.experts else 0
    moe_layers = _count_moe_layers(fields, layers) if experts else 0
    if not moe_layers:
        experts = 0
    own_size = fields.optional_size("moe_intermediate_size")
    return {
        "experts": experts,
        "experts_per_token": experts
        if family.rules.every_expert
        else fields.size("num_experts_per_tok", "experts_per_token", default=1)
        if experts
        else 0,
        "expert_mlp_size": (own_size or fields.size("intermediate_size")) if experts else 0,
        "shared_mlp_size": _shared_mlp_size(fields, own_size) if experts else 0,
        "moe_layers": moe_layers,
        "dense_layers": layers - moe_layers,
    }


def _count_moe_layers(fields: ConfigFields, layers: int) -> int:
    first_dense = fields.optional_size("first_k_dense_replace", minimum=0)
    if first_dense is not None:
        return max(layers - first_dense, 0)
    dense = set(fields.items("mlp_only_layers") or ())
    step = fields.size("decoder_sparse_step", "interleave_moe_layer_step", default=1)
    return sum(1 for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)


def _shared_mlp_size(fields: ConfigFields, own_size: int | None) -> int:
    shared = fields.optional_size("n_shared_experts", minimum=0)
    if shared is not None:
        return shared * (own_size or fields.size("moe_intermediate_size"))
    return fields.optional_size("shared_expert_intermediate_size", minimum=0) or 0


def _embeddings(fields: ConfigFields, family: Family) -> dict[str, Any]:
    max_positions = fields.optional_size(*POSITION_FIELDS)
    labels = fields.config.get("id2label")
    dtype = str(fields.config.get("dtype") or fields.config.get("torch_dtype") or "").removeprefix("torch.")
    return {
        "vocab": fields.size("vocab_size"),
        "positions": (max_positions or family.learned_positions) if family.learned_positions else 0,
        "max_positions": max_positions,
        "token_types": fields.size("type_vocab_size", default=family.token_types) if family.token_types else 0,
        "tied": fields.flag("tie_word_embeddings", family.tied),
        "hidden_dropout": fields.number(
            "hidden_dropout_prob", "resid_pdrop", "dropout_rate", "dropout", "hidden_dropout", default=family.dropout
        ),
        "attention_dropout": fields.number(
            "attention_probs_dropout_prob", "attn_pdrop", "attention_dropout", "dropout_rate", default=family.dropout
        ),
        "logit_softcap": fields.number("final_logit_softcapping", default=family.logit_softcap),
        "dtype": dtype if dtype in ("float32", "bfloat16", "float16") else None,
        "num_labels": fields.size("num_labels", default=len(labels) if isinstance(labels, Mapping) and labels else 2),
    }


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
    if name not in FAMILIES and (config.get("is_encoder_decoder") or _TWO_STACKS & config.keys()):
        raise CannotTellError(f"the formula has no rule for models of type {name!r}, of an encoder and a decoder")
    try:
        own = {field: config.get(theirs) for field, theirs in family.field_names.items()}
        parts = read_parts(ConfigFields({**config, **own}, where, family.absent), family, served)
    except MissingFieldError as error:
        if name in FAMILIES:
            raise
        raise CannotTellError(f"the formula has no rule for models of type {name!r} ({error.message})") from None
    return Architecture(
        family=name,
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


def complete_config(config: Mapping[str, Any], *, where: str = "the model's config") -> dict[str, Any]:
    """Return the config with a ``model_type``, recognised from its other fields if it has none.

    Raises:
        InputError: the family cannot be recognised.
    """
    given = config.get("model_type")
    if given is not None and not isinstance(given, str):
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
    if isinstance(kinds, list) and any(kind not in _ATTENTION_LAYERS for kind in kinds):
        return True
    return any(field in config for field in _RECURRENT_FIELDS)


def max_positions(config: Mapping[str, Any]) -> int | None:
    """Return the longest sequence of a model that its config states; None: it states none.

    RoBERTa's positions begin after the padding token's (``create_position_ids_from_input_ids``).
    """
    part = _text_part(dict(config))
    found = next((part[name] for name in POSITION_FIELDS if type(part.get(name)) is int), None)
    return found - 2 if found and "roberta" in str(part.get("model_type")) else found


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
    **dict.fromkeys(_PART_LAYERS, _MAX_LAYERS),
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
    """Return the parameters of a part's blocks with plain attention and an MLP without gate."""
    hidden, layers, mlp = (_size_of(part, names) for names in (_PART_WIDTHS, _PART_LAYERS, _PART_MLPS))
    if not (_is_whole(hidden) and _is_whole(layers)):
        return 0
    return layers * (4 * hidden * hidden + 2 * hidden * (mlp if _is_whole(mlp) else 4 * hidden))


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
    known = {task.replace("-", ""): task for task in get_args(Task)}
    return known.get(words.lower())


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


# Counts a model's parameters from its architecture alone, without torch: exact for the families of the registry.


UNKNOWN_FAMILY_ERROR = (-0.06, 0.56)
"""Lowest and highest error of the count for an unknown family, as a share of the true count.

Measured by reading each built-in model as one of an unknown family (a test repeats it): decoders with gated MLPs
(Llama, Mistral, Qwen, Phi-3, OLMo 2, Granite, GLM-4, Mixtral, DeepSeek, gpt-oss) within 0.1 %; Llama 4, whose shared
expert has no size of its own there, -6 to -1 %; Gemma, whose configs do not state that the head is tied, +4 to +30 %;
Phi-2 and Pythia, without gates, +9 to +32 %; BERT, RoBERTa, DistilBERT, also without, +39 to +55 %.
"""


def count_parameters(arch: Architecture) -> Inventory:
    """Return every parameter of an architecture, named as transformers 5 names them.

    ``count`` is ``exact`` for the families of the registry; any other is counted as a Llama-like decoder.
    """
    family = family_of(arch.family)
    found = [*family.body(arch, family, _prefix(arch, family)), *head_parameters(arch, family.heads)]
    return Inventory(
        groups=assign_roles(found),
        layers=arch.layers,
        tied_head=arch.tied and arch.has_vocab_head,
        family=arch.family,
        count="approximate" if arch.approximate else "exact",
        source=f"the shape of a {arch.family} model" if not arch.approximate else "the shape, read as Llama's",
    )


def _prefix(arch: Architecture, family: Family) -> str:
    """Return the prefix of the body's parameter names; it is empty if the task's model is the body itself."""
    if arch.task in family.heads.without_prefix:
        return ""
    name = family.qa_prefix if arch.task == "question-answering" and family.qa_prefix else family.prefix
    return f"{name}."
