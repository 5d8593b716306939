"""Encoder families and T5: their parameters as transformers 5 names them, and a row for each.

Every function yields the parameters of a whole model without its head. Linear weights are (out, in).

Source: the configuration and modelling files of transformers 5 (``models/<family>``); tests compare them with
models that transformers builds.
"""

from collections.abc import Iterator, Mapping

from ...common.records import replace
from ...job.settings import Task
from ..architecture import Architecture, BlockRules
from ..parameter_roles import NamedShape, linear, norm
from .family import DECODER_TASKS, Family
from .task_heads import MaskedLmHead, TaskHeads


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
    # transformers keeps it in its own type (``_keep_in_fp32_modules``)
    out = f"{part}DenseReluDense.wo.weight"
    yield NamedShape(out, (arch.hidden, arch.mlp_size), layers, "linear", quantized=False)
    yield from norm(f"{part}layer_norm", arch.hidden, (3 if cross else 2) * layers)
    yield from norm(f"{prefix}final_layer_norm", arch.hidden, 1)


_ENCODER_TASKS: tuple[Task, ...] = ("masked-lm", *DECODER_TASKS)
_T5_TASKS: tuple[Task, ...] = ("seq2seq-lm", *DECODER_TASKS[1:])
_BERT_HEADS = TaskHeads(
    masked_lm=MaskedLmHead(
        transform="cls.predictions.transform.dense",
        norm="cls.predictions.transform.LayerNorm",
        output="cls.predictions",
    ),
    sequence_classifier=("classifier",),
    sequence_classifier_bias=True,
    tokens_classifier="classifier",
    answers_are_labels=True,
    pooled=("feature-extraction", "sequence-classification"),
)
_BERT = Family(
    body=bert_body,
    prefix="bert",
    tasks=_ENCODER_TASKS,
    heads=_BERT_HEADS,
    rules=BlockRules(softmax_in_score_dtype=True),
    stack="encoder",
    tied=True,
    norm="layer",
    block_norms=("attention.output.LayerNorm", "output.LayerNorm"),
    gated=False,
    activation="gelu",
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    dropout=0.1,
    reads_kv_heads=False,
    reads_head_dim=False,
    experts=False,
    learned_positions=512,
    token_types=2,
)
_T5 = Family(
    body=t5_body,
    prefix="transformer",
    tasks=_T5_TASKS,
    heads=TaskHeads(
        without_prefix=("feature-extraction", "seq2seq-lm", "question-answering"),
        sequence_classifier=("classification_head.dense", "classification_head.out_proj"),
        sequence_classifier_bias=True,
        tokens_classifier="classifier",
        answers_are_labels=True,
    ),
    rules=BlockRules(softmax_in_score_dtype=True),
    marker_field="d_kv",
    stack="encoder-decoder",
    tied=True,
    gated=False,
    activation="relu",
    feed_forward_proj="relu",
    dropout=0.1,
    reads_kv_heads=False,
    experts=False,
    relative_positions=True,
)
ENCODERS: Mapping[str, Family] = {
    "bert": replace(_BERT, marker_field="type_vocab_size"),
    "roberta": replace(
        _BERT,
        prefix="roberta",
        heads=replace(
            _BERT_HEADS,
            masked_lm=MaskedLmHead(transform="lm_head.dense", norm="lm_head.layer_norm", output="lm_head"),
            sequence_classifier=("classifier.dense", "classifier.out_proj"),
            pooled=("feature-extraction",),
        ),
    ),
    "distilbert": replace(
        _BERT,
        body=distilbert_body,
        prefix="distilbert",
        tasks=tuple(task for task in _ENCODER_TASKS if task != "causal-lm"),
        block_norms=("sa_layer_norm", "output_layer_norm"),
        token_types=0,
        heads=replace(
            _BERT_HEADS,
            masked_lm=MaskedLmHead(
                transform="vocab_transform", norm="vocab_layer_norm", output="vocab_projector", output_is_linear=True
            ),
            sequence_classifier=("pre_classifier", "classifier"),
            pooled=(),
        ),
    ),
    "t5": _T5,
    "mt5": replace(_T5, feed_forward_proj="gated-gelu"),
}
