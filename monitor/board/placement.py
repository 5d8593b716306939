"""Placement of the ranks of a job on devices: each rank allocates its predicted peak on a device of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from vramtop.estimator.budget import RankPeak, RankPeaks
from vramtop.estimator.common.errors import Verdict
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib

from ..snapshot.gpu_list import gpu_list
from .capacity import DeviceCapacity, count_devices
from .fit_result import (
    VERDICTS_BEST_FIRST,
    DeviceVerdict,
    FitResult,
    combinable_devices,
    shortfall_text,
    smallest_margin,
    too_few_devices,
)

Judge = Callable[[RankPeak, DeviceCapacity], DeviceVerdict]


def check_training_fit(ranks: RankPeaks, devices: Sequence[DeviceCapacity]) -> FitResult:
    """Place the rank with the highest peak on the device with the most available memory, and so on.

    If any placement fits all ranks, this one does. A device without a rank is judged by the highest peak.

    Args:
        ranks: predicted peak of each rank.
        devices: all devices that are considered.
    """
    placed = _place(ranks, combinable_devices(devices, len(ranks)))
    result, chosen = fit_result(ranks, devices, placed, _judge_training_fit)
    return replace(result, sentence=_sentence_training_fit(result.verdict, ranks, chosen, devices))


def fit_result(
    ranks: RankPeaks, devices: Sequence[DeviceCapacity], placed: Sequence[_Placed], judge: Judge
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
        placed = list(in_order(ranks, [*unknown[:count], *known, *unknown[count:]], _judge_training_fit))
        if all(each.verdict.verdict != "does_not_fit" for each in placed):
            return placed
        first = first or placed
    return first


def in_order(ranks: RankPeaks, devices: Sequence[DeviceCapacity], judge: Judge) -> Iterator[_Placed]:
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
