"""The history of a deep model, extrapolated from those of three shallow ones that differ by the same layers.

The shallowest and the next one show what more layers insert (``find_loops``). Every number of a token (a layer's in
a module's name, that of a freed record) has to be a linear function of the rounds inserted and of the round in
which the token is; the third history, and the rounds in front of the inserted ones, have to agree with it. Last,
every record that is freed has to be allocated then, and of the right kind. Whatever fails means: no proof, no
result.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..memory.history import AllocationHistory, Phase, StorageRecord, block_bytes
from .loops import Loop, find_loops, unroll
from .tokens import ACTIONS, ALLOCATE, FREE, Sequence, Vocabulary, read_tokens

Numbers = tuple[int, ...]
SAMPLES = 3
"""Histories that are needed."""


@dataclass(frozen=True)
class _Stretch:
    """Tokens that occur once, or once in every round of a loop, with their numbers as linear functions."""

    tokens: list[int]
    constant: list[Numbers]
    per_depth: list[Numbers]
    per_round: list[Numbers] | None
    """None: they occur once."""


def extrapolate(histories: list[AllocationHistory], gradients: list[int], rounds: int) -> AllocationHistory | None:
    """Return the history of a model that has so many rounds more than the shallowest; None: there is no proof.

    Args:
        histories: three, each of a model with one round of layers more than the one before.
        gradients: number of trained parameters of each of these models.
        rounds: by which the model is deeper than the shallowest of them.
    """
    vocabulary = Vocabulary()
    sequences = [read_tokens(history, vocabulary, count) for history, count in zip(histories, gradients)]  # noqa: B905 - not in Python 3.9
    loops = find_loops(sequences[0].tokens, sequences[1].tokens)
    if loops is None or unroll(sequences[0].tokens, loops, 2) != sequences[2].tokens:
        return None
    stretches = _fit(sequences, loops)
    return None if stretches is None else _Builder(vocabulary).build(stretches, rounds)


def _fit(sequences: list[Sequence], loops: list[Loop]) -> list[_Stretch] | None:
    """Return all stretches in order; None: a number is no linear function.

    A round may be inserted before any of those that it repeats. Where the first or the last of a loop's rounds is not
    like the others, only some of these places give linear functions.
    """
    tokens, numbers = sequences[0].tokens, [sequence.numbers for sequence in sequences]
    stretches: list[_Stretch] = []
    start, inserted = 0, 0
    for loop in loops:
        length = len(loop.tokens)
        for at in range(loop.at, max(start, length) - 1, -length):
            if at < loop.at and tuple(tokens[at : at + length]) != loop.tokens:
                return None
            before = _fit_once(_columns(numbers, start, at, inserted))
            repeated = _fit_repeated(numbers, at, inserted, length) if before else None
            if before and repeated and _fit_once(_columns(numbers, at, loop.at, inserted + length)):
                break
        else:
            return None
        stretches += [_Stretch(tokens[start:at], *before, None), _Stretch(list(loop.tokens), *repeated)]
        start, inserted = at, inserted + length
    rest = _fit_once(_columns(numbers, start, len(tokens), inserted))
    return None if rest is None else [*stretches, _Stretch(tokens[start:], *rest, None)]


def _columns(numbers: list[list[Numbers]], start: int, end: int, inserted: int) -> list[list[Numbers]]:
    """Return the numbers of a stretch of the shallowest sequence, in each sequence.

    ``inserted`` tokens are in front of it for every step in depth.
    """
    return [each[start + depth * inserted : end + depth * inserted] for depth, each in enumerate(numbers)]


def _fit_once(columns: list[list[Numbers]]) -> tuple[list[Numbers], list[Numbers]] | None:
    """Return the constant and the increase per depth of each token's numbers."""
    slopes = []
    for zero, one, two in zip(*columns):  # noqa: B905 - not in Python 3.9
        slope = tuple([b - a for a, b in zip(zero, one)])  # noqa: B905 - not in Python 3.9
        if any(c - b != each for b, c, each in zip(one, two, slope)):  # noqa: B905 - not in Python 3.9
            return None
        slopes.append(slope)
    return columns[0], slopes


