"""Compares versions of libraries."""


def older(version: str | None, *than: int) -> bool:
    """Return True if a stated version precedes another; pre-releases count as their release.

    Args:
        version: by its usual name; None: not stated, so the latest.
        than: the other version's first numbers.
    """
    if version is None:
        return False
    from packaging.version import InvalidVersion, Version  # 4 ms, for jobs that state versions only

    try:
        return Version(version).release[: len(than)] < than
    except InvalidVersion:
        return False
