"""Counts a model's parameters from its architecture alone, without torch: exact for the families of the registry."""

from .architecture import Architecture
from .families.family import Family
from .families.registry import FAMILIES, GENERIC, family_of
from .families.task_heads import head_parameters
from .inventory import Inventory
from .parameter_roles import assign_roles

UNKNOWN_FAMILY_ERROR = (-0.06, 1.1)
"""Lowest and highest error of the count for an unknown family, as a share of the true count.

Measured by reading each built-in model as one of an unknown family (a test repeats it): decoders with gated MLPs
(Llama, Mistral, Qwen, Phi-3, OLMo 2, Granite, GLM-4, Mixtral, DeepSeek, gpt-oss) within 0.1 %; Llama 4, whose shared
expert has no size of its own there, -6 to -1 %; Gemma, whose configs do not state that the head is tied, +4 to +30 %
(270M: +63 %); Phi-2, Pythia, OPT and StarCoder, without gates, +9 to +60 %; encoders, also without, +38 to +108 %, of
which small ones with many words are the furthest off.
"""


def count_parameters(arch: Architecture) -> Inventory:
    """Return every parameter of an architecture, named as transformers 5 names them.

    ``count`` is ``exact`` for the families of the registry; any other is counted as a Llama-like decoder.
    """
    family = family_of(arch.family)
    found = [*family.body(arch, family, _prefix(arch, family)), *head_parameters(arch, family.heads)]
    read_as = "Llama's" if family is GENERIC else "a similar family's"
    return Inventory(
        groups=assign_roles(found),
        layers=arch.layers,
        tied_head=arch.tied and arch.has_vocab_head,
        family=arch.family,
        count="approximate" if arch.approximate else "exact",
        source=f"the shape of a {arch.family} model" if arch.family in FAMILIES else f"the shape, read as {read_as}",
    )


def _prefix(arch: Architecture, family: Family) -> str:
    """Return the prefix of the body's parameter names; it is empty if the task's model is the body itself."""
    if arch.task in family.heads.without_prefix:
        return ""
    name = family.qa_prefix if arch.task == "question-answering" and family.qa_prefix else family.prefix
    return f"{name}."
