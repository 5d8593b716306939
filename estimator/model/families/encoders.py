"""Rows of the encoder families and of T5.

Source: the configuration and modelling files of transformers 5 (``models/<family>``); tests compare them with models
that transformers builds.
"""

from collections.abc import Mapping
from dataclasses import replace

from ...job import Task
from ..architecture import BlockRules
from .encoder_blocks import bert_body, distilbert_body, t5_body
from .family import DECODER_TASKS, Family, MaskedLmHead, TaskHeads

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
    "t5": Family(
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
        feed_forward_proj=True,
        dropout=0.1,
        reads_kv_heads=False,
        experts=False,
        relative_positions=True,
    ),
}
