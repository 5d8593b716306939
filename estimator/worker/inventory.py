"""Worker program: builds a model on the meta device and lists its parameters, as JSON lines over pipes.

Run by its file's path under any Python (3.9 or newer) that has torch (2.4 or newer) and transformers (4.45 or newer);
vramtop itself need not be installed there. One request a line on stdin, one answer a line on stdout:

    {"id": 1, "op": "ping"}
        -> {"id": 1, "versions": {"python": ..., "torch": ..., "transformers": ...}}
    {"id": 2, "op": "inventory", "config": {"model_type": ..., ...}, "task": "causal-lm"}
        -> {"id": 2, "groups": [{"name", "shape", "repeat", "dtype", "kind"}, ...],
            "layers": ..., "tied_head": ..., "versions": {...}}

A request that fails is answered as ``protocol`` says. No weights are read, nothing is downloaded, and no code that came
with a model is run.
"""

from __future__ import annotations

import re
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

from .build import build_model, has_tied_head
from .protocol import ping, serve, versions

NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
BLOCK = re.compile(r"^(.*?)\.\d+(?=\.)")


def inventory(request: dict[str, Any]) -> dict[str, Any]:
    """Every parameter of the model that config and task describe, once, grouped by name and shape."""
    import torch

    with torch.device("meta"):  # shapes without storage
        model = build_model(request["config"], request["task"])
    groups: dict[tuple[str, tuple[int, ...], str, str], int] = {}
    blocks = set()
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():  # tied parameters come once, under their first name
        path, _, leaf = name.rpartition(".")
        dtype = str(parameter.dtype).replace("torch.", "")
        key = (NUMBER.sub("*", name), tuple(parameter.shape), kind_of(modules[path], leaf), dtype)
        groups[key] = groups.get(key, 0) + 1
        block = BLOCK.match(name)
        if block:
            blocks.add(block.group(0))
    return {
        "groups": [
            {"name": name, "shape": shape, "repeat": repeat, "dtype": dtype, "kind": kind}
            for (name, shape, kind, dtype), repeat in groups.items()
        ],
        "layers": len(blocks),
        "tied_head": has_tied_head(model),
        "versions": versions(),
    }


def kind_of(module: Any, leaf: str) -> str:
    """What a parameter is to its module: ``linear``, ``conv1d``, ``embedding``, ``norm``, ``bias`` or ``parameter``."""
    import torch

    class_name = type(module).__name__
    if "norm" in class_name.lower():
        return "norm"
    if isinstance(module, torch.nn.Linear):
        return "linear" if leaf == "weight" else "bias"
    if class_name == "Conv1D":
        return "conv1d" if leaf == "weight" else "bias"
    if isinstance(module, torch.nn.Embedding):
        return "embedding"
    return "parameter"


OPERATIONS = {"ping": ping, "inventory": inventory}


if __name__ == "__main__":
    serve(OPERATIONS)
