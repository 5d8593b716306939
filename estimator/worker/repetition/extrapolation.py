"""The history of a deep model, extrapolated from those of three shallow ones that differ by the same layers.

Histories are compared as tokens, which are equal wherever alike layers do alike things. Numbers that differ between
alike layers are kept apart from a token: those in the name of a module, the record that an event frees or returns, and
the length of a vector with one element for each gradient (the norms that clipping stacks).

The shallowest and the next one show what more layers insert: one more round of each loop over layers or parameters.
Every number of a token has to be a linear function of the rounds inserted and of the round in which the token is; the
third history, and the rounds in front of the inserted ones, have to agree with it. Last, every record that is freed has
to be allocated then, and of the right kind. Whatever fails means: no proof, no result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any, NamedTuple

import torch

from ..memory.history import AllocationHistory, Phase, StorageRecord, block_bytes

SAMPLES = 3
"""Histories that are needed."""


class _Stretch(NamedTuple):
    """Tokens that occur once, or once in every round of a loop, with their numbers as linear functions."""

    tokens: list[int]
    constant: torch.Tensor
    per_depth: torch.Tensor
    per_round: torch.Tensor | None = None
    """None: they occur once."""


def extrapolate(histories: list[AllocationHistory], gradients: list[int], rounds: int) -> AllocationHistory | None:
    """Return the history of a model that has so many rounds more than the shallowest; None: there is no proof.

    Args:
        histories: three, each of a model with one round of layers more than the one before.
        gradients: number of trained parameters of each of these models.
        rounds: by which the model is deeper than the shallowest of them.
    """
    symbols: dict[_Symbol, int] = {}
    sequences = [_read_tokens(history, symbols, count) for history, count in zip(histories, gradients)]  # noqa: B905 - not in Python 3.9
    loops = _find_loops(sequences[0].tokens, sequences[1].tokens)
    if loops is None or _unroll(sequences[0].tokens, loops, 2) != sequences[2].tokens:
        return None
    stretches = _fit(sequences, loops)
    return None if stretches is None else _build(list(symbols), stretches, rounds)


def _fit(sequences: list[_Sequence], loops: list[_Loop]) -> list[_Stretch] | None:
    """Return all stretches in order; None: a number is no linear function.

    A round may be inserted before any of those that it repeats. Where the first or the last of a loop's rounds is not
    like the others, only some of these places give linear functions.
    """
    tokens = sequences[0].tokens
    stretches: list[_Stretch] = []
    start, inserted = 0, 0
    for loop in loops:
        length = len(loop.tokens)
        for at in range(loop.at, max(start, length) - 1, -length):
            if at < loop.at and tuple(tokens[at : at + length]) != loop.tokens:
                return None
            before = _fit_once(sequences, start, at, inserted)
            repeated = _fit_repeated(sequences, at, inserted, length) if before else None
            if before and repeated and _fit_once(sequences, at, loop.at, inserted + length):
                break
        else:
            return None
        stretches += [before, repeated]
        start, inserted = at, inserted + length
    rest = _fit_once(sequences, start, len(tokens), inserted)
    return None if rest is None else [*stretches, rest]


def _fit_once(sequences: list[_Sequence], start: int, end: int, inserted: int) -> _Stretch | None:
    """Return the stretch of the shallowest sequence between two places; None: a number is no linear function.

    ``inserted`` tokens are in front of it for every step in depth.
    """
    places = (depth * inserted for depth in range(SAMPLES))
    zero, one, two = (each.numbers_of(start + at, end + at) for each, at in zip(sequences, places))  # noqa: B905 - 3.9
    found = _Stretch(sequences[0].tokens[start:end], zero, one - zero)
    return found if torch.equal(two - one, one - zero) else None


def _fit_repeated(sequences: list[_Sequence], at: int, inserted: int, length: int) -> _Stretch | None:
    """Return the stretch of a loop's rounds; None: a number is no linear function.

    Args:
        sequences: from the shallowest on.
        at: index in the shallowest sequence before which rounds are inserted: none, one and two.
        inserted: tokens in front of it for every step in depth.
        length: tokens of a round.
    """

    def numbers(depth: int, round_: int) -> torch.Tensor:
        place = at + depth * inserted + round_ * length
        return sequences[depth].numbers_of(place, place + length)

    per_depth, per_round = numbers(2, 0) - numbers(1, 0), numbers(2, 1) - numbers(2, 0)
    constant = numbers(1, 0) - per_depth
    for depth in range(SAMPLES):  # the round in front of the inserted ones
        if not torch.equal(constant + depth * per_depth - per_round, numbers(depth, -1)):
            return None
    place = at + inserted
    return _Stretch(sequences[1].tokens[place : place + length], constant, per_depth, per_round)


def _build(symbols: list[_Symbol], stretches: list[_Stretch], rounds: int) -> AllocationHistory | None:
    """Return the history with so many rounds; None: it frees what it does not hold."""
    history = AllocationHistory()
    last: list[_Symbol] = []
    """The last symbol of each record."""
    counts = list(map(_count_numbers, symbols))
    for token, numbers in _unrolled(stretches, rounds, counts):
        what, kind = symbols[token]
        if isinstance(kind, str):
            history.phases.append(Phase(what, kind, len(history.events)))
        elif what == _ALLOCATE:
            history.records.append(_record(len(last), kind, numbers))
            last.append((what, kind))
            history.events.append(len(last))
        else:
            (record,) = numbers
            if not 0 <= record < len(last) or last[record] != (what - 1, kind):  # not the action before this one
                return None
            last[record] = what, kind
            if what == _FREE:
                history.events.append(-1 - record)
            else:
                history.returns.append((len(history.events), record))
    return history


def _unrolled(stretches: list[_Stretch], rounds: int, counts: list[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield all tokens with their numbers."""
    for tokens, constant, per_depth, per_round in stretches:
        base = constant + rounds * per_depth
        for round_ in range(1 if per_round is None else rounds):
            numbers = iter((base if per_round is None else base + round_ * per_round).tolist())
            for token in tokens:
                yield token, tuple(islice(numbers, counts[token]))


