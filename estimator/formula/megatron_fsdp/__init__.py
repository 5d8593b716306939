"""Megatron-FSDP in the closed form: its units' sizes, and its buffers moment by moment.

Lives here: sizes and what is in flight (``units``), buffers (``buffers``). Read from megatron-fsdp 0.6.1, and compared
with the traced engine.
Callers: ``communication`` (buffers), ``reserved`` (what is in flight).
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .buffers import megatron_buffers as megatron_buffers
    from .units import megatron_capacity as megatron_capacity
else:
    __getattr__, __all__ = lazy_exports(__name__, {"buffers": "megatron_buffers", "units": "megatron_capacity"})
