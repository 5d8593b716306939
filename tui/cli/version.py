"""The version of this vramtop."""


def version_number() -> str | None:
    """Return the version; None: it runs without being installed. Looking it up takes as long as half of the parser."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("vramtop-budget")
    except PackageNotFoundError:
        return None
