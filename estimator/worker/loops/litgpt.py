"""LitGPT's own model, its LoRA layers and the loss of its scripts, built from the config of a Hugging Face model."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ..model.build import compute_dtype, default_dtype, resolved_config
from ..model.quantized import Linear4bit
from ..request.protocol import UnsupportedError

if TYPE_CHECKING:
    from ..request.request import Loop, Lora, Request

# LitGPT's linear layers with LoRA, operation by operation.
#
# Source: LitGPT 0.5.13 ``lora.py`` (``LoRALinear``, ``LoRAQKVLinear``), the same since 0.3.


class LoRALinear(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
    """A linear layer with an adapter beside it.

    Args:
        size_in: of its input.
        size_out: of its output.
        bias: it has a bias.
        rank: of the adapter; 0: it has none.
        dropout: of the adapter's input.
    """

    def __init__(self, size_in: int, size_out: int, *, bias: bool, rank: int, dropout: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(size_in, size_out, bias=bias)
        self.rank, self.dropout = rank, dropout
        if rank:
            self.lora_A = torch.nn.Parameter(torch.empty((rank, size_in)))
            self.lora_B = torch.nn.Parameter(torch.empty((size_out, rank)))

    def dropped(self, tensor: Any) -> Any:
        """Return the adapter's input."""
        return functional.dropout(tensor, self.dropout, self.training) if self.dropout else tensor

    def forward(self, tensor: Any) -> Any:
        """Return the sum of the layer's and the adapter's product."""
        pretrained = self.linear(tensor)
        if not self.rank:
            return pretrained
        adapted = (self.dropped(tensor) @ self.lora_A.transpose(0, 1) @ self.lora_B.transpose(0, 1)) * 1.0
        return pretrained + adapted


class LoRAQKVLinear(LoRALinear):
    """Queries, keys and values as one linear layer, of which an adapter changes parts.

    Args:
        size_in: of its input.
        sizes: of queries, keys and values.
        adapted: which of them have an adapter.
        bias: it has a bias.
        rank: of each adapter.
        dropout: of their input.
    """

    def __init__(
        self,
        size_in: int,
        sizes: tuple[int, int, int],
        adapted: tuple[bool, bool, bool],
        *,
        bias: bool,
        rank: int,
        dropout: float,
    ) -> None:
        super().__init__(size_in, sum(sizes), bias=bias, rank=0, dropout=dropout)
        self.adapted = sum(adapted) if rank else 0
        self.grouped, self.complete = sizes[0] == sizes[1], all(adapted)
        self.parts = [size for size, has in zip(sizes, adapted) if has]  # noqa: B905 - not in Python 3.9
        self.width = sum(sizes)
        if self.adapted:
            self.lora_A = torch.nn.Parameter(torch.empty((rank * self.adapted, size_in)))
            self.lora_B = torch.nn.Parameter(torch.empty(sum(self.parts), rank))
            self.register_buffer("_lora_ind", torch.empty(sum(self.parts), dtype=torch.long), persistent=False)

    def forward(self, tensor: Any) -> Any:
        """Return the sum of the layer's and the adapters' product, these padded to all three parts."""
        pretrained = self.linear(tensor)
        if not self.adapted:
            return pretrained
        after_a = functional.linear(self.dropped(tensor), self.lora_A)
        after_b = self._products(after_a.transpose(-2, -1), self.lora_B.unsqueeze(-1)).transpose(-2, -1)
        return pretrained + self._padded(after_b) * 1.0

    def _products(self, tensor: Any, weight: Any) -> Any:
        if self.grouped:
            return functional.conv1d(tensor, weight, groups=self.adapted)
        parts = zip(tensor.chunk(self.adapted, dim=1), weight.split(self.parts))  # noqa: B905 - not in Python 3.9
        return torch.cat([functional.conv1d(part, matrix) for part, matrix in parts], dim=1)

    def _padded(self, tensor: Any) -> Any:
        if self.complete:
            return tensor
        result = tensor.new_zeros(*tensor.shape[:-1], self.width)
        return result.index_copy_(dim=-1, index=self._lora_ind, source=tensor)


# LitGPT's GPT, operation by operation: norms, rotary embeddings, attention over one product, MLPs.
#
# Source: LitGPT 0.5.13 ``model.py``; before 0.5.5 keys and values were expanded before they were rotated, before
# 0.4.6 a norm cast to 16 bits before it was scaled. Mixtures of experts, latent attention, soft caps, sliding windows
# and norms after a block's halves are not here.


