"""Fit of a model served by vLLM or SGLang, which take a share of each GPU and do not start unless it is free."""

from collections.abc import Iterable, Iterator, Sequence

from vramtop.estimator.budget import ServingNeed
from vramtop.estimator.common import format_gib

from .device_capacity import DeviceCapacity, count_devices
from .fit_result import DeviceVerdict, FitResult, ServingFit, combinable_devices, smallest_margin, too_few_devices
from .verdict import VERDICTS_BEST_FIRST, Verdict

_FLAGS = {
    "vLLM": ("--gpu-memory-utilization", "--max-model-len"),
    "SGLang": ("--mem-fraction-static", "--context-length"),
}
"""Flags of the share and of the longest sequence, by engine."""


def check_serving_fit(
    need: ServingNeed, ranks: int, devices: Sequence[DeviceCapacity], *, slack_bytes: int = 0
) -> FitResult:
    """Place the ranks of an engine on the devices with the most available memory.

    Args:
        need: memory that each rank needs.
        ranks: number of ranks.
        devices: all devices that are considered.
        slack_bytes: bytes that may lack on each device, or that have to be left if negative.
    """

    def judge(device: DeviceCapacity) -> DeviceVerdict:
        return _judge(_serving_on(need, device), device, slack_bytes)

    most_available_first = sorted(
        combinable_devices(devices, ranks),
        key=lambda device: (device.available_bytes is None, -(device.available_bytes or 0)),
    )
    chosen = list(_first(most_available_first, ranks))
    taken = {id(device): some for device, some in chosen}
    verdicts = [judge(some) for _, some in chosen]
    verdict: Verdict = "does_not_fit"
    serving = None
    found = count_devices(some for _, some in chosen)
    if found < ranks:
        sentence = f"needs {ranks:,} GPUs, and {too_few_devices(found, devices)}"
    else:
        worst = max(verdicts, key=lambda each: VERDICTS_BEST_FIRST.index(each.verdict))
        verdict, serving = worst.verdict, _serving_on(need, worst.device)
        sentence = _sentence(verdict, serving, worst.device)
    parts = (part for device in devices for part in _parts(device, taken.get(id(device))))
    return FitResult(
        verdict=verdict,
        gpus=tuple(map(judge, parts)),
        rank_devices=tuple(some for _, some in chosen),
        margin_bytes=smallest_margin(verdicts),
        sentence=sentence,
        serving=serving,
    )


def _first(devices: Iterable[DeviceCapacity], count: int) -> Iterator[tuple[DeviceCapacity, DeviceCapacity]]:
    """Yield as many devices, each with those of it that are needed: alike ones are one entry."""
    for device in devices:
        if not count:
            return
        some, _ = device.split(min(count, device.count))
        count -= some.count
        yield device, some


def _parts(device: DeviceCapacity, taken: DeviceCapacity | None) -> Iterator[DeviceCapacity]:
    """Yield the alike devices with a rank, and those without."""
    if taken is None:
        yield device
        return
    yield taken
    if rest := device.split(taken.count)[1]:
        yield rest


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


def _judge(serving: ServingFit | None, device: DeviceCapacity, slack_bytes: int) -> DeviceVerdict:
    verdict: Verdict
    if serving is None or device.available_bytes is None:
        verdict = "unknown"
    elif serving.asked_bytes > device.available_bytes + slack_bytes or serving.need.start_bytes > serving.asked_bytes:
        verdict = "does_not_fit"
    else:
        verdict = "fits" if serving.need.high_bytes <= serving.asked_bytes else "tight"
    return DeviceVerdict(device=device, verdict=verdict, need_bytes=serving.asked_bytes if serving else 0)


def _sentence(verdict: Verdict, serving: ServingFit | None, device: DeviceCapacity) -> str:
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
        return f"{share} at its start, and {have}: it would refuse to start; it needs {least}"
    if verdict == "does_not_fit":
        raised = need.start_bytes <= serving.asked_bytes / need.utilization
        advice = f"raise {share_flag}" if raised else "spread it over more GPUs"
        return f"{share}, and needs {least}: {advice}, or lower {length_flag}"
    at_once = f"{serving.concurrency:.1f} sequences of {need.length:,} at once, of {need.sequences} that it may run"
    cache = f"{format_gib(serving.cache_bytes)} GiB of it are cache: {serving.cache_tokens:,} tokens, {at_once}"
    return f"{share}; {cache}" + ("; it may need more at its start" if verdict == "tight" else "")
