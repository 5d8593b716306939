"""The Python interpreters that could run vramtop's workers, and the frameworks that each of them has."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vramtop.estimator.common import ProcessLimitError, start_thread
from vramtop.estimator.trace import probe_interpreter

from .redact import Redactor


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpreterFacts:
    """An interpreter that could run vramtop's workers."""

    path: str
    """Path of the program."""
    named_by: str
    """Why it is considered: ``--python``, a variable, or that it runs vramtop."""
    torch: str | None = None
    """Version; None: it has torch and transformers not both installed, or it does not run."""
    transformers: str | None = None
    """Version; None: likewise."""
    peft: str | None = None
    """Version; None: not installed."""
    answered: bool = True
    """True if it answered within the time limit."""
    problem: str | None = None
    """Why it could not be asked; None: it was."""


class InterpreterProbes:
    """Probes each interpreter on a thread of its own.

    Args:
        paths: interpreters.
        environ: the environment.
        python: value of ``--python``.
        redactor: removes names from the paths.
    """

    def __init__(self, paths: list[Path], environ: Mapping[str, str], python: str | None, redactor: Redactor) -> None:
        self._facts = {
            path: InterpreterFacts(path=redactor.path(path), named_by=_named_by(path, python, environ), answered=False)
            for path in paths
        }
        self._threads = [threading.Thread(target=self._probe, args=(path,), daemon=True) for path in paths]
        for path, thread in zip(paths, self._threads, strict=True):
            try:
                start_thread(thread)
            except ProcessLimitError as error:
                self._facts[path] = replace(self._facts[path], problem=error.message)

    def facts(self, deadline: float) -> tuple[InterpreterFacts, ...]:
        """Return the facts that are known at the deadline (``time.monotonic``)."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        return tuple(self._facts.values())

    def _probe(self, path: Path) -> None:
        facts = replace(self._facts[path], answered=True)
        try:
            found = probe_interpreter(path)
        except ProcessLimitError as error:
            self._facts[path] = replace(facts, problem=error.message)
            return
        if found is not None:
            facts = replace(facts, torch=found.torch, transformers=found.transformers, peft=found.peft)
        self._facts[path] = facts


def _named_by(path: Path, python: str | None, environ: Mapping[str, str]) -> str:
    if python is not None:
        return "--python"
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(name) and path == Path(environ[name]) / "bin" / "python":
            return name
    return "runs vramtop"
