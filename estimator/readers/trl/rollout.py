"""Reads the text that TRL generates during training (``rollout.*``): by transformers, or by vLLM on the same GPUs."""

from collections.abc import Mapping

from ..source import (
    FindingCollector,
    LayeredSettings,
    Setting,
    as_bool,
    as_int,
    as_word,
    default_setting,
    framework_with_version,
    is_at_least,
)
from .methods import Method

_SERVED_BESIDES = ("vllm_server_host", "vllm_server_port", "vllm_server_base_url", "vllm_server_timeout")


def read_rollout(
    method: Method,
    settings: LayeredSettings,
    versions: Mapping[str, str],
    findings: FindingCollector,
    *,
    ranks: int | None,
) -> None:
    """Record ``rollout.*`` where the training process generates text, or holds a vLLM that does.

    Args:
        method: TRL's method.
        settings: settings by TRL's names.
        versions: installed versions by distribution, where known.
        findings: collects what is read.
        ranks: ranks of the whole job; None: unknown.
    """
    settings.find(*_SERVED_BESIDES)  # they concern the server only
    if method.generation == "none":
        return
    vllm, mode = settings.find_true("use_vllm"), as_word(settings.find("vllm_mode"))
    if vllm is None:
        _read_own_generation(method, settings, versions, findings, ranks)
    elif mode == "colocate":
        _read_colocated(settings, findings)
    elif mode is not None:
        findings.warn(f"{vllm.origin}: vLLM serves from GPUs of its own, which are no part of this job.")
    else:
        findings.warn(
            f"{vllm.origin}: vLLM is taken to run on a GPU that training does not use; if it does, give [rollout]."
        )
        findings.add_uncertainty("more", "weights", "activations", unless="rollout.engine")


def _read_own_generation(
    method: Method,
    settings: LayeredSettings,
    versions: Mapping[str, str],
    findings: FindingCollector,
    ranks: int | None,
) -> None:
    """Record generation by transformers: the micro-batches whose sequences are generated at once."""
    origin = f"{framework_with_version('trl', versions)} generates text of {method.name} in the training process"
    findings.record("rollout.engine", "transformers", origin, written=False)
    steps = _steps_per_generation(method, settings, versions, findings, ranks)
    if steps is not None and (number := as_int(steps)) is not None and number > 1:
        findings.record_from(steps, "rollout.micro_batches", number)
    prompt = settings.find("max_prompt_length")
    if prompt is not None and (tokens := as_int(prompt)) is not None:
        findings.record_from(prompt, "rollout.prompt_length", tokens)
    gather = settings.find("ds3_gather_for_generation")
    if gather is not None and as_bool(gather) is False:
        findings.record_from(gather, "rollout.gather_weights", False)
    paged = settings.find_true("use_transformers_continuous_batching", "use_transformers_paged")
    if paged is not None:
        findings.warn(
            f"{paged.origin}: its paged cache takes what is free, and it casts the weights; neither is counted."
        )
        findings.add_uncertainty("more", "activations")


def _steps_per_generation(
    method: Method,
    settings: LayeredSettings,
    versions: Mapping[str, str],
    findings: FindingCollector,
    ranks: int | None,
) -> Setting | None:
    """Return the micro-batches of one generation: those of an optimizer step by default, since 0.18 or for PPO."""
    accumulation = findings.get("training.gradient_accumulation")
    if method.trains_value_model and accumulation is not None:
        parts = as_int(settings.find("num_mini_batches")) or 1
        origin = f"{method.name} generates for a whole update: accumulation ({accumulation.origin}) x num_mini_batches"
        return default_setting(accumulation.value * parts, origin)
    if method.generation != "group" or not is_at_least("trl", (0, 18), versions):
        return None
    steps, whole = settings.find("steps_per_generation"), settings.find("generation_batch_size")
    if steps is not None and as_int(steps) is not None:
        return steps
    micro, total = findings.get("training.micro_batch"), as_int(whole)
    if whole is not None and total is not None and micro is not None:
        return whole.with_value(max(1, total // (micro.value * (ranks or 1))))
    if accumulation is None:
        return None
    return default_setting(accumulation.value, f"steps_per_generation, by default the {accumulation.origin}")


def _read_colocated(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record a vLLM in the training process, with a share of each GPU of its own."""
    find = settings.find
    mode, share = find("vllm_mode"), find("vllm_gpu_memory_utilization", "gpu_memory_utilization")
    if mode is not None:
        findings.record_from(mode, "rollout.engine", "vllm")
    if share is not None and (fraction := _fraction(share)) is not None:
        findings.record_from(share, "rollout.gpu_memory_utilization", fraction)
    elif share is not None:
        sentence = f"{share.origin}: {share.value!r} is no share of a GPU; vLLM's is counted as 0.3."
        findings.mark_uncertain("rollout.gpu_memory_utilization", sentence)
    tensor = find("vllm_tensor_parallel_size")
    if tensor is not None and (number := as_int(tensor)) is not None and number > 1:
        findings.record_from(tensor, "rollout.tensor", number)
    sleep = settings.find_true("vllm_enable_sleep_mode")
    if sleep is not None:
        findings.record_from(sleep, "rollout.sleep", True)


def _fraction(setting: Setting) -> float | None:
    try:
        number = float(setting.value)
    except (TypeError, ValueError):
        return None
    return number if 0 < number <= 1 else None
