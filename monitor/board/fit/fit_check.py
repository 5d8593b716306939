"""Check whether a job fits: its budget compared with the memory available on the GPUs and on the host."""

from collections.abc import Sequence
from dataclasses import replace

from vramtop.estimator.budget import Budget, RankPeaks

from ...host import HostRam, host_verdict
from .device_capacity import DeviceCapacity
from .fit_result import MIG_NEEDS_ONE_RANK, FitResult
from .serving_fit import check_serving_fit
from .training_fit import check_training_fit


def check_fit(
    budget: Budget, devices: Sequence[DeviceCapacity], *, slack_bytes: int = 0, ranks: RankPeaks | None = None
) -> FitResult:
    """Place every rank of the budget's job on a device of its own and judge whether it fits there.

    Several ranks are placed on whole GPUs only.

    Args:
        budget: of the job.
        devices: all devices that are considered.
        slack_bytes: bytes that may lack on each device, or that have to be left if negative: for a verdict that should
            not change by so little.
        ranks: those of its ranks that are placed on these devices; None: all.
    """
    ranks = budget.ranks if ranks is None else ranks
    if len(budget.ranks) > 1:
        devices = [_without_mig(device) for device in devices]
    if budget.serving is not None:
        return check_serving_fit(budget.serving, len(ranks), devices, slack_bytes=slack_bytes)
    found = check_training_fit(ranks, devices, slack_bytes=slack_bytes)
    length, most = budget.job.training.sequence_length, budget.model.max_positions
    if most is None or length <= most or found.verdict == "does_not_fit":
        return found
    return replace(found, sentence=f"{found.sentence}; but {length:,} tokens are more than the model's {most:,}")


def with_host_memory(
    result: FitResult, budget: Budget, host: HostRam, *, ranks: int, slack_bytes: int = 0
) -> FitResult:
    """Return the result with the host's RAM included: a job that exceeds the RAM does not fit.

    Args:
        result: whether the job fits the GPUs.
        budget: budget of the job; the result is unchanged if it predicts no host memory.
        host: RAM of the machine.
        ranks: ranks of the job on this machine.
        slack_bytes: bytes that may lack, or that have to be left if negative.
    """
    if budget.host is None:
        return result
    verdict = host_verdict(budget.host, host, ranks=ranks, slack_bytes=slack_bytes)
    if verdict.verdict == "does_not_fit" or (verdict.verdict == "tight" and result.verdict == "fits"):
        sentence = f"{result.sentence}; {verdict.sentence}"
        return replace(result, host=verdict, verdict=verdict.verdict, sentence=sentence)
    return replace(result, host=verdict)


def _without_mig(device: DeviceCapacity) -> DeviceCapacity:
    if device.mig is None:
        return device
    return replace(device, unusable_reason=device.unusable_reason or MIG_NEEDS_ONE_RANK)
