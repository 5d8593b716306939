"""The history of a deep model, extrapolated from those of three shallow ones that differ by the same layers.

The shallowest and the next one show what more layers insert (``find_loops``). Every number of a token (a layer's in
a module's name, that of a freed record) has to be a linear function of the rounds inserted and of the round in
which the token is; the third history, and the rounds in front of the inserted ones, have to agree with it. Last,
every record that is freed has to be allocated then, and of the right kind. Whatever fails means: no proof, no
result.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import torch

from ..memory.history import AllocationHistory, Phase, StorageRecord, block_bytes
from .loops import Loop, find_loops, unroll
from .tokens import ALLOCATE, FREE, Kind, Sequence, Symbol, count_numbers, read_tokens

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
    symbols: dict[Symbol, int] = {}
    sequences = [read_tokens(history, symbols, count) for history, count in zip(histories, gradients)]  # noqa: B905 - not in Python 3.9
    loops = find_loops(sequences[0].tokens, sequences[1].tokens)
    if loops is None or unroll(sequences[0].tokens, loops, 2) != sequences[2].tokens:
        return None
    stretches = _fit(sequences, loops)
    return None if stretches is None else _build(list(symbols), stretches, rounds)


def _fit(sequences: list[Sequence], loops: list[Loop]) -> list[_Stretch] | None:
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


def _fit_once(sequences: list[Sequence], start: int, end: int, inserted: int) -> _Stretch | None:
    """Return the stretch of the shallowest sequence between two places; None: a number is no linear function.

    ``inserted`` tokens are in front of it for every step in depth.
    """
    places = (depth * inserted for depth in range(SAMPLES))
    zero, one, two = (each.numbers_of(start + at, end + at) for each, at in zip(sequences, places))  # noqa: B905 - 3.9
    found = _Stretch(sequences[0].tokens[start:end], zero, one - zero)
    return found if torch.equal(two - one, one - zero) else None


def _fit_repeated(sequences: list[Sequence], at: int, inserted: int, length: int) -> _Stretch | None:
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


def _build(symbols: list[Symbol], stretches: list[_Stretch], rounds: int) -> AllocationHistory | None:
    """Return the history with so many rounds; None: it frees what it does not hold."""
    history = AllocationHistory()
    last: list[Symbol] = []
    """The last symbol of each record."""
    counts = list(map(count_numbers, symbols))
    for token, numbers in _unrolled(stretches, rounds, counts):
        what, kind = symbols[token]
        if isinstance(kind, str):
            history.phases.append(Phase(what, kind, len(history.events)))
        elif what == ALLOCATE:
            history.records.append(_record(len(last), kind, numbers))
            last.append((what, kind))
            history.events.append(len(last))
        else:
            (record,) = numbers
            if not 0 <= record < len(last) or last[record] != (what - 1, kind):  # not the action before this one
                return None
            last[record] = what, kind
            if what == FREE:
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


def _record(number: int, kind: Kind, numbers: tuple[int, ...]) -> StorageRecord:
    nbytes, shape, dtype, module, *used = kind
    if nbytes < 0:
        gradients, nbytes = numbers
        shape = (gradients,)
    return StorageRecord(number, block_bytes(nbytes), nbytes, shape, dtype, module.format(*numbers), *used)
