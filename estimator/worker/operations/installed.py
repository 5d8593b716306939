"""Operations ``frameworks``, ``packages`` and ``torch``: the libraries of an interpreter.

{"op": "frameworks"} -> {"versions": {"torch": ..., "transformers": ..., "peft": ...}}, those that are installed
{"op": "packages", "distributions": [name, ...], "modules": [name, ...], "requirements_of": [name, ...]}
    -> {"python": ..., "executable": ..., "versions": {distribution: version},
        "modules": [those that can be found], "requirements": [those of the distributions in requirements_of, ...]}
{"op": "torch"}
    -> {"version": ..., "cuda": version or null, "hip": version or null,
        "architectures": ["sm_80", ..., "compute_90"] or null, "problem": null}
    -> {"problem": "why torch cannot be imported"}
"""

from __future__ import annotations

import os
import sys
from typing import Any

FRAMEWORKS = ("torch", "transformers", "peft")


def frameworks(_request: dict[str, Any]) -> dict[str, Any]:
    """Return the versions of the installed frameworks; imports none of them.

    Reads versions from folder names, in half of the time that importing ``importlib.metadata`` takes.
    """
    found = {name: _version_by_folder(name) or _version_by_metadata(name) for name in FRAMEWORKS}
    return {"versions": {name: version for name, version in found.items() if version}}


def packages(request: dict[str, Any]) -> dict[str, Any]:
    """Return installed versions, the modules that can be found, and requirements; imports none of them."""
    import platform

    versions = {name: _version(name) for name in request.get("distributions") or ()}
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "versions": {name: version for name, version in versions.items() if version is not None},
        "modules": [name for name in request.get("modules") or () if _is_importable(name)],
        "requirements": [each for name in request.get("requirements_of") or () for each in _requirements(name)],
    }


def torch_build(_request: dict[str, Any]) -> dict[str, Any]:
    """Return how torch was built, without initialising CUDA."""
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a broken installation raises anything: OSError, ImportError, ...
        return {"problem": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    # torch.cuda.get_arch_list() is empty where no GPU is visible
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
    return {
        "version": str(torch.__version__),
        "cuda": getattr(torch.version, "cuda", None),
        "hip": getattr(torch.version, "hip", None),
        "architectures": flags.split() if flags else None,
        "problem": None,
    }


def _version_by_folder(name: str) -> str | None:
    for entry in sys.path:
        try:
            there = os.listdir(entry)  # noqa: PTH208 - pathlib takes four times as long
        except OSError:  # an archive, or absent
            continue
        if name in there:
            found = [each for each in there if each.startswith(f"{name}-") and each.endswith(".dist-info")]
            return found[0][len(name) + 1 : -len(".dist-info")] if len(found) == 1 else None
    return None


def _version_by_metadata(name: str) -> str | None:
    return _version(name) if _is_importable(name) else None


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _requirements(name: str) -> list[str]:
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []


def _is_importable(name: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # its parent package is missing, or was imported without a spec
        return False
