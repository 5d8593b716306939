"""The budget of a server on a GPU: the share that it was told to take, and what it fills that with."""

from collections.abc import Iterator
from dataclasses import replace

from .budget import Budget, Components, Peak, Phase
from .common.sizes import MIB, format_gib
from .serving_need import ServingNeed
from .uncertain_settings import widen_for_uncertainty

_KNOWN_VERSIONS = {"vLLM": "0.6 to 0.33", "SGLang": "0.4 to 0.5"}
_SLACK_BYTES = 512 * MIB
"""Maximum of the allocator's cache and of kernels compiled later, beyond what was profiled: vLLM itself
advises to leave 150 MiB."""
_STEP_RANGE = 0.1
"""Share of the server's memory that its largest step may take, not the formula's figure. vLLM profiled 6 GiB of its
71 for Qwen3-235B-A22B-FP8 on four H100 (vllm-project/vllm#21348); images take more."""
_CONTEXT_RANGE = 0.5
"""CUDA's context may be smaller or larger by that share: it depends on the kernels that are loaded."""


def budget_on_gpu(budget: Budget, total_bytes: int | None) -> Budget:
    """Return the budget of a job on a GPU: for a server, of all that it takes there; for others, as it is.

    The lower bound is what an idle server holds: the activations of its largest step are allocated when a step of that
    size first comes.

    Args:
        budget: of a job.
        total_bytes: memory of the GPU as CUDA states it; None: unknown.
    """
    need = budget.serving
    if need is None or total_bytes is None:
        return budget
    parts = Components(
        weights=need.weights,
        activations=need.cache_bytes(total_bytes),
        temporary=need.activations + need.graphs,
        communication=need.libraries + need.communication,
        context=0 if need.context_in_share else need.context,
    )
    low, high = _bounds(need, parts, total_bytes)
    outside = parts.communication + parts.context
    loaded = Components(weights=need.weights, context=parts.context)
    running = replace(
        budget,
        phases=(
            Phase(name="loading", components=loaded, outside_bytes=loaded.context),
            Phase(name="forward", components=parts, outside_bytes=outside),
        ),
        peak=Peak(
            phase="forward",
            components=parts,
            allocated_bytes=parts.total_bytes - outside,
            reserved_bytes=parts.total_bytes - outside,
            device_bytes=parts.total_bytes,
            low_bytes=low,
            high_bytes=high,
        ),
        steady_device_bytes=parts.total_bytes,
        assumptions=tuple(_assumptions(need, total_bytes)),
        warnings=(*budget.warnings, *_warnings(need)),
    )
    widened = widen_for_uncertainty(running)
    return replace(widened, warnings=tuple(dict.fromkeys(widened.warnings)))


def _bounds(need: ServingNeed, parts: Components, total_bytes: int) -> tuple[int, int]:
    """Return the bounds of what NVML shows of a server."""
    doubt = round(need.share_doubt * total_bytes)
    context = round(_CONTEXT_RANGE * need.context)
    step = max(2 * need.activations, round(_STEP_RANGE * parts.total_bytes))
    idle = parts.total_bytes - step - need.libraries - need.graphs - need.communication - context
    low = need.context - context if need.sleeps else idle - doubt
    high = parts.total_bytes + need.graphs + need.communication + context + _SLACK_BYTES + doubt
    if need.share_is_of_free:  # what other processes held when it started is not known
        low, high = min(low, need.weights + need.context - context), high + step
    return max(0, min(low, parts.total_bytes)), high


def _assumptions(need: ServingNeed, total_bytes: int) -> Iterator[str]:
    size = need.cache_bytes(total_bytes)
    cache, tokens = f"{format_gib(size)} GiB of cache", need.describe_cache(size)
    if need.cache is not None:
        yield f"{need.engine} is set to use {cache} (kv_cache_memory_bytes): {tokens}."
    elif need.share_is_of_free:
        share = f"{need.utilization:g} of the free part of the GPU's {format_gib(total_bytes)} GiB"
        yield (
            f"{need.engine} is set to use {share} for weights and cache, which leaves {cache} if the GPU was empty: "
            f"{tokens}."
        )
    else:
        share = f"{need.utilization:g} of the GPU's {format_gib(total_bytes)} GiB"
        yield f"{need.engine} is set to use {share}; weights and the largest step leave {cache}: {tokens}."
    graphs = "within" if need.graphs_in_share else "outside"
    context = "within" if need.context_in_share else "outside"
    yield f"CUDA's context is {context} that share" + (f", and CUDA graphs are {graphs} it." if need.graphs else ".")
    if need.sleeps:
        yield "The server may sleep and release its memory for a time (enable_sleep_mode)."


def _warnings(need: ServingNeed) -> Iterator[str]:
    if need.share_doubt:
        yield (
            f"The version of {need.engine} is not known or not supported (supported: "
            f"{_KNOWN_VERSIONS.get(need.engine, '')}), so the range is wider by {100 * need.share_doubt:.0f} % of the "
            "GPU."
        )
