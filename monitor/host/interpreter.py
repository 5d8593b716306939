"""The Python interpreter of a running process and the versions installed beside it; nothing is executed."""

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from .process_tree import ProcessInfo

FRAMEWORKS = (
    *("torch", "transformers", "trl", "accelerate", "peft", "deepspeed", "bitsandbytes", "liger_kernel"),
    *("litgpt", "torchtitan"),
)
_PACKAGES = ("site-packages", "dist-packages")
_MOST_MAPS = 2**22
"""Of the list of what a process has mapped: it is as long as the process makes it."""
_PYTHON = re.compile(r"python[0-9.]*")


def find_interpreter(process: ProcessInfo, *, root: Path | None = None) -> Path | None:
    """The interpreter as the process was started, so that a virtual environment's is not mistaken for the system's.

    Args:
        process: the process.
        root: its root folder as it is reached from here; None: the same as ours.
    """
    environ = process.environ or {}
    named = process.argv[0] if process.argv else ""
    candidates: list[Path | None] = []
    if _PYTHON.fullmatch(Path(named).name):
        on_path = shutil.which(named, path=environ.get("PATH")) if "/" not in named and root is None else None
        candidates.append(Path(on_path) if on_path else (process.cwd or Path()) / named if "/" in named else None)
    candidates += [
        Path(environ[variable]) / "bin" / "python"
        for variable in ("VIRTUAL_ENV", "CONDA_PREFIX")
        if variable in environ
    ]
    candidates.append(process.exe)
    rooted = [_under(root, path) for path in candidates if path is not None]
    return next((path for path in rooted if os.access(path, os.F_OK)), None)


def installed_versions(process: ProcessInfo, interpreter: Path | None, *, root: Path | None = None) -> dict[str, str]:
    """Versions of the frameworks by name, from the names of their ``*.dist-info`` folders.

    A library that is seen loaded counts where it was loaded from; others as Python looks for them: first in PYTHONPATH,
    then beside the interpreter.
    """
    loaded = _loaded_from(process.pid)
    named = [Path(folder) for folder in (process.environ or {}).get("PYTHONPATH", "").split(":") if folder[:1] == "/"]
    others = [*(_under(root, folder) for folder in named), *_beside(interpreter)]
    versions: dict[str, str] = {}
    for framework in FRAMEWORKS:
        seen = [_under(root, Path(folder)) for folder, package in loaded if package == framework]
        rest = [_under(root, Path(folder)) for folder, package in loaded if package != framework]
        for folder in dict.fromkeys((*seen, *others, *rest)):
            found = sorted(folder.glob(f"{framework}-*.dist-info"))
            if found:
                versions[framework] = found[-1].name.removesuffix(".dist-info").partition("-")[2]
                break
    return versions


def _beside(interpreter: Path | None) -> Iterator[Path]:
    """The package folders of an interpreter, its virtual environment's first."""
    if interpreter is None:
        return
    for prefix in dict.fromkeys((interpreter.parent.parent, interpreter.resolve().parent.parent)):
        for library in ("lib", "lib64", "local/lib"):
            yield from sorted((prefix / library).glob("python3*/site-packages"))
            yield from sorted((prefix / library).glob("python3*/dist-packages"))


def _loaded_from(pid: int) -> Iterable[tuple[str, str]]:
    """Package folders with the packages whose libraries are loaded from them."""
    try:
        with Path(f"/proc/{pid}/maps").open("rb") as file:
            maps = file.read(_MOST_MAPS).decode("utf-8", errors="replace")
    except OSError:
        return ()
    found: dict[tuple[str, str], None] = {}
    for line in maps.splitlines():
        _, slash, path = line.partition("/")
        for kind in _PACKAGES:
            folder, mark, package = f"{slash}{path}".partition(f"/{kind}/")
            if mark:
                found[f"{folder}/{kind}", package.partition("/")[0]] = None
                break
    return tuple(found)


def _under(root: Path | None, path: Path) -> Path:
    return path if root is None or not path.is_absolute() or path.is_relative_to(root) else root / path.relative_to("/")
