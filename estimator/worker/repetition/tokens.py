"""Events of a history as tokens that are equal wherever alike layers do alike things.

Numbers that differ between alike layers are kept apart from a token: those in the name of a module, the record that
an event frees or returns, and the length of a vector with one element for each gradient (the norms that clipping
stacks).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..memory.history import AllocationHistory, StorageRecord

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Allocation:
    """What alike storages share."""

    nbytes: int
    """-1: of a vector with one element for each gradient."""
    shape: tuple[int, ...]
    dtype: str
    module: str
    """Path of the module with ``{}`` for numbers."""
    stream: int
    component: str | None
    host: bool
    used_on: tuple[int, ...]
    gpu: int


ACTIONS = ALLOCATE, FREE, RETURN = range(3)
"""A storage is allocated, freed, or the block of a freed one returns to its pool."""


@dataclass
class Vocabulary:
    """Numbers of tokens, the same for all histories that are compared.

    A token is the number of a kind of storage times three, plus the action. Negative tokens begin phases.
    """

    kinds: list[Allocation] = field(default_factory=list)
    phases: list[tuple[int, str]] = field(default_factory=list)
    _numbers: dict[Allocation, int] = field(default_factory=dict)

    def kind(self, allocation: Allocation) -> int:
        """Return the number of a kind of storage."""
        number = self._numbers.get(allocation)
        if number is None:
            number = self._numbers[allocation] = len(self.kinds)
            self.kinds.append(allocation)
        return number

    def phase(self, phase: tuple[int, str]) -> int:
        """Return the token that begins a phase."""
        if phase not in self.phases:
            self.phases.append(phase)
        return -1 - self.phases.index(phase)


@dataclass(frozen=True)
class Sequence:
    """A history as tokens."""

    tokens: list[int]
    numbers: list[tuple[int, ...]]
    """Numbers of each token: those in the module's name, or that of the record that it frees or returns."""


def read_tokens(history: AllocationHistory, vocabulary: Vocabulary, gradients: int) -> Sequence:
    """Return the tokens of a history in which so many parameters have gradients."""
    kinds, names = [], []
    for each in history.records:
        kind, name = _split(each, gradients)
        kinds.append(vocabulary.kind(kind))
        names.append(name)
    tokens: list[int] = []
    numbers: list[tuple[int, ...]] = []
    starts: dict[int, list[int]] = {}
    for phase in history.phases:
        starts.setdefault(phase.start, []).append(vocabulary.phase((phase.step, phase.name)))
    returns: dict[int, list[int]] = {}
    for index, record in history.returns:
        returns.setdefault(index, []).append(record)
    for index in range(len(history.events) + 1):
        for token in starts.get(index, ()):
            tokens.append(token)
            numbers.append(())
        for record in returns.get(index, ()):
            tokens.append(len(ACTIONS) * kinds[record] + RETURN)
            numbers.append((record,))
        if index < len(history.events):
            event = history.events[index]
            record = abs(event) - 1
            tokens.append(len(ACTIONS) * kinds[record] + (ALLOCATE if event > 0 else FREE))
            numbers.append(names[record] if event > 0 else (record,))
    return Sequence(tokens, numbers)


def _split(record: StorageRecord, gradients: int) -> tuple[Allocation, tuple[int, ...]]:
    """Return what a record shares with alike ones, and the numbers in which they differ."""
    module, nbytes, shape = record.module, record.nbytes, record.shape
    numbers = tuple(map(int, _NUMBER.findall(module)))
    if numbers:
        module = _NUMBER.sub("{}", module)
    elif shape == (gradients,):
        numbers, nbytes, shape = (gradients, nbytes), -1, ()
    kind = Allocation(
        nbytes, shape, record.dtype, module, record.stream, record.component, record.host, record.used_on, record.gpu
    )
    return kind, numbers
