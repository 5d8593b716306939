"""The task heads on top of a model's body, as transformers 5 names them."""

from collections.abc import Iterator

from .architecture import Architecture
from .count_decoder import linear, norm
from .parameter_roles import NamedShape

QUESTION_ANSWERING_OUTPUTS = 2
"""Start and end of the answer."""


def head(arch: Architecture, layout: str) -> Iterator[NamedShape]:
    """The head's own parameters; none where it is the token embedding, or where the task has no head."""
    if arch.task in ("causal-lm", "seq2seq-lm"):
        yield from _masked_lm_head(arch) if layout == "bert" else _lm_head(arch, layout)
    elif arch.task == "masked-lm":
        yield from _masked_lm_head(arch)
    elif arch.task == "sequence-classification":
        yield from _sequence_head(arch, layout)
    elif arch.task == "token-classification":
        own = layout in ("bert", "distilbert", "t5", "gpt2", "gpt_neox")
        yield from linear("classifier" if own else "score", arch.num_labels, arch.hidden, 1, bias=True)
    elif arch.task == "question-answering":
        outputs = arch.num_labels if layout in ("bert", "distilbert", "t5") else QUESTION_ANSWERING_OUTPUTS
        yield from linear("qa_outputs", outputs, arch.hidden, 1, bias=True)


def _lm_head(arch: Architecture, layout: str) -> Iterator[NamedShape]:
    if not arch.tied:
        yield NamedShape("lm_head.weight", (arch.vocab, arch.hidden), 1, "linear")
    if layout == "phi":
        yield NamedShape("lm_head.bias", (arch.vocab,), 1, "bias")


def _masked_lm_head(arch: Architecture) -> Iterator[NamedShape]:
    transform, layer_norm, output = {
        "bert": ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions"),
        "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head"),
        "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector"),
    }[arch.family]
    yield from linear(transform, arch.hidden, arch.hidden, 1, bias=True)
    yield from norm(layer_norm, arch.hidden, 1, bias=True)
    own_bias = arch.family == "distilbert"
    yield NamedShape(f"{output}.bias", (arch.vocab,), 1, "bias" if own_bias else "parameter")
    if not arch.tied:
        weight = (arch.vocab, arch.hidden)
        if own_bias:
            yield NamedShape(f"{output}.weight", weight, 1, "linear")
        else:
            yield from linear(f"{output}.decoder", *weight, 1, bias=True)


def _sequence_head(arch: Architecture, layout: str) -> Iterator[NamedShape]:
    labels, hidden = arch.num_labels, arch.hidden
    if arch.family == "bert":
        yield from linear("classifier", labels, hidden, 1, bias=True)
    elif arch.family == "roberta" or layout == "t5":
        name = "classifier" if arch.family == "roberta" else "classification_head"
        yield from linear(f"{name}.dense", hidden, hidden, 1, bias=True)
        yield from linear(f"{name}.out_proj", labels, hidden, 1, bias=True)
    elif arch.family == "distilbert":
        yield from linear("pre_classifier", hidden, hidden, 1, bias=True)
        yield from linear("classifier", labels, hidden, 1, bias=True)
    else:
        yield from linear("score", labels, hidden, 1)
