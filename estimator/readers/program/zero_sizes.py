"""DeepSpeed's sizes of buckets and of what stage 3 gathers (``zero.*``), from its configuration.

``auto`` stands for a number that the Trainer and accelerate compute from the model's hidden size
(``trainer_config_finalize`` in transformers' integrations/deepspeed.py, ``_prepare_deepspeed`` of accelerate 1.15).
"""

from collections.abc import Callable
from dataclasses import dataclass

from ...job.rules import STRATEGIES
from ..source import FindingCollector, LayeredSettings, Setting, as_bool, as_word

_MAX_ELEMENTS = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """One size: where DeepSpeed's configuration has it, and what ``auto`` makes of the hidden size."""

    path: str
    auto: Callable[[int], int] | None = None
    stage_3: bool = False


_SIZES = {
    "reduce_bucket": _Size(path="reduce_bucket_size", auto=lambda hidden: hidden**2),
    "allgather_bucket": _Size(path="allgather_bucket_size"),
    "prefetch_bucket": _Size(
        path="stage3_prefetch_bucket_size", auto=lambda hidden: int(0.9 * hidden**2), stage_3=True
    ),
    "max_live_parameters": _Size(path="stage3_max_live_parameters", stage_3=True),
    "max_reuse_distance": _Size(path="stage3_max_reuse_distance", stage_3=True),
    "persistence_threshold": _Size(
        path="stage3_param_persistence_threshold", auto=lambda hidden: 10 * hidden, stage_3=True
    ),
    "sub_group": _Size(path="sub_group_size", stage_3=True),
}
_SWITCHES = {
    "overlap_comm": "overlap_comm",
    "contiguous_gradients": "contiguous_gradients",
}
ZERO_PATHS = {
    **{f"zero_{name}": f"zero_optimization.{size.path}" for name, size in _SIZES.items()},
    **{f"zero_{name}": f"zero_optimization.{path}" for name, path in _SWITCHES.items()},
}
"""Settings by our names, and where DeepSpeed's configuration has them."""
AUTO_SIZES = tuple(f"zero_{name}" for name, size in _SIZES.items() if size.auto is not None)
"""Settings whose ``auto`` has a meaning of its own."""
_GRADIENT_DTYPES = {
    **dict.fromkeys(("fp32", "float32", "float"), "fp32"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half"), "fp16"),
}


def record_zero_sizes(
    settings: LayeredSettings, findings: FindingCollector, hidden_size: Callable[[], int | None]
) -> None:
    """Record ``zero.*``, and the dtype in which gradients are accumulated, for a job under ZeRO.

    Args:
        settings: DeepSpeed's, by the names of ``deepspeed_layer``.
        findings: they have the strategy already.
        hidden_size: returns the model's hidden size; None: not known.
    """
    found = findings.get("parallel.strategy")
    strategy = STRATEGIES[found.value] if found is not None else None
    if strategy is None or not strategy.deepspeed:
        return
    stage_3 = strategy.zero_stage == 3
    for name, size in _SIZES.items():
        setting = settings.find(f"zero_{name}")
        if setting is not None and (stage_3 or not size.stage_3):
            _record_size(name, size, setting, findings, hidden_size)
    for name in _SWITCHES:
        setting = settings.find(f"zero_{name}")
        if setting is not None and as_bool(setting) is not None:
            findings.record(f"zero.{name}", as_bool(setting), setting.origin)
    dtype = settings.find("gradient_dtype")
    if dtype is not None and (known := _GRADIENT_DTYPES.get(as_word(dtype) or "")) is not None:
        findings.record_from(dtype, "parallel.gradient_dtype", known)


def _record_size(
    name: str, size: _Size, setting: Setting, findings: FindingCollector, hidden_size: Callable[[], int | None]
) -> None:
    if as_word(setting) == "auto" and size.auto is not None:
        hidden = hidden_size()
        if hidden is not None:
            origin = f"{setting.origin}: auto, from the hidden size {hidden:,}"
            findings.record(f"zero.{name}", size.auto(hidden), origin)
        elif name == "reduce_bucket":
            sentence = f"{setting.origin}: auto depends on the model's hidden size, which is not known; 5e8 is counted."
            findings.warn(sentence, unless="zero.reduce_bucket")
            findings.add_uncertainty("less", "communication", unless="zero.reduce_bucket")
        return
    elements = _elements(setting)
    if elements is None:
        findings.refuse(f"zero.{name}", setting, "number of elements")
    else:
        findings.record(f"zero.{name}", elements, setting.origin)


def _elements(setting: Setting) -> int | None:
    try:
        number = float(str(setting.value)) if not isinstance(setting.value, bool) else -1.0
    except ValueError:
        return None
    return int(min(number, _MAX_ELEMENTS)) if number >= 0 else None
