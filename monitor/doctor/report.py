"""All that is found out, on one page: gathered side by side, within a time limit, and without what tells names."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.trace.interpreters import find_interpreters, probe_interpreter

from ..preflight.facts.machine import DRIVER_TIMEOUT_SECONDS
from .data_folder import DataFolderFacts, collect_data_folder_facts
from .driver_process import DriverFacts, DriverProcess
from .permissions import PermissionFacts, collect_permission_facts
from .redact import Redactor, redactor
from .system import SystemFacts, collect_system_facts

TIMEOUT_SECONDS = DRIVER_TIMEOUT_SECONDS
"""So long the driver and the interpreters may take together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpreterFacts:
    """An interpreter that could run vramtop's workers."""

    path: str
    named_by: str
    """Why it is asked: ``--python``, a variable, or that it runs vramtop."""
    torch: str | None = None
    """Version; None: it has no torch with transformers, or does not run."""
    transformers: str | None = None
    peft: str | None = None
    answered: bool = True
    """It told within the time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """Everything."""

    system: SystemFacts
    driver: DriverFacts
    access: PermissionFacts
    files: DataFolderFacts
    pythons: tuple[InterpreterFacts, ...]


def collect_report(
    environ: Mapping[str, str], *, python: str | None = None, seconds: float = TIMEOUT_SECONDS
) -> DoctorReport:
    """Look at this machine.

    Args:
        environ: the environment.
        python: what ``--python`` says; then it is the only interpreter that is asked.
        seconds: so long driver and interpreters may take.

    Raises:
        InputError: ``python`` is not there.
    """
    end = time.monotonic() + seconds
    try:
        paths = find_interpreters(python, environ)
    except InputError:
        raise InputError("--python: no such program; give the path of a Python that has torch") from None
    child = DriverProcess()  # before there are threads
    hide = redactor(environ)
    pythons = _Pythons(paths, lambda path: _named_by(path, python, environ), hide)
    system, access, files = collect_system_facts(environ), collect_permission_facts(), collect_data_folder_facts()
    driver = child.facts(max(0.0, end - time.monotonic()))
    driver = replace(driver, library=None if driver.library is None else hide.path(driver.library))
    page = DoctorReport(
        system=system,
        driver=driver,
        access=access,
        files=replace(files, folder=hide.path(files.folder)),
        pythons=pythons.facts(end),
    )
    return msgspec.convert(hide.everything(msgspec.to_builtins(page)), DoctorReport)


def _named_by(path: Path, python: str | None, environ: Mapping[str, str]) -> str:
    if python is not None:
        return "--python"
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(name) and path == Path(environ[name]) / "bin" / "python":
            return name
    return "runs vramtop"


class _Pythons:
    """Asks each interpreter on a thread of its own.

    Args:
        paths: of the interpreters.
        named_by: why one is asked.
        hide: takes out what tells names.
    """

    def __init__(self, paths: list[Path], named_by: Callable[[Path], str], hide: Redactor) -> None:
        self._found = {
            path: InterpreterFacts(path=hide.path(path), named_by=named_by(path), answered=False) for path in paths
        }
        self._threads = [threading.Thread(target=self._ask, args=(path,), daemon=True) for path in paths]
        for thread in self._threads:
            thread.start()

    def facts(self, end: float) -> tuple[InterpreterFacts, ...]:
        """What they have told by then."""
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return tuple(self._found.values())

    def _ask(self, path: Path) -> None:
        known, found = self._found[path], probe_interpreter(path)
        if found is None:
            self._found[path] = replace(known, answered=True)
        else:
            self._found[path] = replace(
                known, answered=True, torch=found.torch, transformers=found.transformers, peft=found.peft
            )
