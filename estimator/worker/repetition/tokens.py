"""Events of a history as tokens that are equal wherever alike layers do alike things.

Numbers that differ between alike layers are kept apart from a token: those in the name of a module, the record that
an event frees or returns, and the length of a vector with one element for each gradient (the norms that clipping
stacks).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ..memory.history import AllocationHistory, StorageRecord

_NUMBER = re.compile(r"\d+")
ALLOCATE, FREE, RETURN = range(3)
"""A storage is allocated, freed, or the block of a freed one returns to its pool."""
Kind = tuple[Any, ...]
"""What alike storages share: fields of ``StorageRecord`` from ``nbytes`` on, with ``{}`` for numbers in ``module``; -1
bytes are those of a vector with one element for each gradient, which no module makes."""
Symbol = tuple[Any, Any]
"""An action and the kind of its storage, or the step and the name of a phase that begins."""


@dataclass(frozen=True)
class Sequence:
    """A history as tokens."""

    tokens: list[int]
    """Numbers of symbols."""
    numbers: torch.Tensor
    """Numbers of all tokens: those in the module's name, or that of the record that a token frees or returns."""
    starts: list[int]
    """Where the numbers of each token begin, and the last ones end."""

    def numbers_of(self, start: int, end: int) -> torch.Tensor:
        """Return the numbers of the tokens from ``start`` up to ``end``."""
        return self.numbers[self.starts[start] : self.starts[end]]


def read_tokens(history: AllocationHistory, symbols: dict[Symbol, int], gradients: int) -> Sequence:
    """Return the tokens of a history in which so many parameters have gradients.

    Args:
        history: with its records, events, phases and returns.
        symbols: number of each symbol; new ones are added.
        gradients: the number of parameters that have one.
    """
    kinds = [_split(each, gradients) for each in history.records]
    begun: dict[int, list[tuple[Symbol, tuple[int, ...]]]] = {}
    for phase in history.phases:
        begun.setdefault(phase.start, []).append(((phase.step, phase.name), ()))
    for index, record in history.returns:
        begun.setdefault(index, []).append(((RETURN, kinds[record][0]), (record,)))
    found: list[tuple[Symbol, tuple[int, ...]]] = []
    for index, event in enumerate(history.events):
        found += begun.get(index, ())
        kind, name = kinds[abs(event) - 1]
        found.append(((ALLOCATE, kind), name) if event > 0 else ((FREE, kind), (-event - 1,)))
    found += begun.get(len(history.events), ())
    return Sequence(
        [symbols.setdefault(symbol, len(symbols)) for symbol, _ in found],
        torch.tensor([number for _, own in found for number in own], dtype=torch.int64),
        [0, *accumulate(len(own) for _, own in found)],
    )


def count_numbers(symbol: Symbol) -> int:
    """Return how many numbers a token of this symbol has."""
    action, kind = symbol
    if isinstance(kind, str):
        return 0
    if action != ALLOCATE:
        return 1
    return 2 if kind[0] < 0 else int(kind[3].count("{}"))


def _split(record: StorageRecord, gradients: int) -> tuple[Kind, tuple[int, ...]]:
    """Return what a record shares with alike ones, and the numbers in which they differ."""
    module, nbytes, shape = record.module, record.nbytes, record.shape
    numbers = tuple(map(int, _NUMBER.findall(module)))
    if numbers:
        module = _NUMBER.sub("{}", module)
    elif not module and shape == (gradients,):
        numbers, nbytes, shape = (gradients, nbytes), -1, ()
    used = record.stream, record.component, record.host, record.used_on, record.gpu
    return (nbytes, shape, record.dtype, module, *used), numbers
