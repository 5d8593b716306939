"""Reads the values of a script's module-level names, for tools whose settings are such names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..source import Setting, SettingsLayer
from .follow import follow
from .python import UNKNOWN, Decisions, Imports, plain
from .script_settings import open_script


def read_globals(
    path: Path, *, overrides: SettingsLayer | None = None, environ: Mapping[str, Any] | None = None
) -> dict[str, Setting]:
    """Return the plain values of a script's module-level names; a name whose value is unknown is left out.

    Args:
        path: the script, or a file of assignments that a script executes.
        overrides: values that a file which the script executes (``exec``) gives; they take effect where it does so.
        environ: the environment.

    Raises:
        InputError: it cannot be read, or is not Python.
    """
    script = open_script(path, overrides=overrides, environ=environ)
    scope = follow(script, Decisions(), Imports(path.parent)).module.scope
    values = {name: plain(value) for name, value in scope.names.items()}
    return {
        name: scope.origins.get(name) or Setting(value=value, origin=f"{path.name}: {name}")
        for name, value in values.items()
        if value is not UNKNOWN and not name.startswith("__")
    }
