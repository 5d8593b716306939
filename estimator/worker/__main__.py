"""Worker program: counts and traces models in an interpreter that has torch; JSON lines over pipes.

Run by its file's path under any Python (3.9 or newer); vramtop need not be installed there. Each line on stdin is a
request, each line on stdout the answer (``request.protocol``). Operations, each documented in its module:

    {"op": "ping"}       versions of the libraries
    {"op": "frameworks"} versions of torch, transformers and peft, without importing them
    {"op": "packages"}   installed distributions and modules, without importing them
    {"op": "torch"}      how torch was built
    {"op": "inventory"}  parameters and buffers of a model
    {"op": "trace"}      memory of a training step
    {"op": "measure"}    memory of real training steps on the CPU
    {"op": "optimizer"}  bytes of state of an optimizer class

No GPU is touched, and torch is imported by the first operation that needs it.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

if not __package__:  # run by its path: import the folder as a package, so that its module names shadow no library
    folder = Path(__file__).resolve().parent
    sys.path[:] = [str(folder.parent), *(entry for entry in sys.path if not entry or Path(entry).resolve() != folder)]
    import_module(folder.name)
    del sys.path[0]
    __package__ = folder.name

from .request.protocol import Operation, ping, serve_requests


def _imported_when_called(module: str, name: str) -> Operation:
    """Return an operation whose module is imported by its first request: most workers run one or two operations."""

    def run(request: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = getattr(import_module(f".operations.{module}", __package__), name)(request)
        return answer

    return run


OPERATIONS = {
    "ping": ping,
    "frameworks": _imported_when_called("installed", "frameworks"),
    "packages": _imported_when_called("installed", "packages"),
    "torch": _imported_when_called("installed", "torch_build"),
    "inventory": _imported_when_called("inventory", "inventory"),
    "trace": _imported_when_called("trace", "trace"),
    "measure": _imported_when_called("real_steps", "real_steps"),
    "optimizer": _imported_when_called("optimizer", "optimizer"),
}


if __name__ == "__main__":
    gc.disable()  # until the first answer: a quarter of the time of imports is spent looking for garbage
    serve_requests(OPERATIONS)
