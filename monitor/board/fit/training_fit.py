"""Placement of the ranks of a job on devices: each rank allocates its predicted peak on a device of its own."""

from collections.abc import Sequence

from vramtop.estimator.budget import RankPeak
from vramtop.estimator.common import format_gib

from .device_capacity import DeviceCapacity
from .fit_result import (
    VERDICTS_BEST_FIRST,
    DeviceVerdict,
    FitResult,
    Verdict,
    combinable_devices,
    smallest_margin,
    too_few_devices,
)


def check_training_fit(ranks: Sequence[RankPeak], devices: Sequence[DeviceCapacity]) -> FitResult:
    """Place the rank with the highest peak on the device with the most available memory, and so on.

    If any placement fits all ranks, this one does. A device without a rank is judged by the highest peak.

    Args:
        ranks: predicted peak of each rank.
        devices: all devices that are considered.
    """
    by_rank = _place(ranks, combinable_devices(devices, len(ranks)))
    chosen = [by_rank[rank] for rank in sorted(by_rank)]
    verdict: Verdict = "does_not_fit"
    if len(chosen) == len(ranks):
        verdict = max((each.verdict for each in chosen), key=VERDICTS_BEST_FIRST.index)
    highest = max(ranks, key=lambda rank: rank.device_bytes)
    verdicts = {id(each.device): each for each in chosen}  # hashing all fields of a device takes longer
    return FitResult(
        verdict=verdict,
        gpus=tuple(verdicts.get(id(device)) or _judge(highest, device) for device in devices),
        rank_devices=tuple(each.device for each in chosen),
        margin_bytes=smallest_margin(chosen),
        sentence=_sentence(verdict, ranks, chosen, devices),
    )


def _place(ranks: Sequence[RankPeak], devices: Sequence[DeviceCapacity]) -> dict[int, DeviceVerdict]:
    """Assign a device to each rank while there are any; one of unknown memory only if the others do not suffice."""
    highest_first = sorted(range(len(ranks)), key=lambda rank: -ranks[rank].device_bytes)
    known = [device for device in devices if device.available_bytes is not None]
    known.sort(key=lambda device: -(device.available_bytes or 0))
    unknown = [device for device in devices if device.available_bytes is None]
    first: dict[int, DeviceVerdict] = {}
    for count in range(len(unknown) + 1):
        order = [*unknown[:count], *known, *unknown[count:]]
        placed = {rank: _judge(ranks[rank], device) for rank, device in zip(highest_first, order, strict=False)}
        if all(verdict.verdict != "does_not_fit" for verdict in placed.values()):
            return placed
        first = first or placed
    return first


def _judge(rank: RankPeak, device: DeviceCapacity) -> DeviceVerdict:
    available = device.available_bytes
    verdict: Verdict
    if available is None:
        verdict = "unknown"
    elif rank.device_bytes > available:
        verdict = "does_not_fit"
    else:
        verdict = "fits" if rank.high_bytes <= available else "tight"
    return DeviceVerdict(device=device, verdict=verdict, need_bytes=rank.device_bytes)


def _sentence(
    verdict: Verdict, ranks: Sequence[RankPeak], chosen: Sequence[DeviceVerdict], devices: Sequence[DeviceCapacity]
) -> str:
    need = _need_text(ranks)
    if len(chosen) < len(ranks):
        return f"needs {len(ranks)} GPUs ({need}), and {too_few_devices(len(chosen), devices)}"
    labels = "GPU " + ", ".join(each.device.label.removeprefix("GPU ") for each in chosen)
    match verdict:
        case "fits":
            return f"needs {need} and fits on {labels}"
        case "tight":
            high = max(rank.high_bytes for rank in ranks)
            return f"needs {need}: expected to fit on {labels}, but may take {format_gib(high)} GiB"
        case "does_not_fit":
            worst = max(chosen, key=lambda each: each.shortfall_bytes)
            if worst.device.unusable_reason:
                return f"needs {need}; {worst.device.label} {worst.device.unusable_reason}"
            return f"needs {need}; {worst.device.label} is short of {format_gib(worst.shortfall_bytes)} GiB"
        case "unknown":
            unread = (each.device.unread_reason for each in chosen if each.verdict == "unknown")
            reason = next(filter(None, unread), None)
            return f"needs {need}; the memory available on {labels} is unknown" + (f": {reason}" if reason else "")


def _need_text(ranks: Sequence[RankPeak]) -> str:
    """Return the memory that the ranks need: ``40.0 GiB``, ``4 × 10.1 to 12.0 GiB``."""
    sizes = sorted({rank.device_bytes for rank in ranks})
    lowest = f"{format_gib(sizes[0])} to " if len(sizes) > 1 else ""
    need = f"{lowest}{format_gib(sizes[-1])} GiB"
    return f"{len(ranks)} × {need}" if len(ranks) > 1 else need
