"""Worker program: what a Python has, as JSON lines over pipes, without touching a card.

Run by its file's path under any Python (3.9 or newer); vramtop itself need not be installed there:

    {"id": 1, "op": "packages", "distributions": [name, ...], "modules": [name, ...], "wishes_of": [name, ...]}
        -> {"id": 1, "python": ..., "executable": ..., "versions": {distribution: version},
            "modules": [those that can be found], "wishes": [what the distributions in wishes_of require, ...]}
    {"id": 2, "op": "torch"}
        -> {"id": 2, "version": ..., "cuda": version or null, "hip": version or null,
            "architectures": ["sm_80", ..., "compute_90"] or null, "problem": null}
        -> {"id": 2, "problem": "why torch cannot be imported"}

``packages`` imports none of what it is asked about.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

if not __package__:  # run by its path: the folder becomes a package, so that its names hide no library's
    here = Path(__file__).resolve().parent
    sys.path[:] = [str(here.parent), *(entry for entry in sys.path if not entry or Path(entry).resolve() != here)]
    import_module(here.name)
    del sys.path[0]
    __package__ = here.name

from .request.protocol import serve


def packages(request: dict[str, Any]) -> dict[str, Any]:
    """Versions by distribution, modules that can be found, and what some distributions require."""
    import platform

    versions = {name: _version(name) for name in request.get("distributions") or ()}
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "versions": {name: version for name, version in versions.items() if version is not None},
        "modules": [name for name in request.get("modules") or () if _is_there(name)],
        "wishes": [wish for name in request.get("wishes_of") or () for wish in _wishes(name)],
    }


def torch(_request: dict[str, Any]) -> dict[str, Any]:
    """How torch was built; CUDA is not initialised."""
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a broken installation raises what it likes: OSError, ImportError, ...
        return {"problem": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    # torch.cuda.get_arch_list() is empty where no card is visible
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
    return {
        "version": str(torch.__version__),
        "cuda": getattr(torch.version, "cuda", None),
        "hip": getattr(torch.version, "hip", None),
        "architectures": flags.split() if flags else None,
        "problem": None,
    }


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _wishes(name: str) -> list[str]:
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []


def _is_there(name: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # the package around it is missing, or was imported oddly
        return False


OPERATIONS = {"packages": packages, "torch": torch}


if __name__ == "__main__":
    serve(OPERATIONS)
