"""Checks whether a job fits: its budget compared with the memory available on the GPUs and on the host."""

from collections.abc import Sequence

from vramtop.estimator.budget import Budget, RankPeak
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib, size_text
from vramtop.estimator.host_need import HostNeed

from ..host.available_ram import host_verdict
from .capacity import DeviceCapacity
from .fit_result import MIG_NEEDS_ONE_RANK, FitResult
from .placement import check_training_fit
from .serving_fit import check_serving_fit


def check_fit(budget: Budget, devices: Sequence[DeviceCapacity]) -> FitResult:
    """Place every rank of the budget's job on a device of its own and judge whether it fits there.

    Several ranks are placed on whole GPUs only.

    Args:
        budget: of the job.
        devices: all devices that are considered.
    """
    ranks = budget.ranks
    if any(device.growth for device in devices):
        return _check_beside_growth(budget, devices)
    if len(ranks) > 1:
        reasons = ((each, each.unusable_reason or (MIG_NEEDS_ONE_RANK if each.mig else None)) for each in devices)
        devices = [replace(each, unusable_reason=reason) for each, reason in reasons]
    if budget.serving is not None:
        return check_serving_fit(budget.serving, ranks, devices)
    if budget.host is not None and any(device.shares_host_memory for device in devices):
        found = _check_one_pool(budget, budget.host, devices)
    else:
        found = check_training_fit(ranks, devices)
    if budget.rehearsal is not None and budget.rehearsal.growth_bytes and found.verdict == "fits":
        more = size_text(budget.rehearsal.growth_bytes)
        found = replace(found, verdict="tight", sentence=f"{found.sentence}, but needs {more} more after each step")
    length, most = budget.job.training.sequence_length, budget.model.max_positions
    if most is None or length <= most or found.verdict == "does_not_fit":
        return found
    return replace(found, sentence=f"{found.sentence}; but {length:,} tokens exceed the model's {most:,}")


def _check_beside_growth(budget: Budget, devices: Sequence[DeviceCapacity]) -> FitResult:
    """Judge a job where running ones grow: what fits only beside one of them is tight."""
    reasons = ((each, each.unusable_reason or ("is being filled" if each.growth else None)) for each in devices)
    elsewhere = check_fit(budget, [replace(each, growth=None, unusable_reason=reason) for each, reason in reasons])
    if elsewhere.verdict == "fits":
        return elsewhere
    beside = check_fit(budget, [replace(each, growth=None) for each in devices])
    taken = {device.index for device in beside.rank_devices}
    growth = "; ".join(dict.fromkeys(each.growth for each in devices if each.growth and each.index in taken))
    if beside.verdict not in ("fits", "tight") or not growth:
        return beside
    return replace(beside, verdict="tight", sentence=f"{beside.sentence} now; {growth}")


def _check_one_pool(budget: Budget, host: HostNeed, devices: Sequence[DeviceCapacity]) -> FitResult:
    """Judge what each process needs on the GPU and beside it against the one memory that both have."""
    ranks, loading = budget.ranks, budget.phase("loading")
    while_loading = host.loading_bytes(1) + (loading.components.total_bytes if loading else 0)
    beside, most_beside = host.saving_bytes(1), host.high_bytes(1)
    stages = tuple(
        RankPeak(
            device_bytes=max(rank.device_bytes + beside, while_loading),
            low_bytes=max(rank.low_bytes + beside, while_loading),
            high_bytes=max(rank.high_bytes + most_beside, while_loading),
        )
        for rank in ranks.stages
    )
    found = check_training_fit(replace(ranks, stages=stages), devices)
    parts = f"{format_gib(ranks.highest.device_bytes)} GiB for the GPU and {format_gib(beside)} GiB for the CPU"
    return replace(found, sentence=f"{found.sentence}; GPU and CPU share memory: {parts}")


def with_host_memory(result: FitResult, budget: Budget, host: int, *, ranks: int) -> FitResult:
    """Return the result with the host's RAM included: a job that exceeds the RAM does not fit.

    Args:
        result: whether the job fits the GPUs; where these share the host's RAM, it has been counted already.
        budget: budget of the job; the result is unchanged if it predicts no host memory.
        host: bytes of RAM that the job can use.
        ranks: ranks of the job on this machine.
    """
    if budget.host is None or any(gpu.device.shares_host_memory for gpu in result.gpus):
        return result
    verdict = host_verdict(budget.host, host, ranks=ranks)
    if verdict.verdict == "does_not_fit" or (verdict.verdict == "tight" and result.verdict == "fits"):
        sentence = f"{result.sentence}; {verdict.sentence}"
        return replace(result, host=verdict, verdict=verdict.verdict, sentence=sentence)
    return replace(result, host=verdict)
