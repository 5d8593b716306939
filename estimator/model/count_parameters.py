"""A model's parameters from the shape in its config alone: exact for the families that vramtop knows, without torch."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..job.job import Task
from .architecture import Architecture, read_architecture
from .count_decoder import gpt2_body, gpt_neox_body, llama_body, phi3_body, phi_body
from .count_encoder import bert_body, distilbert_body, t5_body
from .count_heads import head
from .families import FAMILIES, GENERIC, Family
from .parameter_roles import NamedShape, assign_roles
from .parameters import Inventory

UNKNOWN_FAMILY_ERROR = (-0.01, 0.56)
"""How far off the count of a family that is not known is, as a share of the true count: lowest and highest.

Measured by reading each built-in model as one of an unknown family (a test repeats it): decoders with gated MLPs
(Llama, Mistral, Qwen, Phi-3, Mixtral, DeepSeek, gpt-oss) within 0.1 %; Gemma 2 and 3, whose configs do not say that
the head is tied, +10 to +30 %; Phi-2, without gates, +30 %; BERT, RoBERTa, DistilBERT, likewise, +39 to +55 %.
"""


def inventory_from_shape(
    config: Mapping[str, Any], task: Task = "causal-lm", *, where: str = "the model's config"
) -> Inventory:
    """Every parameter that the config describes, named as transformers 5 names them.

    Args:
        config: the fields of a Hugging Face config.json.
        task: the head on top.
        where: what to call the config in an error.

    Returns:
        ``count`` is ``exact`` for the families of ``families.FAMILIES``; any other is read as a Llama-like decoder.

    Raises:
        InputError: a field is missing or wrong, or the family has no such head.
    """
    return count_parameters(read_architecture(config, task, where=where))


def count_parameters(arch: Architecture) -> Inventory:
    """Every parameter of a shape that was already read."""
    family = FAMILIES.get(arch.family, GENERIC)
    found = [*_body(arch, family), *head(arch, family.layout)]
    return Inventory(
        groups=assign_roles(found),
        layers=arch.layers,
        tied_head=arch.tied and arch.has_vocab_head,
        family=arch.family,
        count="approximate" if arch.approximate else "exact",
        source=f"the shape of a {arch.family} model" if not arch.approximate else "the shape, read as Llama's",
    )


def _body(arch: Architecture, family: Family) -> Iterator[NamedShape]:
    prefix = _prefix(arch, family)
    if family.layout == "llama":
        return llama_body(arch, family, prefix)
    bodies = {
        "phi": phi_body,
        "phi3": phi3_body,
        "gpt2": gpt2_body,
        "gpt_neox": gpt_neox_body,
        "bert": bert_body,
        "distilbert": distilbert_body,
        "t5": t5_body,
    }
    return bodies[family.layout](arch, prefix)


def _prefix(arch: Architecture, family: Family) -> str:
    """Where the body hangs: nowhere without a head; T5 only under classifiers."""
    bare = ("feature-extraction",)
    if family.layout == "t5":
        bare = ("feature-extraction", "seq2seq-lm", "question-answering")  # type: ignore[assignment]
    if arch.task in bare:
        return ""
    name = family.qa_prefix if arch.task == "question-answering" and family.qa_prefix else family.prefix
    return f"{name}."
