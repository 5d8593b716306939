"""Finds a Python that can run the worker: one that has torch and transformers, neither of which is imported to see."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from ..common.errors import CannotTellError, InputError
from ..common.paths import expand_user, is_file, is_folder
from ..common.process_limit import ProcessLimitError
from .installed_packages import Interpreter, packages_in
from .start_python import left_out_folders
from .worker_pool import POOL
from .worker_process import Worker

PROBE_TIMEOUT_SECONDS = 20


def find_interpreters(python: str | None, environ: Mapping[str, str]) -> list[Path]:
    """Return the Pythons to probe, best first: the one that the user named, else active environments, then this one.

    Args:
        python: value of ``--python``, which is then the only one.
        environ: environment with VIRTUAL_ENV and CONDA_PREFIX.

    Raises:
        InputError: ``python`` does not exist.
    """
    if python is not None:
        path = expand_user(python)
        path = path / "bin" / "python" if is_folder(path) else path
        if not is_file(path):
            raise InputError(f"--python {python}: no such program; give the path of a Python that has torch")
        return [path.absolute()]  # not resolved: a virtual environment's Python is a link out of it
    return list(dict.fromkeys(path for path in _candidates(environ) if is_file(path)))


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


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(variable):
            yield Path(environ[variable]).absolute() / "bin" / "python"
    if sys.executable:
        yield Path(sys.executable)
