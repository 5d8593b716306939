"""The JSON of ``vramtop models`` and ``vramtop program``."""

from typing import TypedDict

from .versioned import Versioned


class ModelJson(TypedDict):
    """A model that is known by name."""

    name: str
    """A name to type: the first that has the word that was given."""
    id: str
    """Hub id."""
    label: str
    """Display name."""
    aliases: list[str]
    """Further names: other models of the same shape, and shorter names."""
    parameters: int
    """Number of parameters with the head of its usual task."""
    weight_bytes: int
    """Bytes of its weights in `dtype`."""
    dtype: str | None
    """Type of its weights, as its config states it; null: it states none, and `weight_bytes` is that of bfloat16."""
    family: str
    """`model_type` of its config."""


class ModelsJson(Versioned):
    """The models that are known by name, those whose names have the word that was given."""

    models: list[ModelJson]
    """The models, family by family."""


class ProgramJson(Versioned):
    """The training script that a described job stands for."""

    command: str
    """The command that starts it."""
    script: str
    """Its text."""
