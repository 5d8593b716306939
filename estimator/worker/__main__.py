"""Worker program: counts and traces models in an interpreter that has torch; JSON lines over pipes.

Run by its file's path under any Python (3.9 or newer); vramtop need not be installed there. Each line on stdin is a
request, each line on stdout the answer (``request.protocol``), which one of ``operations`` gives. With the words
``rehearse ...`` or ``measure ...`` it runs a program instead (``rehearsal.entry``, ``measure.entry``).

No GPU is touched, and torch is imported by the first operation that needs it.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from pathlib import Path

if not __package__:  # run by its path: import the folder as a package, so that its module names shadow no library
    folder = Path(__file__).resolve().parent
    sys.path[:] = [str(folder.parent), *(entry for entry in sys.path if not entry or Path(entry).resolve() != folder)]
    import_module(folder.name)
    del sys.path[0]
    __package__ = folder.name

if __name__ == "__main__":
    if sys.argv[1:]:
        entry = {"rehearse": "rehearsal", "measure": "measure"}[sys.argv[1]]
        import_module(f"{__package__}.{entry}.entry").main(sys.argv[2:])
    else:
        from .operations import OPERATIONS
        from .request.protocol import serve_requests

        gc.disable()  # until libraries are imported: a quarter of that time is spent looking for garbage
        serve_requests(OPERATIONS)
