"""DeepSpeed's JSON configuration, as far as memory depends on it. ``auto`` values are filled in by the trainer."""

from collections.abc import Callable, Mapping
from typing import Any

from ...job.rules.optimizers.by_name import NOT_KNOWN, OptimizerChoice, optimizer_by_class
from ...job.rules.strategies import STRATEGIES
from ..arguments.table import Renamed, library, record_arguments
from ..source.evidence import FindingCollector
from ..source.settings import LayeredSettings, Setting, as_word


def partly_offloaded(deepspeed: LayeredSettings) -> Setting | None:
    """Return the share of the optimizer's states that is offloaded (ZeRO-Offload++), if it is not all of them."""
    ratio = deepspeed.find("offload_ratio")
    value = ratio.value if ratio is not None else 1.0
    return ratio if isinstance(value, int | float) and 0 <= value < 1 else None


AUTO: Mapping[str, Callable[[int], int]] = {
    "reduce_bucket": lambda hidden: hidden**2,
    "prefetch_bucket": lambda hidden: int(0.9 * hidden**2),
    "persistence_threshold": lambda hidden: 10 * hidden,
}
"""What ``auto`` makes of the hidden size."""


_WITH_AUTO = ("zero_stage", *(f"zero_{name}" for name in AUTO))
"""Settings whose ``auto`` is no gap: nothing fills it in, or it is computed from the model's hidden size."""
_OLD_BF16 = "bfloat16"
"""The old name of the section ``bf16``, which counts where that is absent (DeepSpeed runtime/precision_config.py)."""
_PRECISION_SECTIONS = {"bf16": "bf16", _OLD_BF16: "bf16", "fp16": "fp16"}


def deepspeed_layer(table: Mapping[str, Any], *, source: str) -> dict[str, Setting]:
    """Return a DeepSpeed configuration by the names of accelerate's flags (``zero_stage``, ...).

    ``mixed_precision`` is ``bf16`` or ``fp16`` where it is switched on, ``no`` where both are off or absent, and
    left out where it is ``auto``; ``precision_sections`` names the sections that speak of it. ``micro_batch`` and
    ``optimizer`` are DeepSpeed's own.
    """
    zero = _inner(table, "zero_optimization")
    own = library("deepspeed")
    names = {path: path for path in own.doubt["all"]} | {
        path: row.as_ for path, row in own.argument.items() if isinstance(row, Renamed)
    }
    values: dict[str, tuple[Any, str]] = {name: (_value_at(table, path), path) for path, name in names.items()}
    stage = zero.get("stage", 0)
    values["zero_stage"] = "none" if stage is None else stage, "zero_optimization.stage"
    if zero.get("cpu_offload") is True:
        values["offload_optimizer_device"] = "cpu", "zero_optimization.cpu_offload"
    values["mixed_precision"] = _mixed_precision(table)
    values["precision_sections"] = tuple(name for name in _PRECISION_SECTIONS if name in table), "bf16, fp16"
    values["optimizer"] = _optimizer(_inner(table, "optimizer")), "optimizer.type"
    return {
        name: Setting(value=value, origin=f"{source}: {path}")
        for name, (value, path) in values.items()
        if value is not None and (value != "auto" or name in _WITH_AUTO)
    }


def _mixed_precision(table: Mapping[str, Any]) -> tuple[str | None, str]:
    named = [name for name in _PRECISION_SECTIONS if name in table and not (name == _OLD_BF16 and "bf16" in table)]
    enabled = {name: _inner(table, name).get("enabled", False) for name in named}
    on = next((name for name, value in enabled.items() if value is True), None)
    if on:
        return _PRECISION_SECTIONS[on], f"{on}.enabled"
    return None if "auto" in enabled.values() else "no", "neither bf16 nor fp16 is enabled"


def _optimizer(table: Mapping[str, Any]) -> OptimizerChoice | None:
    """Return the optimizer: DeepSpeed's own class for some names, torch's for others (``runtime/engine.py``)."""
    kind = table.get("type")
    if kind is None:
        return None
    params = _inner(table, "params")
    given = {name: NOT_KNOWN if value == "auto" else value for name, value in params.items() if name != "weight_decay"}
    own = library("deepspeed").words["optimizer"].get(str(kind).lower())
    if own is not None and given.get("torch_adam") is not True:
        return optimizer_by_class(own, given)
    return optimizer_by_class(f"torch.optim.{kind}", given)


def _value_at(table: Mapping[str, Any], path: str) -> Any:
    *sections, name = path.split(".")
    for section in sections:
        table = _inner(table, section)
    return table.get(name)


def _inner(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = table.get(name)
    return value if isinstance(value, Mapping) else {}


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
