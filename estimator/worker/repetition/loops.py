"""Finds what one more layer adds to a sequence of tokens: one more round of each loop over layers or parameters."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice


@dataclass(frozen=True)
class Loop:
    """A stretch of tokens that occurs once more for every step in depth."""

    at: int
    """Index in the shallowest sequence before which its rounds are inserted."""
    tokens: tuple[int, ...]
    """Tokens of one round."""


def find_loops(before: list[int], after: list[int]) -> list[Loop] | None:
    """Return the rounds by which a deeper model's sequence is longer; None: it differs in another way.

    Each round repeats the tokens in front of it.
    """
    loops: list[Loop] = []
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
        loops.append(Loop(i, tuple(after[j : j + length])))
        j += length


def unroll(tokens: list[int], loops: list[Loop], rounds: int) -> list[int]:
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
