"""LLaMA-Factory: its YAML and the overrides of ``llamafactory-cli train x.yaml cutoff_len=4096``, versions 0 and 1.

Lives here: the settings of both versions, and the parameters that their freezing leaves to train.
Callers: ``tool_registry``, which finds the ``TOOL``.
"""

from typing import TYPE_CHECKING

from ....common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .reader import TOOL as TOOL
else:
    __getattr__, __all__ = lazy_exports(__name__, {"reader": "TOOL"})
