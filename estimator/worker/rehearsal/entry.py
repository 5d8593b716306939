"""Rehearses a program: ``rehearse PLAN.json python-words...`` with what ``python`` would be given.

The plan (``Rehearsal``) names the file for the answer. The words are ``train.py ARGS``, ``-m MODULE ARGS`` or
``-c CODE ARGS``; the program finds ``sys.argv``, ``sys.path`` and ``__main__`` as under Python itself.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from pathlib import Path

try:
    import torch  # noqa: F401 - all of the rehearsal needs it
except ImportError as missing:
    sys.exit(f"{sys.executable} cannot import torch ({missing}); name the program's own Python: --python PATH")


def main(arguments: list[str]) -> None:
    """Run the program under the rehearsal."""
    plan = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    level, _, keeper = os.environ.pop(plan["kept_as"], "").partition(" ")
    from .moving import install
    from .notebook import run_cells
    from .program import Rehearsal
    from .ranks import start
    from .watched import tell_keeper

    faulthandler.enable()  # the answer then names the line at which C++ broke
    words = arguments[1:]
    rehearsal = Rehearsal(plan)  # reads the allocator's settings; what it imports is not redirected
    scratch = None
    if level == "overlay":
        install()
    else:
        from .scratch import Scratch

        scratch = Scratch(Path(plan["scratch"]))
        scratch.install()
    rehearsal.note_loaded()
    if not (keeper and tell_keeper(int(keeper))) and scratch is not None:
        scratch.refuse()
    cells = plan.get("cells")
    rehearsal.run(lambda: start(words, rehearsal.gpus) if cells is None else run_cells(words, cells))
