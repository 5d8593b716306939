"""Versions of libraries that a repository pins: what counts where nothing is installed that could be asked."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from ...common.errors import InputError
from ...common.untrusted_files import read_file
from ...job.settings import Software

_FILES = (
    *("requirements.txt", "requirement.txt", "pyproject.toml", "setup.py", "setup.cfg"),
    *("environment.yml", "install.sh"),
)
_MAX_BYTES = 200_000
_PIN = re.compile(
    r"""["'\s,\[-]?\b(?P<name>[A-Za-z][\w-]*)(?:\[[\w,-]*\])?\s*(?:[>!]=?\s*[\d.]+\s*,\s*)*"""
    r"""(?P<sign>==|<=|~=|<)\s*(?P<version>\d+(?:\.\d+)*)"""
)
"""``transformers==4.30.0`` or ``>=4.28,<4.38`` in a line of requirements, whatever its syntax; ``>=`` pins nothing."""
_INSTALLS = re.compile(r'pip3? install (?:\\"|[^"\\\n])*')
"""A cell's command as it stands in the file, where quotes are escaped."""
_COMMENT = re.compile(r"#[^\n]*")
_OPTIONAL = re.compile(
    r"(?i)\bextra\w*(?:\[[^\]\n]*\])?\s*=\s*(?:\{[^}]*\}|\[[^\]]*\])"
    r"|(?m:^)\[[^\]\n]*(?:optional-dependencies|extras_require|groups?\b|dev-dependencies)[^\n]*(?:\n(?!\[).*)*"
)
"""Extras and groups of dependencies, which are installed only where somebody asks for them."""
_REPOSITORY_MARKS = (".git", "pyproject.toml", "setup.py")
_MAX_PARENTS = 4


def repository_folders(folder: Path) -> Iterator[Path]:
    """Yield a folder and those above it up to the root of its repository.

    Where there is no mark of a root, the folder above counts if it has what a repository's root has: a list of
    requirements beside a license or a README.
    """
    above = [folder, *folder.parents][: _MAX_PARENTS + 1]
    near = len(above) > 1 and (above[1] / _FILES[0]).is_file() and any(map(_has(above[1]), ("LICENSE", "README.md")))
    root = next((at for at, each in enumerate(above) if any(map(_has(each), _REPOSITORY_MARKS))), int(near))
    yield from above[: root + 1]


def _has(folder: Path) -> Callable[[str], bool]:
    return lambda name: (folder / name).exists()


class Pin(Struct, frozen=True):
    """A version of a library that a repository asks for."""

    version: str
    """``<=`` and ``~=`` count as the version that they name, ``<4.38`` as 4.37."""
    is_exact: bool
    """No older one will do."""
    file: str


def pinned_versions(folders: Iterable[Path], notebook: Path | None = None) -> dict[str, Pin]:
    """Return the version of each library that a repository pins, or a notebook installs.

    Of two lists in one folder, one names a version and the other a bound that it breaks: the version is what was used.

    Args:
        folders: where the lists of requirements may lie, the nearest first.
        notebook: whose cells may install libraries.
    """
    found: dict[str, Pin] = {}
    places: dict[str, Path] = {}
    lists = [folder / name for folder in dict.fromkeys(folders) for name in _FILES]
    for path in lists if notebook is None else [notebook, *lists]:
        try:
            text = read_file(path, _MAX_BYTES).decode(errors="replace")
        except (InputError, OSError):
            continue
        text = "\n".join(_INSTALLS.findall(text)) if path is notebook else _COMMENT.sub("", text)
        for match in _PIN.finditer(_OPTIONAL.sub("", text)):
            library = match["name"].lower().replace("_", "-")
            version = _below(match["version"]) if match["sign"] == "<" else match["version"]
            if library not in (*Software.__struct_fields__, "accelerate") or not version:
                continue
            pin, known = Pin(version, match["sign"] in ("==", "~="), path.name), found.get(library)
            if known is None or (pin.is_exact and not known.is_exact and places[library] == path.parent):
                found[library], places[library] = pin, path.parent
    return found


def _below(version: str) -> str | None:
    """Return the last minor version before one, such as 4.37 before 4.38; None before a major version."""
    numbers = [int(part) for part in version.split(".")]
    while len(numbers) > 2 and not numbers[-1]:
        numbers.pop()
    if len(numbers) < 2 or not numbers[-1]:
        return None
    return ".".join(map(str, [*numbers[:-1], numbers[-1] - 1]))
