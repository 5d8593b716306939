"""ms-swift: the flags of ``swift sft --model X ...``, its YAML, and the ``args.json`` it writes.

Lives here: its commands' settings, the layers that its adapters adapt, and what it freezes.
Callers: ``tool_registry``, which finds the ``TOOL``.
"""

from typing import TYPE_CHECKING

from ....common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .reader import TOOL as TOOL
else:
    __getattr__, __all__ = lazy_exports(__name__, {"reader": "TOOL"})
