"""The version of this vramtop: stated once, in pyproject.toml, and read from the installed package."""

import functools

DISTRIBUTION = "vramtop-budget"
"""Name of the package that is installed; the command and the modules are called vramtop."""


@functools.cache
def version_number() -> str | None:
    """Return the version; None: it runs without being installed. The first look-up takes some milliseconds."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return None
