"""Code that the user names as ``module:attribute``, imported from a folder: a model, a plan or an optimizer."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from .protocol import RefusedError


@dataclass(frozen=True)
class UserCode:
    """Code that may run because the user asked for it."""

    folder: str
    """Modules are imported from here, before installed ones; those of the standard library keep their names."""
    model: str | None = None
    """``module:attribute``: an ``nn.Module``, or a callable that returns one."""
    remote: bool = False
    """The folder is a model's own, and its ``auto_map`` names code there (``trust_remote_code``)."""
    current: str | None = None
    """The user's current folder, in which their code runs; None: it stays the worker's."""


def read_user_code(message: dict[str, Any]) -> UserCode | None:
    """Return the code that a message allows to run, or None, in the user's current folder.

    The libraries are imported before, so that nothing they need comes from the user's folder.
    """
    if not message.get("code"):
        return None
    code = UserCode(**message["code"])
    for library in ("torch", "transformers", *(("peft",) if message.get("lora") else ())):
        with contextlib.suppress(ImportError):
            import_module(library)
    if code.current is not None:
        with contextlib.suppress(OSError):  # it was removed
            os.chdir(code.current)
    return code


def import_attribute(name: str, folder: str) -> Any:
    """Import ``module:attribute`` from a folder and return the attribute.

    Raises:
        RefusedError: it cannot be imported, or has no such attribute.
    """
    module_name, _, path = name.partition(":")
    if module_name.partition(".")[0] == (__package__ or "").partition(".")[0]:
        raise RefusedError(f"{name}: a module called {module_name} cannot be imported here; give it another name")
    with refusing_errors(name, folder):
        if folder not in sys.path:
            # before the first folder of installed packages, behind the standard library
            places = (at for at, each in enumerate(sys.path) if Path(each).name in ("site-packages", "dist-packages"))
            sys.path.insert(next(places, len(sys.path)), folder)
        _import_from_folder(module_name.partition(".")[0], folder)
        found = import_module(module_name)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    return found


def _import_from_folder(name: str, folder: str) -> None:
    """Import the module that the user names from their folder, even if the standard library has one of this name.

    Raises:
        RefusedError: another module has this name, and is in use.
    """
    spec = importlib.machinery.PathFinder.find_spec(name, [folder])
    if spec is None or spec.loader is None:
        return
    if name in sys.modules:
        if getattr(sys.modules[name], "__file__", None) != spec.origin:
            raise RefusedError(f"{spec.origin}: a module called {name} cannot be imported here; give it another name")
        return
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def build_user_model(name: str, folder: str) -> Any:
    """Return the ``nn.Module`` that ``module:attribute`` is or returns.

    Raises:
        RefusedError: it gives something else, or fails.
    """
    import torch

    found = import_attribute(name, folder)
    if callable(found) and not isinstance(found, torch.nn.Module):
        with refusing_errors(name, folder):
            found = found()
    if not isinstance(found, torch.nn.Module):
        raise RefusedError(f"{name} gives a {type(found).__name__}, not a torch.nn.Module")
    return found


@contextlib.contextmanager
def refusing_errors(name: str, folder: str) -> Iterator[None]:
    """Turn any exception of the user's code into a ``RefusedError`` with its type and its line, but lack of memory.

    Raises:
        RefusedError: the code raised something.
    """
    try:
        yield
    except RefusedError:
        raise
    except (Exception, SystemExit) as error:  # user code can raise anything
        if type(error).__name__ == "OutOfMemoryError" or "out of memory" in str(error):
            raise  # of the device, in a measurement
        text = " ".join(str(error).split())[:200]
        line = _line_in_folder(error, folder)
        raise RefusedError(f"{name} fails: {type(error).__name__}: {text}{line}") from None


def _line_in_folder(error: BaseException, folder: str) -> str:
    """Return `` (file, line n)`` of the last frame in the folder's code, or an empty string."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({Path(error.filename).name}, line {error.lineno})"
    root = Path(folder).resolve()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if root in _parents(frame.filename)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _parents(file: str) -> list[Path]:
    path = Path(file)
    return list(path.resolve().parents) if path.is_absolute() else []
