"""LitGPT's GPT, operation by operation: norms, rotary embeddings, attention over one product, MLPs.

Source: LitGPT 0.5.13 ``model.py``; before 0.5.5 keys and values were expanded before they were rotated, before 0.4.6 a
norm cast to 16 bits before it was scaled. Mixtures of experts, latent attention, soft caps, sliding windows and norms
after a block's halves are not here.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from .adapters import LoRALinear, LoRAQKVLinear

if TYPE_CHECKING:
    from ...request.request import Loop
    from .sizes import Sizes


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
