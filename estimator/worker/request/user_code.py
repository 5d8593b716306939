"""Code that the user names, as ``module:attribute``: a model, or a tensor-parallel plan; imported from his folder."""

from __future__ import annotations

import contextlib
import sys
import traceback
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .protocol import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Code:
    """What may be run, because the user asked for it."""

    folder: str
    """Where modules are imported from, as a script lying there would import them."""
    model: str | None = None
    """``module:attribute``: returns the model, or is it."""
    remote: bool = False
    """The folder is a model's own, and its ``auto_map`` names code there (``trust_remote_code``)."""


def find(name: str, folder: str) -> Any:
    """What ``module:attribute`` names.

    Raises:
        RefusedError: it cannot be imported, or has no such attribute.
    """
    module_name, _, path = name.partition(":")
    if module_name.partition(".")[0] == (__package__ or "").partition(".")[0]:
        raise RefusedError(f"{name}: a module called {module_name} cannot be imported here; give it another name")
    with reported(name, folder):
        if folder not in sys.path:
            sys.path.insert(0, folder)
        found = import_module(module_name)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    return found


def make_model(name: str, folder: str) -> Any:
    """The ``nn.Module`` that ``module:attribute`` names or returns.

    Raises:
        RefusedError: it gives something else, or fails.
    """
    import torch

    found = find(name, folder)
    if callable(found) and not isinstance(found, torch.nn.Module):
        with reported(name, folder):
            found = found()
    if not isinstance(found, torch.nn.Module):
        raise RefusedError(f"{name} gives a {type(found).__name__}, not a torch.nn.Module")
    return found


@contextlib.contextmanager
def reported(name: str, folder: str) -> Iterator[None]:
    """A failure of the user's code becomes one sentence with its type and its line.

    Raises:
        RefusedError: there was one.
    """
    try:
        yield
    except RefusedError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - anybody's code can raise anything
        text = " ".join(str(error).split())[:200]
        raise RefusedError(f"{name} fails: {type(error).__name__}: {text}{_place(error, folder)}") from None


def _place(error: BaseException, folder: str) -> str:
    """The last line of the folder's code that the error came through."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({Path(error.filename).name}, line {error.lineno})"
    root = Path(folder).resolve()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if root in _parents(frame.filename)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _parents(file: str) -> list[Path]:
    path = Path(file)
    return list(path.resolve().parents) if path.is_absolute() else []
