"""Keeps vramtop from importing modules of the current folder; only modules that every Python has loaded are used here.

``python -m vramtop.tui.cli`` puts that folder first on ``sys.path``, as does ``.`` in PYTHONPATH.
"""

import os
import sys


def leave_out_current_folder() -> None:
    """Take the current folder off ``sys.path``, if this process is vramtop's and vramtop is not installed there."""
    if os.path.basename(sys.argv[0] if sys.argv else "") not in ("vramtop", "-m"):  # noqa: PTH119 - pathlib is not loaded
        return
    try:
        current = os.path.realpath(os.curdir)
    except OSError:
        return
    own = os.path.realpath(__file__)
    sys.path[:] = [entry for entry in sys.path if entry and (_is_needed(entry, own) or _real(entry) != current)]


def _is_needed(entry: str, own: str) -> bool:
    """Return True for an entry of the interpreter's own, or the one in which vramtop is installed."""
    folder = _real(entry)
    return folder in (_real(os.path.dirname(os.__file__)), _real(os.path.join(own, *[os.pardir] * 4))) or (  # noqa: PTH118, PTH120
        os.path.basename(folder) in ("site-packages", "dist-packages", "lib-dynload")  # noqa: PTH119
    )


def _real(path: str) -> str:
    return os.path.realpath(path)
