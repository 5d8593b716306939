"""DeepSpeed's ZeRO in the closed form: buckets, gathered weights, and what its optimizer step takes.

Lives here: its sizes (``sizes``), buffers and step. Read from DeepSpeed 0.19.6 (``runtime/zero``), and compared with
the traced engine.
Callers: ``communication`` (buffers), ``model_states`` (the step).
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .buffers import zero_buffers as zero_buffers
    from .engine_step import own_gradient_bytes as own_gradient_bytes, zero_step_bytes as zero_step_bytes
else:
    __getattr__, __all__ = lazy_exports(
        __name__, {"buffers": "zero_buffers", "engine_step": "own_gradient_bytes zero_step_bytes"}
    )
