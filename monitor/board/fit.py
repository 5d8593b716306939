"""Checks whether a job fits: each rank, or an engine's share, on a device of its own; and the memory of the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from vramtop.estimator.budget import Budget, RankPeak, RankPeaks
from vramtop.estimator.common.errors import Verdict
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib, size_text
from vramtop.estimator.host_need import HostNeed
from vramtop.estimator.serving_need import ServingNeed

from ..host.available_ram import host_verdict
from ..host.plain_text import gpu_list
from .capacity import DeviceCapacity, count_devices
from .fit_result import (
    MIG_NEEDS_ONE_RANK,
    VERDICTS_BEST_FIRST,
    DeviceVerdict,
    FitResult,
    ServingFit,
    combinable_devices,
    shortfall_text,
    smallest_margin,
    too_few_devices,
)


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
        found = _check_training_fit(ranks, devices)
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
    found = _check_training_fit(replace(ranks, stages=stages), devices)
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


_Judge = Callable[[RankPeak, DeviceCapacity], DeviceVerdict]


def _check_training_fit(ranks: RankPeaks, devices: Sequence[DeviceCapacity]) -> FitResult:
    """Place the rank with the highest peak on the device with the most available memory, and so on.

    If any placement fits all ranks, this one does. A device without a rank is judged by the highest peak.

    Args:
        ranks: predicted peak of each rank.
        devices: all devices that are considered.
    """
    placed = _place(ranks, combinable_devices(devices, len(ranks)))
    result, chosen = _fit_result(ranks, devices, placed, _judge_training_fit)
    return replace(result, sentence=_sentence_training_fit(result.verdict, ranks, chosen, devices))


def _fit_result(
    ranks: RankPeaks, devices: Sequence[DeviceCapacity], placed: Sequence[_Placed], judge: _Judge
) -> tuple[FitResult, list[DeviceVerdict]]:
    """Return the result of a placement, still without a sentence, and the verdicts of the ranks in their order."""
    by_rank = sorted(placed, key=lambda each: each.position)
    chosen = [each.verdict for each in by_rank]
    verdict: Verdict = "does_not_fit"
    if count_devices(each.device for each in chosen) == len(ranks):
        verdict = max((each.verdict for each in chosen), key=VERDICTS_BEST_FIRST.index)
    spare = partial(judge, ranks.highest)
    on_device: dict[int, list[DeviceVerdict]] = {}  # hashing all fields of a device takes longer
    for each in by_rank:
        on_device.setdefault(id(each.of), []).append(each.verdict)
    result = FitResult(
        verdict=verdict,
        gpus=tuple(v for device in devices for v in _verdicts_on(device, on_device.get(id(device), ()), spare)),
        rank_devices=tuple(each.device for each in chosen),
        margin_bytes=smallest_margin(chosen),
        sentence="",
    )
    return result, chosen


class _Placed(msgspec.Struct, frozen=True):
    """Alike ranks on as many alike devices."""

    position: int
    """Their place in the order of all ranks."""
    of: DeviceCapacity
    """The devices of which these are some, or all."""
    verdict: DeviceVerdict


def _verdicts_on(
    device: DeviceCapacity, placed: Sequence[DeviceVerdict], judge: Callable[[DeviceCapacity], DeviceVerdict]
) -> Iterator[DeviceVerdict]:
    """Yield the verdict of a device; of alike devices with different ranks, or with and without, more than one."""
    yield from sorted(placed, key=lambda each: each.device.index)
    taken = count_devices(each.device for each in placed)
    rest = device.split(taken)[1] if taken else device
    if rest is not None:
        yield judge(rest)


def _place(ranks: RankPeaks, devices: Sequence[DeviceCapacity]) -> list[_Placed]:
    """Assign a device to each rank while there are any; one of unknown memory only if the others do not suffice."""
    known = [device for device in devices if device.available_bytes is not None]
    known.sort(key=lambda device: -(device.available_bytes or 0))
    unknown = [device for device in devices if device.available_bytes is None]
    first: list[_Placed] = []
    for count in range(len(unknown) + 1):
        placed = list(_in_order(ranks, [*unknown[:count], *known, *unknown[count:]], _judge_training_fit))
        if all(each.verdict.verdict != "does_not_fit" for each in placed):
            return placed
        first = first or placed
    return first


def _in_order(ranks: RankPeaks, devices: Sequence[DeviceCapacity], judge: _Judge) -> Iterator[_Placed]:
    """Yield the ranks with the highest peak on the first devices, and so on."""
    remaining = iter(devices)
    source = free = next(remaining, None)
    for position, (rank, count) in sorted(enumerate(ranks.runs), key=lambda run: -run[1][0].device_bytes):
        wanted = count
        while wanted and source is not None and free is not None:
            taken, free = free.split(min(wanted, free.count))
            yield _Placed(position, source, judge(rank, taken))
            wanted -= taken.count
            if free is None:
                source = free = next(remaining, None)


def _judge_training_fit(rank: RankPeak, device: DeviceCapacity) -> DeviceVerdict:
    available = device.available_bytes
    verdict: Verdict
    if available is None or (rank.says_nothing and rank.low_bytes <= available < rank.high_bytes):
        verdict = "unknown"
    elif rank.device_bytes > available:
        verdict = "unknown" if rank.low_bytes <= available else "does_not_fit"
    else:
        verdict = "fits" if rank.high_bytes <= available else "tight"
    return DeviceVerdict(device=device, verdict=verdict, need_bytes=rank.device_bytes)


def _sentence_training_fit(
    verdict: Verdict, ranks: RankPeaks, chosen: Sequence[DeviceVerdict], devices: Sequence[DeviceCapacity]
) -> str:
    need = _need_text(ranks)
    found = count_devices(each.device for each in chosen)
    if found < len(ranks):
        return (
            f"needs {len(ranks):,} GPU{'s' if len(ranks) > 1 else ''} ({need}), but {too_few_devices(found, devices)}"
        )
    labels = f"GPU {_labels(chosen)}"
    match verdict:
        case "fits":
            return f"needs {need} and fits on {labels}"
        case "tight":
            high = max(rank.high_bytes for rank in ranks.stages)
            return f"needs {need}: expected to fit on {labels}, but may take {format_gib(high)} GiB"
        case "does_not_fit":
            worst = max(chosen, key=lambda each: each.shortfall_bytes)
            if worst.device.unusable_reason:
                return f"needs {need}; {worst.device.label} {worst.device.unusable_reason}"
            lack = "is" if worst.device.count == 1 else "are each"
            return f"needs {need}; {worst.device.label} {lack} {shortfall_text(worst.shortfall_bytes)} short"
        case "unknown":
            span = f"{format_gib(ranks.highest.low_bytes)} to {format_gib(ranks.highest.high_bytes)} GiB"
            if ranks.highest.says_nothing:
                return f"needs {span} on each GPU; the warnings below name the reason"
            short = [each for each in chosen if each.verdict == "unknown" and each.shortfall_bytes]
            if short:
                full = max(short, key=lambda each: each.shortfall_bytes).device
                has = f"{full.label} {'has' if full.count == 1 else 'have each'} {format_gib(full.available_bytes)}"
                return f"needs {need}, in a range of {span}; {has}"
            unread = (each.device.unread_reason for each in chosen if each.verdict == "unknown")
            reason = next(filter(None, unread), None)
            return f"needs {need}; the memory available on {labels} is unknown" + (f": {reason}" if reason else "")


def _labels(chosen: Sequence[DeviceVerdict]) -> str:
    """Return the devices in words: ``0-63``, ``1, 2``, ``0:3 (MIG 1g.10gb)``."""
    devices = sorted((each.device for each in chosen), key=lambda device: device.index)
    return gpu_list(device.label.removeprefix("GPU ") if device.mig else device.indices for device in devices)


def _need_text(ranks: RankPeaks) -> str:
    """Return the memory that the ranks need: ``40.0 GiB``, ``4 × 12.0 GiB``, or the least and the most of a rank."""
    sizes = sorted({rank.device_bytes for rank in ranks.stages})
    if len(sizes) > 1:
        return f"{format_gib(sizes[0])} to {format_gib(sizes[-1])} GiB per GPU (uneven split)"
    need = f"{format_gib(sizes[0])} GiB"
    return f"{len(ranks):,} × {need}" if len(ranks) > 1 else need


_FLAGS = {
    "vLLM": ("--gpu-memory-utilization", "--max-model-len"),
    "SGLang": ("--mem-fraction-static", "--context-length"),
}
"""Flags of the share and of the longest sequence, by engine."""


def check_serving_fit(need: ServingNeed, ranks: RankPeaks, devices: Sequence[DeviceCapacity]) -> FitResult:
    """Place the ranks of an engine on the devices with the most available memory.

    Args:
        need: memory that each rank needs.
        ranks: the ranks.
        devices: all devices that are considered.
    """

    def judge(_: RankPeak, device: DeviceCapacity) -> DeviceVerdict:
        return _judge_serving(_serving_on(need, device), device)

    known_first = sorted(
        combinable_devices(devices, len(ranks)),
        key=lambda device: (device.available_bytes is None, -(device.available_bytes or 0)),
    )
    result, chosen = _fit_result(ranks, devices, list(_in_order(ranks, known_first, judge)), judge)
    found = count_devices(result.rank_devices)
    if found < len(ranks):
        return replace(result, sentence=f"needs {len(ranks):,} GPUs, but {too_few_devices(found, devices)}")
    worst = max(chosen, key=lambda each: VERDICTS_BEST_FIRST.index(each.verdict))
    serving = _serving_on(need, worst.device)
    return replace(result, serving=serving, sentence=_serving_sentence(worst.verdict, serving, worst.device))


def _serving_on(need: ServingNeed, device: DeviceCapacity) -> ServingFit | None:
    """Return the memory of the engine on one device; None if the device's total is unknown.

    CUDA's total leaves out the bytes that the driver reserves.
    """
    if device.total_bytes is None:
        return None
    total = device.total_bytes - device.reserved_bytes
    return ServingFit(
        need=need,
        asked_bytes=need.asked_bytes(total),
        cache_bytes=need.cache_bytes(total),
        cache_tokens=need.cache_tokens(total),
        concurrency=need.concurrency(total),
    )


def _judge_serving(serving: ServingFit | None, device: DeviceCapacity) -> DeviceVerdict:
    verdict: Verdict
    if serving is None or device.available_bytes is None:
        verdict = "unknown"
    elif serving.asked_bytes > device.available_bytes or serving.need.start_bytes > serving.asked_bytes:
        verdict = "does_not_fit"
    else:
        verdict = "fits" if serving.need.high_bytes <= serving.asked_bytes else "tight"
    return DeviceVerdict(device=device, verdict=verdict, need_bytes=serving.asked_bytes if serving else 0)


def _serving_sentence(verdict: Verdict, serving: ServingFit | None, device: DeviceCapacity) -> str:
    """Return the verdict in words, for the device with the worst one."""
    if serving is None:
        return f"the total memory of {device.label} is unknown"
    need = serving.need
    share = f"{need.engine} takes {need.utilization:g} of each GPU, {format_gib(serving.asked_bytes)} GiB"
    if need.cache is not None:
        share = (
            f"{need.engine} takes {format_gib(need.cache)} GiB of cache, {format_gib(serving.asked_bytes)} GiB in all"
        )
    share_flag, length_flag = _FLAGS[need.engine]
    least = (
        f"{format_gib(need.start_bytes)} GiB for weights, its largest step and one sequence of {need.length:,} tokens"
    )
    if verdict == "unknown":
        return f"{share}, and needs {least}; the memory available on {device.label} is unknown"
    if device.available_bytes is not None and serving.asked_bytes > device.available_bytes:
        have = f"{device.label} has {format_gib(device.available_bytes)}"
        return f"{share} at startup, but {have}: it would refuse to start. It needs {least}"
    if verdict == "does_not_fit":
        raised = need.start_bytes <= serving.asked_bytes / need.utilization
        advice = f"raise {share_flag}" if raised else "spread it over more GPUs"
        return f"{share}, but needs {least}: {advice}, or lower {length_flag}"
    number = f"{serving.concurrency:,.1f}".removesuffix(".0")
    at_once = f"about {number} full-length sequences at once (limit {need.sequences})"
    cache = f"{format_gib(serving.cache_bytes)} GiB of that is cache: {serving.cache_tokens:,} tokens, {at_once}"
    return f"{share}; {cache}" + ("; it may need more at startup" if verdict == "tight" else "")
