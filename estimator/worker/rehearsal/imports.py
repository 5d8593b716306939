"""Changes modules of other libraries once the program imports them."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _After(importlib.abc.MetaPathFinder):
    """Changes modules once they have been imported."""

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self.changes = changes

    def find_spec(self, name: str, *_: Any) -> Any:
        change = self.changes.pop(name, None)
        spec = importlib.util.find_spec(name) if change else None
        if not change or not spec or not spec.loader:
            return None
        self.changes[name], run = change, spec.loader.exec_module

        def run_and_change(module: ModuleType) -> None:
            run(module)
            del self.changes[name]  # not before: an import that fails is tried again
            change(module)

        spec.loader.exec_module = run_and_change  # type: ignore[method-assign]
        return spec


_AFTER = _After({})


def after_import(name: str, change: Callable[[ModuleType], None]) -> None:
    """Change a module once it is imported, or now if it is."""
    if name in sys.modules:
        change(sys.modules[name])
        return
    if _AFTER not in sys.meta_path:
        sys.meta_path.insert(0, _AFTER)
    _AFTER.changes[name] = change


class NoLibrary:
    """A compiled library whose functions do nothing."""

    compiled_with_cuda = True  # for bitsandbytes

    def __getattr__(self, name: str) -> Any:
        def nothing(*_: Any, **__: Any) -> int:
            return 0

        nothing.restype = None  # type: ignore[attr-defined] # by which unsloth knows functions of ctypes
        return nothing

    __getitem__ = __getattr__
