"""Bytes of optimizer state per parameter, as a few kinds of tensors: full-size, quantized, factored, low-rank, squares.

A row of the table of optimizers adds them up. ``width`` is always the bytes per element of the parameter's dtype, which
most libraries give their states.
"""

from collections.abc import Mapping
from math import ceil, prod
from typing import Any, Literal, Protocol

from msgspec import Struct

Shape = tuple[int, ...]
Options = Mapping[str, Any]
Side = Literal["longer", "shorter"]


class ParameterTensor(Protocol):
    """A parameter, as far as its optimizer states depend on it."""

    @property
    def name(self) -> str:
        """Name in ``named_parameters``."""

    @property
    def shape(self) -> Shape:
        """Shape of the whole tensor."""

    @property
    def role(self) -> str:
        """``embedding`` where it is looked up, not multiplied."""

    @property
    def linear(self) -> bool:
        """It is the weight of a linear layer."""

    @property
    def layered(self) -> bool:
        """It belongs to one of the repeated blocks."""


class Full(Struct, frozen=True, kw_only=True):
    """States as large as the parameter; the base of all other kinds, which hold another number of elements."""

    count: float = 1
    width: float | None = None
    """Bytes per element; None: those of the parameter."""
    when: str | None = None
    """Option that has to be on; None: always."""
    per: str | None = None
    """Option by whose value ``count`` is multiplied."""
    under: int | None = None
    """They exist where the parameter has fewer bytes per element than this: fp32 copies of 16-bit parameters."""
    least: int | None = None
    """They exist where the parameter has at least so many bytes per element."""
    vectors: bool = True
    """Vectors have them too, not only matrices."""

    def bytes_of(self, shape: Shape, width: float, options: Options) -> float:
        """Return the bytes for a parameter of a shape."""
        if self.when and not options[self.when]:
            return 0.0
        if (self.under is not None and width >= self.under) or (self.least is not None and width < self.least):
            return 0.0
        if len(shape) < 2 and not self.vectors:
            return 0.0
        count = self.count * (options[self.per] if self.per else 1)
        return count * self._bytes(shape, width if self.width is None else self.width, options)

    def _bytes(self, shape: Shape, width: float, options: Options) -> float:
        return self._elements(shape, options) * width

    def _elements(self, shape: Shape, _options: Options) -> float:
        return prod(shape)


class Quantized(Full, frozen=True, kw_only=True):
    """States of few bits with a constant per block; small parameters keep them unquantized."""

    bits: int = 8
    block: int = 256
    constant: int = 4
    """Bytes of the constant of a block."""
    smallest: int = 4096
    """Parameters with fewer elements are not quantized."""
    small_width: float | None = 4
    """Bytes per element where they are not quantized; None: those of the parameter."""
    whole_blocks: bool = False
    """Parameters that are not a multiple of the block are not quantized either."""

    def _bytes(self, shape: Shape, width: float, options: Options) -> float:
        elements = self._elements(shape, options)
        if elements < self.smallest or (self.whole_blocks and elements % self.block):
            return elements * (width if self.small_width is None else self.small_width)
        return elements * self.bits / 8 + ceil(elements / self.block) * self.constant


class Factored(Full, frozen=True, kw_only=True):
    """A row and a column for each matrix of a parameter; full size for a vector."""

    low_rank: bool = False
    """It is that of a matrix whose shorter side is the option ``rank``."""

    def _elements(self, shape: Shape, options: Options) -> float:
        if self.low_rank and len(shape) > 1:
            shape = (prod(shape[:-1]), shape[-1])
            shape = (max(shape), min(options["rank"], *shape))
        return prod(shape) if len(shape) < 2 else prod(shape[:-1]) + prod(shape[:-2]) * shape[-1]


class PerRow(Full, frozen=True, kw_only=True):
    """One value for each row of a matrix; full size for a vector."""

    def _elements(self, shape: Shape, _options: Options) -> float:
        return prod(shape) if len(shape) < 2 else shape[0]


class LowRank(Full, frozen=True, kw_only=True):
    """``rank`` values (an option) for each element of a side of the matrix."""

    side: Side = "longer"

    def _elements(self, shape: Shape, options: Options) -> float:
        return _low_rank(shape, self.side, options)


class QuantizedLowRank(Quantized, frozen=True, kw_only=True):
    """States of few bits for a matrix whose shorter side is the option ``rank``."""

    def _elements(self, shape: Shape, options: Options) -> float:
        return _low_rank(shape, "longer", options)


class Squares(Full, frozen=True, kw_only=True):
    """A square matrix for each side of a parameter, or for its shorter side; none for a vector."""

    limit: str | None = None
    """Option with the longest side that has one; None: all have."""
    shorter: bool = False
    """Only the shorter side has one."""
    of_vectors: bool = False
    """Vectors have one too."""

    def _elements(self, shape: Shape, options: Options) -> float:
        if len(shape) < 2 and not self.of_vectors:
            return 0
        sides = [min(shape)] if self.shorter else list(shape)
        limit = options[self.limit] if self.limit else None
        return sum(side * side for side in sides if limit is None or side <= limit)


def _low_rank(shape: Shape, side: Side, options: Options) -> int:
    if len(shape) < 2:
        return prod(shape)
    rows, columns = prod(shape[:-1]), shape[-1]
    rank = min(int(options["rank"]), rows, columns)
    return rank * {"longer": max(rows, columns), "shorter": min(rows, columns)}[side]


class PerShape(Full, frozen=True, kw_only=True, eq=False):
    """Bytes that were counted for each shape and dtype of a model's parameters."""

    sizes: Mapping[tuple[Shape, float], float]
    """By shape and bytes per element."""

    def _bytes(self, shape: Shape, width: float, _options: Options) -> float:
        if (shape, width) in self.sizes:
            return self.sizes[shape, width]
        alike = [size / prod(other) for (other, of), size in self.sizes.items() if of == width]
        return prod(shape) * max(alike, default=2 * width)
