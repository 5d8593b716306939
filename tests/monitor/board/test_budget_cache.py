from builders import make_budget

from vramtop.estimator.budget import Budget
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.estimator.job.settled import settled
from vramtop.monitor.board.budget_cache import MAX_BUDGETS, BudgetCache


def job(number: int) -> Job:
    return Job(name=f"job {number}", model=ModelSpec(id="gpt2"))


def test_a_budget_counts_for_the_job_whose_open_settings_it_has_settled() -> None:
    cache = BudgetCache(lambda asked: make_budget(settled(asked)))
    quick = cache.budget_of(job(1))
    assert isinstance(quick, Budget)
    assert quick.job != job(1)
    assert cache.budget_of(quick.job) is quick
    better = make_budget(quick.job, device=7)
    cache.set_budget(better)
    assert cache.budget_of(job(1)) is better
    found = make_budget(settled(job(2)))
    cache.set_if_unknown(job(2), found)
    assert cache.budget_of(job(2)) is found
    for number in range(3, 3 + MAX_BUDGETS):
        cache.budget_of(job(number))
    cache.discard_unused([job(2)])
    assert cache.budget_of(job(2)) is found
    assert cache.budget_of(job(1)) is not better
