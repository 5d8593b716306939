"""Python interpreter of a running process, and the versions of frameworks installed with it; nothing is executed."""

import os
import re
from pathlib import Path

from vramtop.estimator.common.library_versions import PACKAGE_FOLDERS, package_folders, versions_in
from vramtop.estimator.common.trust import find_program

from .process_info import ProcessInfo

FRAMEWORKS = (
    *("torch", "transformers", "trl", "accelerate", "peft", "deepspeed", "bitsandbytes", "liger_kernel"),
    *("litgpt", "torchtitan", "megatron_fsdp", "vllm", "sglang"),
)
_PYTHON = re.compile(r"python[0-9.]*")


def find_interpreter(process: ProcessInfo, *, root: Path | None = None) -> Path | None:
    """Find the interpreter by the path with which the process was started, which names its virtual environment.

    Args:
        process: the process.
        root: path of its root folder as seen from here; None: it shares ours.
    """
    environ = process.environ or {}
    command = process.argv[0] if process.argv else ""
    candidates: list[Path | None] = []
    if _PYTHON.fullmatch(Path(command).name):
        on_path = find_program(command, environ.get("PATH")) if "/" not in command and root is None else None
        candidates.append(on_path if on_path else (process.cwd or Path()) / command if "/" in command else None)
    candidates += [
        Path(environ[variable]) / "bin" / "python"
        for variable in ("VIRTUAL_ENV", "CONDA_PREFIX")
        if variable in environ
    ]
    candidates.append(process.exe)
    rooted = [_under(root, path) for path in candidates if path is not None]
    return next((path for path in rooted if os.access(path, os.F_OK)), None)


def installed_versions(process: ProcessInfo, interpreter: Path | None, *, root: Path | None = None) -> dict[str, str]:
    """Return the frameworks' versions by name, from the names of their ``*.dist-info`` folders.

    A package with loaded libraries counts where these were loaded from; others where Python looks for them: first in
    PYTHONPATH, then in the interpreter's package folders.

    Args:
        process: the process.
        interpreter: its interpreter, if known.
        root: path of its root folder as seen from here; None: it shares ours.
    """
    loaded = _loaded_packages(process.pid)
    python_path = (process.environ or {}).get("PYTHONPATH", "").split(":")
    others = [_under(root, Path(each)) for each in python_path if each[:1] == "/"]
    others += package_folders(interpreter) if interpreter is not None else ()
    places = {folder: versions_in([_under(root, Path(folder))]) for folder in dict(loaded)}
    own = {package: version for folder, package in reversed(loaded) if (version := places[folder].get(package))}
    found: dict[str, str] = {}
    for versions in (own, versions_in(others), *places.values()):
        found = {**versions, **found}
    return {framework: found[framework] for framework in FRAMEWORKS if framework in found}


_MAX_MAPS_BYTES = 2**22
"""Read of ``/proc/PID/maps``, whose length is up to the process."""


def _loaded_packages(pid: int) -> tuple[tuple[str, str], ...]:
    """Return (package folder, package) for each package of which the process has a library loaded."""
    try:
        with Path(f"/proc/{pid}/maps").open("rb") as file:
            maps = file.read(_MAX_MAPS_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ()
    found: dict[tuple[str, str], None] = {}
    for line in maps.splitlines():
        _, slash, path = line.partition("/")
        for kind in PACKAGE_FOLDERS:
            folder, mark, package = f"{slash}{path}".partition(f"/{kind}/")
            if mark:
                found[f"{folder}/{kind}", package.partition("/")[0]] = None
                break
    return tuple(found)


def _under(root: Path | None, path: Path) -> Path:
    return path if root is None or not path.is_absolute() or path.is_relative_to(root) else root / path.relative_to("/")
