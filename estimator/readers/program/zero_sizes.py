"""DeepSpeed's sizes of buckets and of what stage 3 gathers (``zero.*``), from its configuration.

``auto`` stands for a number that the Trainer and accelerate compute from the model's hidden size
(``trainer_config_finalize`` in transformers' integrations/deepspeed.py, ``_prepare_deepspeed`` of accelerate 1.15).
"""

from collections.abc import Callable

from ...job.rules.strategies import STRATEGIES
from ..arguments.table import library, record_arguments
from ..source.evidence import FindingCollector
from ..source.settings import LayeredSettings, Setting, as_word
from .deepspeed import AUTO

_MAX_ELEMENTS = 2**53
_SIZES = (
    *("reduce_bucket", "allgather_bucket", "prefetch_bucket", "max_live_parameters", "max_reuse_distance"),
    *("persistence_threshold", "sub_group"),
)
_OF_ANY_STAGE = ("reduce_bucket", "allgather_bucket")


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
    for name in _SIZES if strategy.zero_stage == 3 else _OF_ANY_STAGE:
        setting = settings.find(f"zero_{name}")
        if setting is not None and as_word(setting) == "auto" and name in AUTO:
            _record_auto(name, setting, findings, hidden_size())
        elif setting is not None and (elements := _elements(setting)) is not None:
            findings.record(f"zero.{name}", elements, setting.origin)
        elif setting is not None:
            findings.refuse(f"zero.{name}", setting, "number of elements")
    record_arguments(library("deepspeed"), "zero", settings, findings)


def _record_auto(name: str, setting: Setting, findings: FindingCollector, hidden: int | None) -> None:
    if hidden is not None:
        origin = f"{setting.origin}: auto, from the hidden size {hidden:,}"
        findings.record(f"zero.{name}", AUTO[name](hidden), origin)
    elif name == "reduce_bucket":
        sentence = f"{setting.origin}: auto depends on the model's hidden size, which is not known; 5e8 is assumed."
        findings.doubt(sentence, "less", "communication", unless="zero.reduce_bucket")


def _elements(setting: Setting) -> int | None:
    try:
        number = float(str(setting.value)) if not isinstance(setting.value, bool) else -1.0
    except ValueError:
        return None
    return int(min(number, _MAX_ELEMENTS)) if number >= 0 else None
