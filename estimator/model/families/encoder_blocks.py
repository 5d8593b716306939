"""Parameters of encoders and of T5 as transformers 5 names them.

Every function yields the parameters of a whole model without its head. Linear weights are (out, in).
"""

from collections.abc import Iterator

from ..architecture import Architecture
from ..parameter_roles import NamedShape, linear, norm
from .family import Family


def bert_body(arch: Architecture, family: Family, prefix: str) -> Iterator[NamedShape]:
    """Yield the parameters of BERT and RoBERTa: embeddings, blocks, and the pooler if the task's model has one."""
    attention = ("self.query", "self.key", "self.value", "output.dense")
    mlp = ("intermediate.dense", "output.dense")
    yield from _encoder(arch, family, prefix, block="encoder.layer.*.", attention=attention, mlp=mlp)
    if arch.task in family.heads.pooled:
        yield from linear(f"{prefix}pooler.dense", arch.hidden, arch.hidden, 1, bias=True)


def distilbert_body(arch: Architecture, family: Family, prefix: str) -> Iterator[NamedShape]:
    """Yield the parameters of DistilBERT: BERT's block under other names."""
    attention, mlp = ("q_lin", "k_lin", "v_lin", "out_lin"), ("ffn.lin1", "ffn.lin2")
    yield from _encoder(arch, family, prefix, block="transformer.layer.*.", attention=attention, mlp=mlp)


def _encoder(
    arch: Architecture,
    family: Family,
    prefix: str,
    *,
    block: str,
    attention: tuple[str, ...],
    mlp: tuple[str, str],
) -> Iterator[NamedShape]:
    """Yield embeddings and blocks of an encoder with learned positions, layer norms and biases."""
    embeddings, block, layers, hidden = f"{prefix}embeddings.", f"{prefix}{block}", arch.layers, arch.hidden
    tables = {"word": arch.vocab, "position": arch.positions, "token_type": arch.token_types}
    for name, rows in tables.items():
        if rows:
            yield NamedShape(f"{embeddings}{name}_embeddings.weight", (rows, hidden), 1, "embedding")
    yield from norm(f"{embeddings}LayerNorm", hidden, 1, bias=True)
    for name in attention:
        yield from linear(f"{block}attention.{name}", hidden, hidden, layers, bias=True)
    yield from linear(f"{block}{mlp[0]}", arch.mlp_size, hidden, layers, bias=True)
    yield from linear(f"{block}{mlp[1]}", hidden, arch.mlp_size, layers, bias=True)
    for name in family.block_norms:
        yield from norm(block + name, hidden, layers, bias=True)


def t5_body(arch: Architecture, _family: Family, prefix: str) -> Iterator[NamedShape]:
    """Yield the parameters of T5: relative positions in each stack's first block, RMS norms, no biases."""
    yield NamedShape(f"{prefix}shared.weight", (arch.vocab, arch.hidden), 1, "embedding")
    yield from _t5_stack(arch, f"{prefix}encoder.", arch.encoder_layers, cross=False)
    if arch.decoder_layers:
        yield from _t5_stack(arch, f"{prefix}decoder.", arch.decoder_layers, cross=True)


def _t5_stack(arch: Architecture, prefix: str, layers: int, *, cross: bool) -> Iterator[NamedShape]:
    part = f"{prefix}block.*.layer.*."
    for attention in ("SelfAttention", "EncDecAttention") if cross else ("SelfAttention",):
        for name in ("q", "k", "v"):
            yield from linear(f"{part}{attention}.{name}", arch.query_size, arch.hidden, layers)
        yield from linear(f"{part}{attention}.o", arch.hidden, arch.query_size, layers)
    bias_shape = (arch.relative_buckets, arch.heads)
    yield NamedShape(f"{part}SelfAttention.relative_attention_bias.weight", bias_shape, 1, "embedding")
    for name in ("wi_0", "wi_1") if arch.gated else ("wi",):
        yield from linear(f"{part}DenseReluDense.{name}", arch.mlp_size, arch.hidden, layers)
    yield from linear(f"{part}DenseReluDense.wo", arch.hidden, arch.mlp_size, layers)
    yield from norm(f"{part}layer_norm", arch.hidden, (3 if cross else 2) * layers)
    yield from norm(f"{prefix}final_layer_norm", arch.hidden, 1)
