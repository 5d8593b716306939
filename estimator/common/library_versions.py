"""Finds the Pythons that may run a job, and the versions of their libraries; nothing is executed."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from .errors import InputError
from .paths import expand_user, is_file, is_folder

ASSUMED_TRANSFORMERS = "5.23"
"""The version of a job that states none."""
PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_DISTRIBUTION = re.compile(r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[^-]+)\.dist-info")


def find_interpreters(python: str | None, environ: Mapping[str, str]) -> list[Path]:
    """Return candidate Pythons, best first: the one that the user named, else active environments, then this one.

    Args:
        python: value of ``--python``, which is then the only one.
        environ: environment with VIRTUAL_ENV and CONDA_PREFIX.

    Raises:
        InputError: ``python`` does not exist.
    """
    if python is not None:
        path = expand_user(python)
        path = path / "bin" / "python" if is_folder(path) else path
        if not is_file(path):
            raise InputError(f"--python {python}: no such program; give the path of a Python that has torch")
        return [path.absolute()]  # not resolved: a virtual environment's Python is a link out of it
    return list(dict.fromkeys(path for path in _candidates(environ) if is_file(path)))


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(variable):
            yield Path(environ[variable]).absolute() / "bin" / "python"
    if sys.executable:
        yield Path(sys.executable)


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
