"""The preflight checks, one class each; a new check is a class in any module of this folder.

Lives here: ``find_checks`` collects the subclasses of ``Check`` that the modules of this folder define.
Callers: ``run_checks``, the preflight screen and the ``preflight`` command.
"""

import inspect
import pkgutil
from importlib import import_module

from ..context import Check

_MODULES_IN_ORDER = ("cuda", "memory", "model", "environment_keys", "output_folders", "libraries", "nccl")
"""Order of the report; other modules follow by name."""


def find_checks() -> tuple[type[Check], ...]:
    """Return all checks in the order of the report: by module, and as defined within a module."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    ordered = [name for name in _MODULES_IN_ORDER if name in names]
    modules = [import_module(f"{__name__}.{name}") for name in dict.fromkeys((*ordered, *sorted(names)))]
    return tuple(
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, Check)
        and each.__module__ == module.__name__
        and not inspect.isabstract(each)
    )
