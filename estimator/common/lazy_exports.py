"""A room's front door: names that other rooms import from the room, each loaded from its module on first use (PEP 562).

Importing a room costs nothing until a name is used, so that ``vramtop --once`` loads only the modules it runs.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], list[str]]:
    """Return ``__getattr__`` and ``__all__`` for the package ``package``.

    Args:
        package: the package's ``__name__``.
        modules: for each module of the package the names that it contributes, separated by spaces. A name must not be
            that of a module of the package: an imported module becomes an attribute of its package.
    """
    home = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, value)  # later uses find it without this function
        return value

    return get, sorted(home)
