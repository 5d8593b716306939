"""Starts the program that follows a command, beside the command."""

import contextlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from vramtop.estimator.trace.start_python import safe_environment

_MODULE = "vramtop.monitor.attach.automatic.follow_program"
_START_SECONDS = 10.0


def start_following(pid: int, environ: Mapping[str, str], *, settings: Sequence[str] = ()) -> None:
    """Start to follow a command that this process becomes; what hinders that changes nothing for the command.

    The process is started by one that ends at once: a command that waits for its children must not find one that it
    does not know.

    Args:
        pid: of the command.
        environ: of vramtop itself, which the probe is not in.
        settings: of its job that the user has named, each as ``KEY=VALUE``.
    """
    code = (
        "import os, sys\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        f"    os.execv(sys.executable, [sys.executable, '-m', {_MODULE!r}, *sys.argv[1:]])\n"
    )
    safe = safe_environment(environ, Path(sys.executable))
    safe.pop("PYTHONPATH", None)  # folders of the command's: vramtop is among the interpreter's own packages
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [sys.executable, "-I", "-c", code, str(pid), *settings],
            env=safe,
            cwd="/",  # where nobody has put a module
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_START_SECONDS,
            check=False,
        )
