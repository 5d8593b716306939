"""Reads the sequences of TRL's examples and their length, as far as the configuration bounds them."""

from collections.abc import Mapping

from ..source import (
    FindingCollector,
    LayeredSettings,
    Setting,
    as_int,
    framework_with_version,
    is_at_least,
    origin_of_bound,
)
from .methods import Method

_COMPLETION_NAMES = ("max_completion_length", "max_new_tokens", "response_length")
_LENGTH = "training.sequence_length"


def read_length(
    method: Method,
    settings: LayeredSettings,
    versions: Mapping[str, str],
    findings: FindingCollector,
    *,
    whole: Setting | None,
) -> None:
    """Record the sequences per example, the sequence length, and the tokens whose logits are computed.

    A prompt that no setting cuts leaves the length to the dataset: it is asked for.

    Args:
        method: TRL's method.
        settings: settings by TRL's names.
        versions: installed versions by distribution, where known.
        findings: collects what is read.
        whole: the longest that a sequence may be; None: nothing says so.
    """
    _read_sequences(method, settings, versions, findings)
    prompt = None if settings.is_unset("max_prompt_length") else settings.find("max_prompt_length")
    completion = None if settings.is_unset(*_COMPLETION_NAMES) else settings.find(*_COMPLETION_NAMES)
    whole = settings.find("vllm_max_model_length", "vllm_max_model_len") or whole
    parts = _sum(prompt, completion)
    if method.generation == "group" and completion is not None and as_int(completion) is not None:
        findings.record_from(completion, "training.loss_length", as_int(completion))
    bounds = [(number, bound) for bound in (whole, parts) if bound is not None and (number := as_int(bound))]
    for bound in (whole, prompt, completion):
        if bound is not None and bound.written and as_int(bound) is None:
            findings.refuse(_LENGTH, bound)
    if not bounds:
        _ask(method, completion, versions, findings)
        return
    number, bound = min(bounds, key=lambda pair: pair[0])
    packed = settings.is_true("packing")
    origin = bound.origin if packed else origin_of_bound(bound.origin)
    findings.record(_LENGTH, number, origin, written=bound.written)


def _read_sequences(
    method: Method, settings: LayeredSettings, versions: Mapping[str, str], findings: FindingCollector
) -> None:
    if method.sequences > 1:
        origin = f"TRL's {method.name}: each example is a chosen and a rejected sequence, which run together"
        findings.record("training.sequences_per_example", method.sequences, origin, written=False)
    generations = as_int(settings.find("num_generations"))
    if method.name == "grpo" and generations and not is_at_least("trl", (0, 15), versions):
        origin = f"{framework_with_version('trl', versions)}: the batch counts prompts, with num_generations each"
        findings.record("training.sequences_per_example", generations, origin, written=False)


def _sum(prompt: Setting | None, completion: Setting | None) -> Setting | None:
    """Return the length of the longest prompt with the longest completion; None if either has no bound."""
    first, second = as_int(prompt), as_int(completion)
    if prompt is None or completion is None or first is None or second is None:
        return None
    origins = dict.fromkeys((prompt.origin, completion.origin))
    return Setting(
        value=first + second,
        origin=f"longest prompt and completion ({'; '.join(origins)})",
        written=prompt.written or completion.written,
    )


def _ask(method: Method, completion: Setting | None, versions: Mapping[str, str], findings: FindingCollector) -> None:
    """Say why the length is missing."""
    trl = framework_with_version("trl", versions)
    number = as_int(completion)
    if number is None:
        findings.warn(f"{trl} cuts no sequence here: give {_LENGTH} as the longest of the dataset.")
        return
    findings.warn(
        f"{trl} cuts no prompt of {method.name} here: give {_LENGTH} as the dataset's longest prompt plus the {number} "
        "tokens of a completion."
    )
