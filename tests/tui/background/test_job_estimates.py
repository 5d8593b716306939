"""Budgets of an edited job: the quick one, the refined one, and why there is none."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from builders import make_budget
from waiting import until

from vramtop.estimator.common.records import replace
from vramtop.estimator.estimation import UNTRACED
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import ModelSpec
from vramtop.tui.background.job_estimates import JobEstimates

JOB = Job(model=ModelSpec(id="gpt2"))


@pytest.mark.parametrize(("method", "reason"), [("traced", None), ("formula", "no Python with torch was found")])
def test_refining_ends_with_a_better_budget_or_with_the_reason(method: Any, reason: str | None) -> None:
    quick = make_budget(JOB)
    refined = replace(quick, method=method, assumptions=(f"{UNTRACED}no Python with torch was found.",))
    budgets = []
    reasons: list[str] = []
    ended = threading.Event()

    def call(function: Callable[..., object], *arguments: object) -> None:
        function(*arguments)
        ended.set()

    estimates = JobEstimates(
        lambda _job: quick,
        lambda _job: refined,
        call_later=call,
        on_budget=budgets.append,
        on_error=lambda _: None,
        on_not_refined=reasons.append,
    )
    assert estimates.may_refine(quick)
    estimates.refine(JOB)
    until(ended.is_set)
    assert (budgets, reasons) == (([refined], []) if reason is None else ([], [reason]))
    assert estimates.not_refined == reason
    assert estimates.may_refine(quick) is (reason is None)