def _fit_repeated(
    numbers: list[list[Numbers]], at: int, inserted: int, length: int
) -> tuple[list[Numbers], list[Numbers], list[Numbers]] | None:
    """Return constant, increase per depth and increase per round of each token's numbers.

    Args:
        numbers: of each sequence.
        at: index in the shallowest sequence before which rounds are inserted: none, one and two.
        inserted: tokens in front of it for every step in depth.
        length: tokens of a round.
    """
    places = [at + depth * inserted for depth in range(SAMPLES)]
    constant, per_depth, per_round = [], [], []
    for offset in range(length):
        before = [each[place - length + offset] for each, place in zip(numbers, places)]  # noqa: B905 - Python 3.9
        one = numbers[1][places[1] + offset]
        two, last = (numbers[2][places[2] + offset + round_ * length] for round_ in range(2))
        rounds = tuple([b - a for a, b in zip(two, last)])  # noqa: B905 - not in Python 3.9
        depths = tuple([b - a for a, b in zip(one, two)])  # noqa: B905 - not in Python 3.9
        base = tuple([a - b for a, b in zip(one, depths)])  # noqa: B905 - not in Python 3.9
        for depth, found in enumerate(before):  # the round in front of the inserted ones
            if any(a + depth * b - c != each for a, b, c, each in zip(base, depths, rounds, found)):  # noqa: B905
                return None
        constant.append(base)
        per_depth.append(depths)
        per_round.append(rounds)
    return constant, per_depth, per_round


class _Builder:
    """Makes a history of tokens and their numbers."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._history = AllocationHistory()
        self._states: list[int] = []
        """The last token of each record."""
        self._names: dict[tuple[str, Numbers], str] = {}

    def build(self, stretches: list[_Stretch], rounds: int) -> AllocationHistory | None:
        """Return the history with so many rounds; None: it frees what it does not hold."""
        for stretch in stretches:
            base = [
                tuple([a + rounds * b for a, b in zip(*each)])  # noqa: B905 - not in Python 3.9
                for each in zip(stretch.constant, stretch.per_depth)  # noqa: B905 - not in Python 3.9
            ]
            if stretch.per_round is None:
                if not self._add(stretch.tokens, base):
                    return None
                continue
            for _ in range(rounds):
                if not self._add(stretch.tokens, base):
                    return None
                base = [
                    tuple([a + b for a, b in zip(*each)])  # noqa: B905 - not in Python 3.9
                    for each in zip(base, stretch.per_round)  # noqa: B905 - not in Python 3.9
                ]
        return self._history

    def _add(self, tokens: list[int], numbers: list[Numbers]) -> bool:
        history, states = self._history, self._states
        events = history.events
        for token, own in zip(tokens, numbers):  # noqa: B905 - not in Python 3.9
            if token < 0:
                history.phases.append(Phase(*self._vocabulary.phases[-1 - token], len(events)))
                continue
            action = token % len(ACTIONS)
            if action == ALLOCATE:
                self._allocate(token, own)
                continue
            record = own[0]
            if not 0 <= record < len(states) or states[record] != token - 1:  # not the action before this one
                return False
            states[record] = token
            if action == FREE:
                events.append(-1 - record)
            else:
                history.returns.append((len(events), record))
        return True

    def _allocate(self, token: int, numbers: Numbers) -> None:
        kind, history = self._vocabulary.kinds[token // len(ACTIONS)], self._history
        nbytes, shape, module = kind.nbytes, kind.shape, kind.module
        if nbytes < 0:
            gradients, nbytes = numbers
            shape = (gradients,)
        elif numbers:
            module = self._names.get((module, numbers)) or self._names.setdefault(
                (module, numbers), module.format(*numbers)
            )
        number = len(self._states)
        size, stream, component = block_bytes(nbytes), kind.stream, kind.component
        history.records.append(
            StorageRecord(
                number, size, nbytes, shape, kind.dtype, module, stream, component, kind.host, kind.used_on, kind.gpu
            )
        )
        self._states.append(token)
        history.events.append(number + 1)
