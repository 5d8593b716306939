"""Liger-Kernel's kernels in a Trainer: ``use_liger_kernel`` and ``liger_kernel_config``.

Defaults: those of Liger-Kernel 0.8.2 (``apply_liger_kernel_to_*`` in ``transformers/monkey_patch.py``).
"""

from collections.abc import Mapping

from ...common.limits import LimitError, decode_json
from ..source.evidence import FindingCollector
from ..source.settings import LayeredSettings, Setting, as_bool

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
    """Return True if a kernel is on: by the table of settings, JSON text of one, or a key of its own."""
    given = settings.find(_CONFIG)
    table = given.value if given is not None else None
    if isinstance(table, str):
        try:
            table = decode_json(table)
        except LimitError:
            table = None
    if isinstance(table, Mapping) and name in table:
        return bool(table[name])
    value = as_bool(settings.find(f"{_CONFIG}.{name}"))
    return default if value is None else value
