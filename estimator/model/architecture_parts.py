"""The parts of an architecture, read from a config: blocks, attention, window, MLP, experts, embeddings and dropout."""

from collections.abc import Mapping
from typing import Any

from ..common.errors import InputError
from ..job.job_file.wrong_value import format_value
from ..job.settings import Task
from .families.family import Family

MAX_LAYERS = 2_000
"""Layers are processed one by one; Transformers were trained with 1,000 (arXiv 2203.00555)."""
_MAX_SIZE = 2**31 - 1


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
        if count > MAX_LAYERS:
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
    kv_heads = fields.optional_size("num_key_value_heads", "num_kv_heads") or heads
    is_older = not fields.flag("new_decoder_architecture", False)  # than Falcon 40B
    if kv_heads == heads and is_older and fields.flag("multi_query", family.multi_query):
        kv_heads = 1
    head_dim = fields.optional_size("head_dim", "d_kv")
    kv_heads = kv_heads if family.reads_kv_heads else heads
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
    if family.feed_forward_proj is not None:
        feed_forward = fields.text("feed_forward_proj", default=family.feed_forward_proj) or family.feed_forward_proj
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
        "activation": (activation if family.reads_activation else None) or family.activation,
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
    types = fields.optional_size("type_vocab_size", minimum=0)
    labels = fields.config.get("id2label")
    dtype = str(fields.config.get("dtype") or fields.config.get("torch_dtype") or "").removeprefix("torch.")
    return {
        "vocab": fields.size("vocab_size"),
        "positions": (max_positions or family.learned_positions) if family.learned_positions else 0,
        "max_positions": None if family.relative_positions else max_positions,
        "token_types": (family.token_types if types is None else types) if family.token_types else 0,
        "tied": fields.flag("tie_word_embeddings", family.tied),
        "hidden_dropout": fields.number(
            "hidden_dropout_prob",
            "resid_pdrop",
            "dropout_rate",
            "dropout",
            "hidden_dropout",
            "residual_dropout",
            default=family.dropout,
        ),
        "attention_dropout": fields.number(
            "attention_probs_dropout_prob", "attn_pdrop", "attention_dropout", "dropout_rate", default=family.dropout
        ),
        "logit_softcap": fields.number("final_logit_softcapping", default=family.logit_softcap),
        "dtype": dtype if dtype in ("float32", "bfloat16", "float16") else None,
        "num_labels": fields.size("num_labels", default=len(labels) if isinstance(labels, Mapping) and labels else 2),
    }
