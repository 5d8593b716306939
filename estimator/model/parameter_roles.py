"""What a parameter belongs to, told from its name, shape and the kind of its module: one rule for every inventory."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from .parameters import ParameterGroup, Role

ParameterKind = Literal["linear", "conv1d", "embedding", "norm", "bias", "parameter"]
"""What a parameter is to its module. ``conv1d``: GPT-2's linear layer, stored (in, out)."""


@dataclass(frozen=True, slots=True)
class NamedShape:
    """Parameters of one name and shape before they have a role."""

    name: str
    """Numbers of layers as ``*``."""
    shape: tuple[int, ...]
    repeat: int
    kind: ParameterKind
    dtype: str | None = None
    quantized: bool | None = None


_ROLES: tuple[tuple[Role, re.Pattern[str]], ...] = (
    ("router", re.compile(r"\.(gate|router|shared_expert_gate|wg)\.(weight|bias|proj\.weight|scale)$|\.router\.")),
    ("mlp", re.compile(r"\.shared_experts?\.")),
    ("expert", re.compile(r"\.experts?\.")),
    ("attention", re.compile(r"attn|attention|mixer", re.IGNORECASE)),
    (
        "mlp",
        re.compile(r"\.(mlp|ffn|ff|feed_forward|intermediate|output|densereludense|fc\d|w\d)\.|\.fc\d", re.IGNORECASE),
    ),
)
_HEAD = re.compile(
    r"(^|\.)(lm_head|score|classifier|classification_head|qa_outputs|pre_classifier|embed_out|output_projection|cls"
    r"|vocab_transform|vocab_projector|generator_lm_head)\."
)
_ORDER = {"embedding": 0, "other": 1, "head": 4}


def assign_roles(found: Iterable[NamedShape]) -> tuple[ParameterGroup, ...]:
    """Groups with their roles, in one order whoever counted: embeddings, blocks, final norms, head; by name within."""
    groups = [with_role(group) for group in found]
    return tuple(sorted(groups, key=lambda group: (_order(group), group.name, group.shape)))


def with_role(found: NamedShape) -> ParameterGroup:
    """The group with its role, and whether it is a linear layer's weight and part of a repeated block."""
    layered = ".*." in found.name
    return ParameterGroup(
        name=found.name,
        shape=found.shape,
        repeat=found.repeat,
        role=_role(found, layered=layered),
        linear=found.kind in ("linear", "conv1d") and len(found.shape) == 2,
        layered=layered,
        transposed=found.kind == "conv1d",
        dtype=found.dtype,
        quantized=found.quantized,
    )


def _role(found: NamedShape, *, layered: bool) -> Role:
    if found.kind == "norm":
        return "norm"
    if not layered:
        if found.kind == "embedding":
            return "embedding"
        return "head" if _HEAD.search(found.name) else "other"
    return next((role for role, pattern in _ROLES if pattern.search(found.name)), "other")


def _order(group: ParameterGroup) -> int:
    if group.layered:
        return 2
    return _ORDER.get(group.role, 3)
