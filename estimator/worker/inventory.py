"""Worker program: builds a model on the meta device and lists what it holds, as JSON lines over pipes.

Run by its file's path under any Python (3.9 or newer) that has torch (2.4 or newer) and transformers (4.45 or newer);
vramtop itself need not be installed there. One request a line on stdin, one answer a line on stdout:

    {"id": 1, "op": "ping"}
        -> {"id": 1, "versions": {"python": ..., "torch": ..., "transformers": ...}}
    {"id": 2, "op": "inventory", "config": {"model_type": ..., ...}, "task": "causal-lm",
     "lora": {"rank", "targets"} or absent, "code": {"folder", "model", "remote"} or absent}
        -> {"id": 2, "groups": [{"name", "shape", "repeat", "dtype", "kind", "quantized"}, ...],
            "layers": ..., "tied_head": ..., "tied": [[name, ...], ...],
            "buffers": [{"name", "shape", "repeat", "dtype", "bytes", "persistent"}, ...],
            "adapters": [{"name", "shape", "repeat", "dtype"}, ...] or null,
            "experts": {"count", "elements"} or null, "tp_plan": {pattern: style}, "no_split": [class, ...],
            "config": {...}, "versions": {...}}

A request that fails is answered as ``protocol`` says. No weights are read and nothing is downloaded. Code that came
with a model, or that is the user's own, is run only where ``code`` names it.
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

from .request.protocol import ping, serve, versions


def inventory(request: dict[str, Any]) -> dict[str, Any]:
    """Every parameter and buffer of the model that config and task describe, grouped by name and shape."""
    import torch

    from .model import listing
    from .model.build import build_model, has_tied_head, with_adapters
    from .request.request import Lora, read_code

    with torch.device("meta"):  # shapes without storage
        model = build_model(request.get("config") or {}, request["task"], code=read_code(request))
        answer = {
            **listing.parameters(model),
            "tied_head": has_tied_head(model),
            "tied": listing.tied(model),
            "buffers": listing.buffers(model),
            "experts": listing.experts(model),
            "tp_plan": listing.plan(model),
            "no_split": sorted(getattr(model, "_no_split_modules", None) or ()),
            "config": listing.config_of(model),
            "adapters": None,
        }
        if request.get("lora"):
            answer["adapters"] = listing.adapters(with_adapters(model, Lora(**request["lora"])))
    return {**answer, "versions": versions()}


OPERATIONS = {"ping": ping, "inventory": inventory}


if __name__ == "__main__":
    serve(OPERATIONS)
