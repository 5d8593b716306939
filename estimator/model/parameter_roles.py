"""The role of a parameter, derived from its name, shape and kind: one rule for counted and for built models."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from .inventory import ParameterGroup, Role

ParameterKind = Literal["linear", "conv1d", "embedding", "norm", "bias", "parameter"]
"""The part that a parameter has in its module. ``conv1d``: GPT-2's linear layer, stored (in, out)."""


@dataclass(frozen=True, slots=True)
class NamedShape:
    """Parameters of one name and shape, without a role."""

    name: str
    """Layer numbers are written as ``*``."""
    shape: tuple[int, ...]
    repeat: int
    kind: ParameterKind
    quantized: bool | None = None
    places: tuple[tuple[int, ...], ...] | None = None
    """The numbers for which ``*`` stands, of each tensor; None: not known."""


def linear(name: str, out_size: int, in_size: int, repeat: int, *, bias: bool = False) -> Iterator[NamedShape]:
    """Yield a linear layer's weight, and its bias if it has one."""
    yield NamedShape(f"{name}.weight", (out_size, in_size), repeat, "linear")
    if bias:
        yield NamedShape(f"{name}.bias", (out_size,), repeat, "bias")


def norm(name: str, size: int, repeat: int, *, bias: bool = False) -> Iterator[NamedShape]:
    """Yield a norm's scale, and its shift if it is a layer norm."""
    yield NamedShape(f"{name}.weight", (size,), repeat, "norm")
    if bias:
        yield NamedShape(f"{name}.bias", (size,), repeat, "norm")


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
    """Return the groups with their roles, sorted: embeddings, blocks, final norms, head; within these by name."""
    groups = [with_role(group) for group in found]
    return tuple(sorted(groups, key=lambda group: (_order(group), group.name, group.shape)))


def with_role(found: NamedShape) -> ParameterGroup:
    """Return the group with its role, marked if it is a linear layer's weight or part of a repeated block."""
    layered = ".*." in found.name
    return ParameterGroup(
        name=found.name,
        shape=found.shape,
        repeat=found.repeat,
        role=_role(found, layered=layered),
        linear=found.kind in ("linear", "conv1d") and len(found.shape) == 2,
        layered=layered,
        transposed=found.kind == "conv1d",
        quantized=found.quantized,
        places=found.places,
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
    return 2 if group.layered else _ORDER.get(group.role, 3)
