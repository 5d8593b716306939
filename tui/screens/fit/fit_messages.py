"""What the fit check hears from other threads."""

from collections.abc import Callable
from dataclasses import dataclass

from textual.message import Message

from vramtop.estimator.budget.budget import Budget

from .fit_estimates import Advice, Answers, Checks, Estimate, Vary


@dataclass
class Estimated(Message):
    """An estimate has come back: a budget, or the sentence why there is none."""

    asked: int
    answer: Budget | str


@dataclass
class NotRefined(Message):
    """There is no better estimate than the quick one, and why."""

    asked: int
    sentence: str


@dataclass
class Advised(Message):
    """What could be changed."""

    asked: int
    advice: Advice


@dataclass
class ModelsFound(Message):
    """Models that lie in the Hugging Face cache."""

    names: tuple[str, ...]


def checks_that_post(
    post: Callable[[Message], None], estimate: Estimate, refine: Estimate | None, vary: Vary
) -> Checks:
    """Checks whose answers become messages."""
    answers = Answers(
        budget=lambda asked, budget: post(Estimated(asked, budget)),
        refused=lambda asked, sentence: post(Estimated(asked, sentence)),
        not_refined=lambda asked, sentence: post(NotRefined(asked, sentence)),
        advice=lambda asked, advice: post(Advised(asked, advice)),
    )
    return Checks(estimate, refine, vary, answers)
