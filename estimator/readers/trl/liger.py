"""Reads which of Liger-Kernel's kernels a Trainer is to use: ``use_liger_kernel`` and ``liger_kernel_config``.

Defaults: those of Liger-Kernel 0.8.2 (``apply_liger_kernel_to_*`` in ``transformers/monkey_patch.py``).
"""

from collections.abc import Mapping

from ...common import LimitError, decode_json
from ..source import FindingCollector, LayeredSettings, Setting, as_bool

_CONFIG = "liger_kernel_config"
_FUSED_LOSS, _LOSS_IN_PLACE = "fused_linear_cross_entropy", "cross_entropy"
_PARTS = {"norm": ("rms_norm", "layer_norm"), "mlp": ("swiglu", "geglu"), "rope": ("rope",)}


def read_liger(settings: LayeredSettings, findings: FindingCollector) -> Setting | None:
    """Record the fused kernels, and return the setting that asks for a loss without logits, if one does."""
    liger = settings.find_true("use_liger_kernel", "use_liger")
    if liger is None:
        return None
    kernels = [part for part, names in _PARTS.items() if all(_is_on(settings, name) for name in names)]
    in_place = _is_on(settings, _LOSS_IN_PLACE, default=False)
    findings.record_from(liger, "training.fused_kernels", kernels + (["cross-entropy"] if in_place else []))
    return liger if _is_on(settings, _FUSED_LOSS) and not in_place else None


def _is_on(settings: LayeredSettings, name: str, *, default: bool = True) -> bool:
    """Return True if a kernel is on: by the table of settings, or a key of its own in a nested one."""
    table = _table(settings.find(_CONFIG))
    if name in table:
        return bool(table[name])
    own = settings.find(f"{_CONFIG}.{name}")
    return default if own is None or (value := as_bool(own)) is None else value


def _table(setting: Setting | None) -> Mapping[str, object]:
    """Return the table that a setting holds, or the JSON text of one; empty: neither."""
    value = None if setting is None else setting.value
    if isinstance(value, str):
        try:
            value = decode_json(value)
        except LimitError:
            return {}
    return value if isinstance(value, Mapping) else {}
