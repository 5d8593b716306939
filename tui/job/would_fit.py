"""Inputs of suggestions for a run that ran out of memory: the GPU as it was, and the job as it turned out to be."""

from vramtop.estimator.advice.bounded_search import shifted
from vramtop.estimator.advice.setting_edits import flag_edits
from vramtop.estimator.advice.suggestion_search import Suggestion
from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CannotTellError, Verdict
from vramtop.estimator.common.records import replace
from vramtop.estimator.crash.explanation import Explanation
from vramtop.estimator.estimation import quick_estimator
from vramtop.monitor.board.capacity import DeviceCapacity
from vramtop.monitor.board.fit import check_fit

from .advice import find_suggestions
from .flags.job_flags import flags_by_key


def failed_gpu(explanation: Explanation, budget: Budget) -> DeviceCapacity | None:
    """Return the GPU of the failure with what others left free on it, once per rank; None: its size is not known."""
    memory = explanation.failure.memory
    if memory is None or memory.total_bytes is None:
        return None
    return DeviceCapacity(
        index=memory.gpu or 0,
        uuid=None,
        name="the GPU that ran out of memory",
        total_bytes=memory.total_bytes,
        free_bytes=memory.total_bytes - (memory.beside_bytes or 0),
        reserved_bytes=0,
        count=len(budget.ranks),
    )


def budget_of_what_ran(explanation: Explanation, budget: Budget) -> Budget:
    """Return the budget; where the run needed more than its upper bound, with as much more as it needed at least.

    That is then what was measured of this job, and no correction by other runs.
    """
    least = explanation.least_bytes
    if least is None or least <= budget.peak.high_bytes:
        return budget
    return replace(shifted(budget, least - budget.peak.device_bytes), learned=None)


_MOST = 4


def quick_suggestions(explanation: Explanation, budget: Budget) -> tuple[tuple[Suggestion, str], ...]:
    """Return changes with which the job would have fitted, by the closed form, each with the flags that make it."""
    gpu = failed_gpu(explanation, budget)
    if gpu is None:
        return ()
    device, ran = gpu, budget_of_what_ran(explanation, budget)
    try:
        quick = quick_estimator(budget.job)
    except CannotTellError:
        return ()

    def judge(changed: Budget) -> Verdict:
        return check_fit(changed, (device,)).verdict

    found = find_suggestions(ran, judge, quick, gpus=device.count, most=_MOST)
    names = flags_by_key()
    return tuple(
        (each, ", ".join(edit.words for edit in flag_edits(budget.job, each.changes, names)))
        for each in found
        if each.verdict in ("fits", "tight")
    )
