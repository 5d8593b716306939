"""Finds a Python that can run the worker: one that has torch and transformers, neither of which is imported to see."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from ..common.errors import CannotTellError
from ..common.library_versions import find_interpreters
from ..common.process_limit import ProcessLimitError
from .installed_packages import Interpreter, packages_in
from .start_python import left_out_folders
from .worker_pool import POOL
from .worker_process import Worker

PROBE_TIMEOUT_SECONDS = 20


def choose_interpreter(python: str | None, environ: Mapping[str, str]) -> Interpreter:
    """Return the first Python that has torch and transformers.

    Raises:
        InputError: ``python`` does not exist.
        CannotTellError: none has them.
    """
    candidates = find_interpreters(python, environ)
    for path in candidates:
        found = probe_interpreter(path, lend=True)
        if found is not None:
            return found
    names = ", ".join(str(path) for path in candidates) or "no Python at all"
    ignored = ", ".join(left_out_folders(os.environ, candidates[0])) if candidates else ""
    raise CannotTellError(
        f"no Python with torch and transformers was found ({names}); install vramtop[torch], or name one with "
        "--python PATH" + (f". These folders of PYTHONPATH are ignored: {ignored}" if ignored else "")
    )


def probe_interpreter(path: Path, *, lend: bool = False) -> Interpreter | None:
    """Return the interpreter with its libraries' versions; None if one is missing or it does not run.

    Args:
        path: the interpreter.
        lend: whether the worker that tells may answer the interpreter's next request.

    Raises:
        ProcessLimitError: no process can be started.
    """
    with ExitStack() as started:
        try:
            worker = started.enter_context(Worker(path))
            names = ("torch", "transformers", "peft")
            found = packages_in(worker, PROBE_TIMEOUT_SECONDS, distributions=names).versions
        except ProcessLimitError:
            raise
        except CannotTellError:
            return None
        if not {"torch", "transformers"} <= found.keys():
            return None
        python = Interpreter(
            path=path, torch=found["torch"], transformers=found["transformers"], peft=found.get("peft")
        )
        if lend and POOL.adopt(python, worker):
            started.pop_all()
        return python
