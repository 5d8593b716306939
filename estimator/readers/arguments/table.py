"""Reads the table's files; what their sections mean is said at the fields of ``Library`` and ``Argument``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..source.versions import is_at_least, version_tuple

Kind = TypeVar("Kind")
Default = Any
"""A value, or values by the version since which each holds; ``none``: there is none."""


def read_file(name: str, kind: type[Kind]) -> Kind:
    """Return the table of a library or tool, the name of its file without ``.toml``."""
    return msgspec.toml.decode(Path(__file__).with_name(f"{name}.toml").read_bytes(), type=kind)


def known_defaults(library: str, table: Mapping[str, Default], versions: Mapping[str, str]) -> dict[str, Any]:
    """Return the defaults that hold in the library's version, without those that are none."""
    values = {name: _of_version(library, default, versions) for name, default in table.items()}
    return {name: value for name, value in values.items() if value is not None}


def _of_version(library: str, default: Default, versions: Mapping[str, str]) -> Any:
    found = default if not isinstance(default, Mapping) else None
    for version, value in default.items() if isinstance(default, Mapping) else ():
        major, minor = version_tuple(version) or (0, 0)
        found = value if is_at_least(library, (major, minor), versions) else found
    return None if found == "none" else found
