"""LitGPT: the flags of ``litgpt finetune_lora CHECKPOINT_DIR --train.micro_batch_size 4`` and its YAML.

Lives here: its commands' settings, its own model configs, and how it spreads a job over devices.
Callers: ``tool_registry``, which finds the ``TOOL``.
"""

from typing import TYPE_CHECKING

from ....common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .reader import TOOL as TOOL
else:
    __getattr__, __all__ = lazy_exports(__name__, {"reader": "TOOL"})
