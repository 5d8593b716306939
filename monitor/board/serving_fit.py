"""Fit of a model served by vLLM or SGLang, which take a share of each GPU and do not start unless it is free."""

from collections.abc import Sequence

from vramtop.estimator.budget import RankPeak, RankPeaks
from vramtop.estimator.common.errors import Verdict
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.serving_need import ServingNeed

from .capacity import DeviceCapacity, count_devices
from .fit_result import VERDICTS_BEST_FIRST, DeviceVerdict, FitResult, ServingFit, combinable_devices, too_few_devices
from .placement import fit_result, in_order

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
        return _judge(_serving_on(need, device), device)

    known_first = sorted(
        combinable_devices(devices, len(ranks)),
        key=lambda device: (device.available_bytes is None, -(device.available_bytes or 0)),
    )
    result, chosen = fit_result(ranks, devices, list(in_order(ranks, known_first, judge)), judge)
    found = count_devices(result.rank_devices)
    if found < len(ranks):
        return replace(result, sentence=f"needs {len(ranks):,} GPUs, but {too_few_devices(found, devices)}")
    worst = max(chosen, key=lambda each: VERDICTS_BEST_FIRST.index(each.verdict))
    serving = _serving_on(need, worst.device)
    return replace(result, serving=serving, sentence=_sentence(worst.verdict, serving, worst.device))


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


def _judge(serving: ServingFit | None, device: DeviceCapacity) -> DeviceVerdict:
    verdict: Verdict
    if serving is None or device.available_bytes is None:
        verdict = "unknown"
    elif serving.asked_bytes > device.available_bytes or serving.need.start_bytes > serving.asked_bytes:
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
        return f"{share} at startup, but {have}: it would refuse to start. It needs {least}"
    if verdict == "does_not_fit":
        raised = need.start_bytes <= serving.asked_bytes / need.utilization
        advice = f"raise {share_flag}" if raised else "spread it over more GPUs"
        return f"{share}, but needs {least}: {advice}, or lower {length_flag}"
    number = f"{serving.concurrency:,.1f}".removesuffix(".0")
    at_once = f"about {number} full-length sequences at once (limit {need.sequences})"
    cache = f"{format_gib(serving.cache_bytes)} GiB of that is cache: {serving.cache_tokens:,} tokens, {at_once}"
    return f"{share}; {cache}" + ("; it may need more at startup" if verdict == "tight" else "")