class Adapters(SimpleNamespace):
    """Which layers have adapters: ``query``, ``key``, ``value``, ``projection``, ``mlp``, ``head``; and their rank."""

    rank: int
    dropout: float


NO_ADAPTERS = Adapters(
    rank=0, dropout=0.0, query=False, key=False, value=False, projection=False, mlp=False, head=False
)


class GPT(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
    """LitGPT's model.

    Args:
        sizes: its settings.
        adapters: its LoRA layers.
        loop: what its version does.
        tokens: length of the sequences, for which ``fit`` makes the tables of rotary embeddings anew, in fp32.
    """

    _no_split_modules = ("Block",)
    base_model_prefix = "transformer"
    main_input_name = "input_ids"

    def __init__(self, sizes: Sizes, adapters: Adapters, loop: Loop, tokens: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=sizes.vocab_size)
        self.lm_head = _linear(adapters, sizes.n_embd, sizes.vocab_size, bias=sizes.lm_head_bias, used=adapters.head)
        self.transformer = torch.nn.ModuleDict(
            {
                "wte": torch.nn.Embedding(sizes.vocab_size, sizes.n_embd),
                "h": torch.nn.ModuleList(Block(sizes, adapters, loop) for _ in range(sizes.n_layer)),
                "ln_f": _norm(sizes, sizes.n_embd, loop),
            }
        )
        self.scales = sizes.scale_embeddings
        for name in ("cos", "sin"):
            table = torch.empty((tokens, sizes.rope_n_elem), dtype=torch.float32)
            self.register_buffer(name, table, persistent=False)

    def get_input_embeddings(self) -> Any:
        """Return the token embedding."""
        return self.transformer.wte

    def get_output_embeddings(self) -> Any:
        """Return the head."""
        return self.lm_head

    def forward(self, input_ids: Any, lm_head_chunk_size: int = 0) -> Any:
        """Return the logits, or chunks of them; Fabric's wrapper casts them to fp32."""
        cos, sin = self.cos.unsqueeze(0), self.sin.unsqueeze(0)
        hidden = self.transformer.wte(input_ids)
        if self.scales:
            hidden = hidden * torch.tensor(1.0, dtype=hidden.dtype)
        for block in self.transformer.h:
            hidden = block(hidden, cos, sin)
        hidden = self.transformer.ln_f(hidden)
        if not lm_head_chunk_size:
            return self.lm_head(hidden).float()
        logits = [self.lm_head(part) for part in hidden.split(lm_head_chunk_size, dim=1)]
        return [part.float() for part in logits]


class Block(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
    """A block, with its MLP beside or after its attention."""

    def __init__(self, sizes: Sizes, adapters: Adapters, loop: Loop) -> None:
        super().__init__()
        self.norm_1 = _norm(sizes, sizes.n_embd, loop)
        self.attn = CausalSelfAttention(sizes, adapters, loop)
        self.norm_2: Any = None if sizes.shared_attention_norm else _norm(sizes, sizes.n_embd, loop)
        self.mlp = MLP(sizes, adapters)
        self.parallel = sizes.parallel_residual

    def forward(self, hidden: Any, cos: Any, sin: Any) -> Any:
        """Return the block's output."""
        normed = self.norm_1(hidden)
        attention = self.attn(normed, cos, sin)
        if self.parallel:
            if self.norm_2 is not None:
                normed = self.norm_2(hidden)
            hidden = attention + hidden
        else:
            hidden = attention + hidden
            normed = self.norm_2(hidden)
        return self.mlp(normed) + hidden


class CausalSelfAttention(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
    """Attention whose queries, keys and values are one product."""

    def __init__(self, sizes: Sizes, adapters: Adapters, loop: Loop) -> None:
        super().__init__()
        self.sizes, self.expands_first = sizes, loop.expands_keys
        queries, keys = sizes.n_head * sizes.head_size, sizes.n_query_groups * sizes.head_size
        self.qkv: Any
        if adapters.rank:
            self.qkv = LoRAQKVLinear(
                sizes.n_embd,
                (queries, keys, keys),
                (adapters.query, adapters.key, adapters.value),
                bias=sizes.bias or sizes.attn_bias,
                rank=adapters.rank,
                dropout=adapters.dropout,
            )
        else:
            self.qkv = torch.nn.Linear(sizes.n_embd, queries + 2 * keys, bias=sizes.bias or sizes.attn_bias)
        self.proj = _linear(adapters, queries, sizes.n_embd, bias=sizes.bias, used=adapters.projection)
        self.norm_q = _norm(sizes, sizes.head_size, loop) if sizes.norm_qk else None
        self.norm_k = _norm(sizes, sizes.head_size, loop) if sizes.norm_qk else None

    def forward(self, hidden: Any, cos: Any, sin: Any) -> Any:
        """Return the output projection of attention."""
        sizes = self.sizes
        split = self._expanded_parts if self.expands_first else self._parts
        query, key, value = split(self.qkv(hidden))
        if self.norm_q is not None and self.norm_k is not None:
            query, key = self.norm_q(query), self.norm_k(key)
        query, key = self._rotated(query, cos, sin), self._rotated(key, cos, sin)
        if not self.expands_first and sizes.n_query_groups != sizes.n_head:
            repeats = sizes.n_head // sizes.n_query_groups
            key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
        output = functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
        return self.proj(output.reshape(*hidden.shape[:2], sizes.head_size * sizes.n_head))

    def _parts(self, product: Any) -> tuple[Any, Any, Any]:
        sizes = self.sizes
        heads = (sizes.n_head, sizes.n_query_groups, sizes.n_query_groups)
        parts = product.split([count * sizes.head_size for count in heads], dim=-1)
        views = [
            part.view(*product.shape[:2], count, sizes.head_size).transpose(1, 2)
            for part, count in zip(parts, heads)  # noqa: B905 - not in Python 3.9
        ]
        return views[0], views[1], views[2]

    def _expanded_parts(self, product: Any) -> tuple[Any, Any, Any]:
        sizes, (batch, tokens) = self.sizes, product.shape[:2]
        groups, shared = sizes.n_query_groups, sizes.n_head // sizes.n_query_groups
        product = product.view(batch, tokens, groups, shared + 2, sizes.head_size).permute(0, 2, 3, 1, 4)
        query, key, value = product.split((shared, 1, 1), dim=2)
        if groups != sizes.n_head:
            key, value = (part.expand(batch, groups, shared, tokens, sizes.head_size) for part in (key, value))
        parts = [part.reshape(batch, -1, tokens, sizes.head_size) for part in (query, key, value)]
        return parts[0], parts[1], parts[2]

    def _rotated(self, tensor: Any, cos: Any, sin: Any) -> Any:
        count = self.sizes.rope_n_elem
        part = tensor[..., :count]
        turned = torch.cat((-part[..., count // 2 :], part[..., : count // 2]), dim=-1)
        result = ((part * cos.unsqueeze(1)) + (turned * sin.unsqueeze(1))).to(dtype=tensor.dtype)
        del part, turned
        return torch.cat((result, tensor[..., count:]), dim=-1)


class MLP(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
    """``GptNeoxMLP``, ``LLaMAMLP`` or ``GemmaMLP``."""

    def __init__(self, sizes: Sizes, adapters: Adapters) -> None:
        super().__init__()
        width, bias, used = sizes.intermediate_size, sizes.bias, adapters.mlp
        self.fc_1 = _linear(adapters, sizes.n_embd, width, bias=bias, used=used)
        self.fc_2 = _linear(adapters, sizes.n_embd, width, bias=bias, used=used) if sizes.gated else None
        self.proj = _linear(adapters, width, sizes.n_embd, bias=bias, used=used)
        self.activation = functional.silu if sizes.activation == "silu" else functional.gelu

    def forward(self, hidden: Any) -> Any:
        """Return the MLP's output."""
        if self.fc_2 is None:
            return self.proj(self.activation(self.fc_1(hidden)))
        first, second = self.fc_1(hidden), self.fc_2(hidden)
        return self.proj(self.activation(first) * second)


class RMSNorm(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
    """LitGPT's RMSNorm, in fp32."""

    def __init__(self, size: int, *, add_unit_offset: bool, casts_first: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size))
        self.add_unit_offset, self.casts_first = add_unit_offset, casts_first

    def forward(self, tensor: Any) -> Any:
        """Return the normalised tensor."""
        dtype = tensor.dtype
        wide = tensor.float()
        normed = wide * torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + 1e-6)
        weight = (1 + self.weight) if self.add_unit_offset else self.weight
        if self.casts_first:
            normed = normed.to(dtype=dtype)
            return normed * weight
        return (normed * weight.float()).to(dtype=dtype)


def _norm(sizes: Sizes, size: int, loop: Loop) -> Any:
    if not sizes.rms_norm:
        return torch.nn.LayerNorm(size)
    return RMSNorm(size, add_unit_offset=sizes.add_unit_offset, casts_first=loop.casts_norm_first)


def _linear(adapters: Adapters, size_in: int, size_out: int, *, bias: bool, used: bool) -> Any:
    if not adapters.rank:
        return torch.nn.Linear(size_in, size_out, bias=bias)
    rank = adapters.rank if used else 0
    return LoRALinear(size_in, size_out, bias=bias, rank=rank, dropout=adapters.dropout)


# The settings of LitGPT's model, from the config of the Hugging Face model that it converts.
#
# Source: LitGPT 0.5.13 ``config.py``, the entries of these families.


@dataclass(frozen=True)
class Sizes:
    """LitGPT's ``Config``, under its names."""

    vocab_size: int
    n_embd: int
    n_layer: int
    n_head: int
    n_query_groups: int
    head_size: int
    intermediate_size: int
    rope_n_elem: int
    rms_norm: bool = True
    add_unit_offset: bool = False
    gated: bool = True
    activation: str = "silu"
    bias: bool = False
    attn_bias: bool = False
    lm_head_bias: bool = False
    parallel_residual: bool = False
    shared_attention_norm: bool = False
    norm_qk: bool = False
    scale_embeddings: bool = False


_PHI = {
    "rms_norm": False,
    "gated": False,
    "activation": "gelu",
    "bias": True,
    "lm_head_bias": True,
    "parallel_residual": True,
    "shared_attention_norm": True,
}
_NEOX = {"rms_norm": False, "gated": False, "activation": "gelu", "bias": True}
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "phi3": {},
    "qwen2": {"attn_bias": True},
    "qwen3": {"norm_qk": True},
    "gemma": {"activation": "gelu", "add_unit_offset": True, "scale_embeddings": True},
    "phi": _PHI,
    "falcon": {**_PHI, "bias": False, "lm_head_bias": False},
    "gpt_neox": _NEOX,
}
"""What distinguishes a family, by ``model_type``."""


def read_sizes(fields: dict[str, Any]) -> Sizes:
    """Return the settings for the config of a Hugging Face model.

    Raises:
        UnsupportedError: LitGPT's model of this family is not known here.
    """
    family = fields.get("model_type", "")
    if family not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise UnsupportedError(f"LitGPT's model of the type {family} cannot be traced, only those of {known}")
    config = resolved_config(fields)
    heads = config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    settings = dict(_FAMILIES[family])
    if family == "falcon":
        new = config.new_decoder_architecture
        groups = config.num_kv_heads if new else 1 if config.multi_query else heads
        settings["shared_attention_norm"] = not new or getattr(config, "num_ln_in_parallel_attn", 2) == 1
    if family == "gpt_neox":
        settings["parallel_residual"] = config.use_parallel_residual
    if family == "llama":
        settings["attn_bias"] = bool(getattr(config, "attention_bias", False))
    return Sizes(
        vocab_size=config.vocab_size,
        n_embd=config.hidden_size,
        n_layer=config.num_hidden_layers,
        n_head=heads,
        n_query_groups=groups,
        head_size=head_size,
        intermediate_size=getattr(config, "intermediate_size", None) or config.ffn_hidden_size,
        rope_n_elem=int(_rotary_share(config) * head_size),
        **settings,
    )


def _rotary_share(config: Any) -> float:
    """Return the share of a head that is rotated, under the names of old and new configs."""
    rope = getattr(config, "rope_parameters", None) or {}
    for holder in (rope, vars(config)):
        for name in ("partial_rotary_factor", "rotary_pct"):
            if isinstance(holder, dict) and holder.get(name) is not None:
                return float(holder[name])
    return 1.0


# LitGPT's model as its fine-tuning scripts prepare it, and their loss.
#
# Sources: LitGPT 0.5.13 ``finetune/lora.py``, ``finetune/full.py`` and ``utils.py`` (``chunked_cross_entropy``);
# Lightning Fabric 2.6 ``wrappers.py`` (a module's outputs become fp32) and ``plugins/precision/bitsandbytes.py``
# (every linear layer is quantized, from fp16 weights, the head too).


CHUNK = 128
"""Positions per pass of the head (``lm_head_chunk_size``), and per chunk of the loss."""
_TARGETS = {
    "query": ("q_proj",),
    "key": ("k_proj",),
    "value": ("v_proj",),
    "projection": ("o_proj", "dense", "out_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2", "dense_h_to_4h", "dense_4h_to_h"),
    "head": ("lm_head", "embed_out"),
}
"""Names in Hugging Face models of the layers that LitGPT adapts together."""
_FUSED = ("query_key_value", "qkv_proj")


def build_litgpt(request: Request, dtype: Any) -> Any:
    """Return LitGPT's model with its adapters and quantized layers, ready for training.

    Args:
        request: a job of the framework ``litgpt``.
        dtype: of the weights.

    Raises:
        UnsupportedError: LitGPT's model of this family, or adapters of such names, are not known here.
    """
    training, lora = request.training, request.lora
    with default_dtype(dtype):
        adapters = NO_ADAPTERS if lora is None else _adapters(lora)
        model = GPT(read_sizes(request.config), adapters, request.loop, training.sequence_length)
    if lora is not None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)
        _quantize(model, request)
    if training.activation_checkpointing == "full":
        for block in model.transformer.h:
            block.forward = _checkpointed(block.forward)
    model.train()
    return model


def litgpt_loss(model: Any, inputs: dict[str, Any], request: Request, variables: list[Any]) -> Any:
    """Return the loss of a micro-batch; the script's variable ``logits`` holds those of the one before until then."""
    ids, labels = inputs["input_ids"], inputs["labels"][..., 1:]
    logits: Any
    if request.lora is None:
        logits = model(ids)
        variables[0] = logits
        return _chunked_cross_entropy(logits[..., :-1, :], labels)
    logits = model(ids, lm_head_chunk_size=CHUNK)
    logits[-1] = logits[-1][..., :-1, :]
    variables[0] = logits
    targets = labels.split(logits[0].size(1), dim=1)
    losses = [
        _cross_entropy(part.reshape(-1, part.size(-1)), target.reshape(-1))
        for part, target in zip(logits, targets)  # noqa: B905 - not in Python 3.9
    ]
    return torch.cat(losses).sum()


def _chunked_cross_entropy(logits: Any, targets: Any) -> Any:
    logits, targets = logits.reshape(-1, logits.size(-1)), targets.reshape(-1)
    pairs = zip(logits.split(CHUNK), targets.split(CHUNK))  # noqa: B905 - not in Python 3.9
    return torch.cat([_cross_entropy(part, target) for part, target in pairs]).sum()


def _cross_entropy(logits: Any, targets: Any) -> Any:
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none")


def _adapters(lora: Lora) -> Adapters:
    """Return which of LitGPT's layers have adapters, from their names in the Hugging Face model."""
    names = set(lora.targets) if not isinstance(lora.targets, str) else {"all-linear"}
    if "all-linear" in names:
        names = {name for part in _TARGETS if part != "head" for name in _TARGETS[part]}
    if names & set(_FUSED):
        names |= {"q_proj", "k_proj", "v_proj"}
    unknown = names - set(_FUSED) - {name for known in _TARGETS.values() for name in known}
    if unknown:
        raise UnsupportedError(f"LitGPT has no adapter of {', '.join(sorted(unknown))}")
    return Adapters(
        rank=lora.rank,
        dropout=lora.dropout,
        **{part: bool(names & set(known)) for part, known in _TARGETS.items()},
    )


def _quantize(model: Any, request: Request) -> None:
    lora = request.lora
    if lora is None or lora.quantization == "none":
        return
    product_dtype = compute_dtype(request.training)
    nested, keeps_input = lora.quantization == "nf4-double", request.older.keeps_quantized_inputs
    for path, module in list(model.named_modules()):
        if type(module) is torch.nn.Linear:
            layer = Linear4bit(module, product_dtype, nested=nested, keeps_input=keeps_input)
            layer.weight_dtype = torch.float16
            model.set_submodule(path, layer)
    if request.loop.stable_embedding:
        model.transformer.wte = _StableEmbedding(model.transformer.wte)


class _StableEmbedding(torch.nn.Embedding):  # type: ignore[misc] # torch is not type-checked
    """bitsandbytes' ``StableEmbedding``, which LitGPT puts in since 0.5: a norm follows the embedding."""

    def __init__(self, embedding: Any) -> None:
        torch.nn.Module.__init__(self)
        self.weight, self.padding_idx = embedding.weight, None
        self.norm = torch.nn.LayerNorm(embedding.embedding_dim, dtype=self.weight.dtype)
        self.norm.requires_grad_(requires_grad=False)

    def forward(self, ids: Any) -> Any:
        """Return the normalised embedding, which is computed in the default dtype."""
        rows = torch.nn.functional.embedding(ids, self.weight).to(torch.get_default_dtype())
        return self.norm(rows.to(self.norm.weight.dtype)).to(self.weight.dtype)


def _checkpointed(forward: Any) -> Any:
    return lambda *args: checkpoint(forward, *args, use_reentrant=False)
