"""Task heads on top of a model's body: their names and shapes, and their parameters as transformers 5 names them."""

from collections.abc import Iterator

import msgspec

from ...job.settings import Task
from ..architecture import Architecture
from ..parameter_roles import NamedShape, linear, norm


class MaskedLmHead(msgspec.Struct, frozen=True, kw_only=True):
    """Module names of a masked language model's head."""

    transform: str
    norm: str
    output: str
    output_is_linear: bool = False
    """The output module is the linear layer itself; otherwise it holds one named ``decoder`` and a bias of its own."""


class TaskHeads(msgspec.Struct, frozen=True, kw_only=True):
    """Names and shapes of the task heads that a family puts on top of its body."""

    without_prefix: tuple[Task, ...] = ("feature-extraction",)
    """Tasks whose model is the body itself, so that its parameters have no prefix."""
    lm_head_bias: bool = False
    masked_lm: MaskedLmHead | None = None
    """The language-model head of an encoder; None: ``lm_head``, a single linear layer."""
    sequence_classifier: tuple[str, ...] = ("score",)
    """Linear layers of the sequence classifier: the last gives the labels, those before it keep the hidden size."""
    sequence_classifier_bias: bool = False
    tokens_classifier: str = "score"
    """The linear layer of the token classifier."""
    answers_are_labels: bool = False
    """The question-answering head has ``num_labels`` outputs; otherwise two, the start and the end of the answer."""
    pooled: tuple[Task, ...] = ()
    """Tasks whose model has BERT's pooler."""


QUESTION_ANSWERING_OUTPUTS = 2
"""Start and end of the answer."""


def head_parameters(arch: Architecture, heads: TaskHeads) -> Iterator[NamedShape]:
    """Yield the head's own parameters: none if it shares the token embedding, or if the task has no head."""
    hidden = arch.hidden
    if arch.has_vocab_head:
        yield from _masked_lm_head(arch, heads.masked_lm) if heads.masked_lm else _lm_head(arch, heads)
    elif arch.task == "sequence-classification":
        *before, last = heads.sequence_classifier
        for name in before:
            yield from linear(name, hidden, hidden, 1, bias=heads.sequence_classifier_bias)
        yield from linear(last, arch.num_labels, hidden, 1, bias=heads.sequence_classifier_bias)
    elif arch.task == "token-classification":
        yield from linear(heads.tokens_classifier, arch.num_labels, hidden, 1, bias=True)
    elif arch.task == "question-answering":
        outputs = arch.num_labels if heads.answers_are_labels else QUESTION_ANSWERING_OUTPUTS
        yield from linear("qa_outputs", outputs, hidden, 1, bias=True)


def _lm_head(arch: Architecture, heads: TaskHeads) -> Iterator[NamedShape]:
    if not arch.tied:
        yield NamedShape("lm_head.weight", (arch.vocab, arch.hidden), 1, "linear")
    if heads.lm_head_bias:
        yield NamedShape("lm_head.bias", (arch.vocab,), 1, "bias")


def _masked_lm_head(arch: Architecture, head: MaskedLmHead) -> Iterator[NamedShape]:
    yield from linear(head.transform, arch.hidden, arch.hidden, 1, bias=True)
    yield from norm(head.norm, arch.hidden, 1, bias=True)
    yield NamedShape(f"{head.output}.bias", (arch.vocab,), 1, "bias" if head.output_is_linear else "parameter")
    if arch.tied:
        return
    if head.output_is_linear:
        yield NamedShape(f"{head.output}.weight", (arch.vocab, arch.hidden), 1, "linear")
    else:
        yield from linear(f"{head.output}.decoder", arch.vocab, arch.hidden, 1, bias=True)
