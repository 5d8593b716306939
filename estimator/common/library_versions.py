"""Versions of libraries: which are installed beside an interpreter, and how they compare; nothing is executed."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_DISTRIBUTION = re.compile(r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[^-]+)\.dist-info")


def package_folders(interpreter: Path) -> Iterator[Path]:
    """Yield the package folders of an interpreter, its virtual environment's first."""
    for prefix in dict.fromkeys((interpreter.parent.parent, interpreter.resolve().parent.parent)):
        for library in ("lib", "lib64", "local/lib"):
            for name in PACKAGE_FOLDERS:
                yield from sorted((prefix / library).glob(f"python3*/{name}"))


def versions_in(folders: Iterable[Path]) -> dict[str, str]:
    """Return the versions of what is installed in these folders, by the names of their ``*.dist-info``.

    Of several the first counts. Names are in lower case, with underscores.
    """
    found: dict[str, str] = {}
    for folder in dict.fromkeys(folders):
        for each in sorted(folder.glob("*.dist-info"), reverse=True):
            if match := _DISTRIBUTION.fullmatch(each.name):
                found.setdefault(match["name"].lower().replace(".", "_"), match["version"])
    return found


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
        return (*Version(version).release, 0, 0)[: len(than)] < than
    except InvalidVersion:
        return False
