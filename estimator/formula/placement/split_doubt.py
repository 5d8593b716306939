"""The doubt about the user's own tensor-parallel plan: layers that it does not split, or that it cannot be read."""

from collections.abc import Callable, Iterator

import msgspec

from ...budget import Peak
from ...job import Job
from ...model.placement import has_unread_plan, plan_of_job, splits
from ..plan import Plan

_SPLIT_ROLES = ("attention", "mlp", "expert")


def with_split_doubt(peak: Peak, plan: Plan, peak_of: Callable[[Job], Peak]) -> Peak:
    """Return the peak with a range that allows for what the job's own plan may leave whole.

    Weights, gradients and states are counted as the plan splits them; activations as if it split all of a block. A plan
    that cannot be read may split nothing.

    Args:
        peak: by the plan, or by the model's own if the job's cannot be read.
        plan: the job's figures.
        peak_of: returns the peak of another job on the same model.
    """
    job = plan.job.job
    if job.parallel.tensor_plan is None or job.parallel.tensor == 1:
        return peak
    more = 0
    if has_unread_plan(job) or any(True for _ in whole_layers(plan)):
        whole = peak_of(_with(job, tensor=1, tensor_plan=None, sequence_parallel=False)).components
        here = peak.components
        more = max(0, whole.activations + whole.temporary - here.activations - here.temporary)
    if has_unread_plan(job):
        peak = peak.joined_with(peak_of(_with(job, tensor_plan={})))
    return peak.with_ranges(lambda span: span.moved(0, more=more))


def plan_warnings(plan: Plan) -> Iterator[str]:
    """Yield what the job's own plan leaves whole, or that it cannot be read."""
    job = plan.job.job
    if has_unread_plan(job):
        yield (
            f"parallel.tensor_plan: {job.parallel.tensor_plan} cannot be read without running it: the model's own plan "
            "is counted, and the range allows for none. A traced step applies it."
        )
    elif names := ", ".join(whole_layers(plan)):
        yield f"parallel.tensor_plan leaves {names} whole on every rank: the range allows for their activations."


def whole_layers(plan: Plan) -> Iterator[str]:
    """Yield the names of the blocks' linear layers that the job's own plan does not split."""
    own = plan_of_job(plan.job.job)
    if own is None:
        return
    for group in plan.inventory.groups:
        if group.role in _SPLIT_ROLES and group.layered and len(group.shape) > 1 and not splits(own, group.name):
            yield group.name.removesuffix(".weight").rpartition(".*.")[2]


def _with(job: Job, **changes: object) -> Job:
    return msgspec.structs.replace(job, parallel=msgspec.structs.replace(job.parallel, **changes))
