"""The largest micro-batch that truly runs: predicted first, then a few real tries around the prediction."""

from collections.abc import Callable

import msgspec

MAX_TRIES = 3


class BatchSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a search."""

    predicted: int | None
    """Largest micro-batch that was predicted to fit; None: not even 1."""
    runs: int | None
    """Largest that ran; None: none did."""
    fails: int | None
    """Smallest that ran out of memory; None: none did."""
    tries: tuple[int, ...]

    @property
    def decided(self) -> bool:
        """True if no micro-batch between the two remains untried."""
        return self.fails is not None and self.fails - (self.runs or 0) == 1

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        if self.runs is None:
            return f"no micro-batch ran: {self.fails} runs out of memory" if self.fails else "no micro-batch was tried"
        if self.fails is None:
            return f"micro-batch {self.runs} runs; no larger one was tried"
        if self.decided:
            return f"micro-batch {self.runs} is the largest that runs: {self.fails} runs out of memory"
        return f"micro-batch {self.runs} runs and {self.fails} runs out of memory; sizes between them were not tried"


def find_largest_batch(
    predicted: int | None,
    run: Callable[[int], float | None],
    largest_if: Callable[[float], int | None],
    *,
    tries: int = MAX_TRIES,
) -> BatchSearch:
    """Try micro-batches, the predicted largest first, and close in on the largest that runs.

    Args:
        predicted: largest micro-batch that is predicted to fit; None: not even 1.
        run: runs a micro-batch; returns by how much its memory exceeds the prediction, as a factor; None: it ran out of
            memory.
        largest_if: the largest micro-batch predicted to fit if all predictions are multiplied by a factor.
        tries: at most.
    """
    runs: int | None = None
    fails: int | None = None
    tried: list[int] = []
    wanted: int | None = predicted or 1
    while wanted is not None and len(tried) < tries:
        tried.append(wanted)
        factor = run(wanted)
        if factor is None:
            fails = wanted
            guess = None
        else:
            runs = wanted
            guess = largest_if(factor)
        wanted = _next(runs or 0, fails, guess)
    return BatchSearch(predicted=predicted, runs=runs, fails=fails, tries=tuple(tried))


def _next(runs: int, fails: int | None, guess: int | None) -> int | None:
    """Return the micro-batch to try next, strictly between what ran and what failed; None: it is decided."""
    if fails is not None and fails - runs <= 1:
        return None
    if fails is None:
        return max(runs + 1, guess or 0)
    if guess is not None and runs < guess < fails:
        return guess
    return fails - 1 if fails - runs <= 3 else (runs + fails) // 2