def _record(number: int, kind: _Kind, numbers: tuple[int, ...]) -> StorageRecord:
    nbytes, shape, dtype, module, *used = kind
    if nbytes < 0:
        gradients, nbytes = numbers
        shape = (gradients,)
    return StorageRecord(number, block_bytes(nbytes), nbytes, shape, dtype, module.format(*numbers), *used)


_NUMBER = re.compile(r"\d+")
_ALLOCATE, _FREE, _RETURN = range(3)
"""A storage is allocated, freed, or the block of a freed one returns to its pool."""
_Kind = tuple[Any, ...]
"""What equal storages have in common: fields of ``StorageRecord`` from ``nbytes`` on, ``{}`` for numbers in ``module``.

-1 bytes are those of a vector with one element for each gradient, which no module makes.
"""
_Symbol = tuple[Any, Any]
"""An action and the kind of its storage, or the step and the name of a phase that begins."""


@dataclass(frozen=True)
class _Sequence:
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


def _read_tokens(history: AllocationHistory, symbols: dict[_Symbol, int], gradients: int) -> _Sequence:
    """Return the tokens of a history in which so many parameters have gradients.

    Args:
        history: with its records, events, phases and returns.
        symbols: number of each symbol; new ones are added.
        gradients: the number of parameters that have one.
    """
    kinds = [_split(each, gradients) for each in history.records]
    begun: dict[int, list[tuple[_Symbol, tuple[int, ...]]]] = {}
    for phase in history.phases:
        begun.setdefault(phase.start, []).append(((phase.step, phase.name), ()))
    for index, record in history.returns:
        begun.setdefault(index, []).append(((_RETURN, kinds[record][0]), (record,)))
    found: list[tuple[_Symbol, tuple[int, ...]]] = []
    for index, event in enumerate(history.events):
        found += begun.get(index, ())
        kind, name = kinds[abs(event) - 1]
        found.append(((_ALLOCATE, kind), name) if event > 0 else ((_FREE, kind), (-event - 1,)))
    found += begun.get(len(history.events), ())
    return _Sequence(
        [symbols.setdefault(symbol, len(symbols)) for symbol, _ in found],
        torch.tensor([number for _, own in found for number in own], dtype=torch.int64),
        [0, *accumulate(len(own) for _, own in found)],
    )


def _count_numbers(symbol: _Symbol) -> int:
    """Return how many numbers a token of this symbol has."""
    action, kind = symbol
    if isinstance(kind, str):
        return 0
    if action != _ALLOCATE:
        return 1
    return 2 if kind[0] < 0 else int(kind[3].count("{}"))


def _split(record: StorageRecord, gradients: int) -> tuple[_Kind, tuple[int, ...]]:
    """Return what a record shares with alike ones, and the numbers in which they differ."""
    module, nbytes, shape = record.module, record.nbytes, record.shape
    numbers = tuple(map(int, _NUMBER.findall(module)))
    if numbers:
        module = _NUMBER.sub("{}", module)
    elif not module and shape == (gradients,):
        numbers, nbytes, shape = (gradients, nbytes), -1, ()
    used = record.stream, record.component, record.host, record.used_on, record.gpu
    return (nbytes, shape, record.dtype, module, *used), numbers


@dataclass(frozen=True)
class _Loop:
    """A stretch of tokens that occurs once more for every step in depth."""

    at: int
    """Index in the shallowest sequence before which its rounds are inserted."""
    tokens: tuple[int, ...]
    """The stretch itself; each repetition is called a round."""


def _find_loops(before: list[int], after: list[int]) -> list[_Loop] | None:
    """Return the rounds by which a deeper model's sequence is longer; None: it differs in another way.

    Each round repeats the tokens in front of it.
    """
    loops: list[_Loop] = []
    i = j = 0
    while True:
        equal = _common_length(before, i, after, j)
        i, j = i + equal, j + equal
        if i == len(before) and j == len(after):
            return loops
        best, length = -1, 0
        longest = len(after) - len(before) - (j - i)
        for candidate in range(1, min(longest, j) + 1):
            ahead = j + candidate
            if i < len(before) and (ahead == len(after) or after[ahead] != before[i]):
                continue
            if after[j:ahead] == after[j - candidate : j]:
                common = _common_length(before, i, after, ahead)
                if common > best:
                    best, length = common, candidate
        if best < 0:
            return None
        loops.append(_Loop(i, tuple(after[j : j + length])))
        j += length


def _unroll(tokens: list[int], loops: list[_Loop], rounds: int) -> list[int]:
    """Return the tokens with so many rounds of every loop inserted."""
    result: list[int] = []
    start = 0
    for loop in loops:
        result += tokens[start : loop.at]
        result += loop.tokens * rounds
        start = loop.at
    return result + tokens[start:]


def _common_length(one: list[int], i: int, other: list[int], j: int) -> int:
    """Return how many tokens from these places on are equal."""
    pairs = zip(islice(one, i, None), islice(other, j, None))  # noqa: B905 - not in Python 3.9
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one) - i, len(other) - j))
