"""peft's own adapter layers for bitsandbytes, on the stand-ins for its linear layers.

``peft.tuners.lora.bnb`` imports bitsandbytes and compares classes with its ``nn.Linear4bit`` and ``nn.Linear8bitLt``.
Here it gets a module that has just these two, whether the library is installed or not.
"""

from __future__ import annotations

import contextlib
import sys
import types
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

import torch

from ...replaced import replaced
from .linear import Linear4bit, Linear8bitLt

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = "bitsandbytes"


@contextlib.contextmanager
def adapters_on_stand_ins() -> Iterator[None]:
    """Let peft adapt the stand-ins as it adapts bitsandbytes' layers."""
    from peft import import_utils

    library = types.ModuleType(_NAME)
    library.__spec__ = ModuleSpec(_NAME, None)
    library.nn = types.SimpleNamespace(Linear4bit=Linear4bit, Linear8bitLt=Linear8bitLt)  # type: ignore[attr-defined]
    checks = (import_utils.is_bnb_available, import_utils.is_bnb_4bit_available)
    before = sys.modules.get(_NAME)
    sys.modules[_NAME] = library
    for check in checks:
        check.cache_clear()
    try:
        from peft.tuners.lora import bnb as layers

        with replaced((layers, "bnb", library)):
            yield
    finally:
        if before is None:
            del sys.modules[_NAME]
        else:
            sys.modules[_NAME] = before
        for check in checks:
            check.cache_clear()


def autocast_seen_by_peft() -> contextlib.AbstractContextManager[None]:
    """Answer ``torch.is_autocast_enabled()``, which asks about CUDA, for the CPU on which a trace runs."""
    original = torch.is_autocast_enabled
    return replaced((torch, "is_autocast_enabled", lambda device="cpu": original(device)))
