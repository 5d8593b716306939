"""A room's front door: names that are imported from the room, each loaded from its module on first use (PEP 562).

Importing a room costs nothing until a name is used, so that ``vramtop --once`` loads only the modules it runs.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for the package ``package``.

    Args:
        package: the package's ``__name__``.
        modules: the exported names by the module of the package that defines them. A name must not be that of a module
            of the package, since an imported module is an attribute of its package too.
    """
    home = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home[name]}"), name)
        setattr(sys.modules[package], name, value)  # later uses find it without this function
        return value

    return get, lambda: sorted(home), sorted(home)
