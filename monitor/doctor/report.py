"""The doctor's report: all facts, collected in parallel within a time limit and without names of users and hosts."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from vramtop.estimator.common import InputError
from vramtop.estimator.trace import find_interpreters

from ..preflight.facts import DRIVER_TIMEOUT_SECONDS
from .data_folder import DataFolderFacts, collect_data_folder_facts
from .driver_facts import DriverFacts
from .driver_process import DriverProcess
from .interpreters import InterpreterFacts, InterpreterProbes
from .permissions import PermissionFacts, collect_permission_facts
from .redact import make_redactor
from .system import SystemFacts, collect_system_facts

TIMEOUT_SECONDS = DRIVER_TIMEOUT_SECONDS
"""Time limit for the driver and the interpreters together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """All facts about this machine."""

    system: SystemFacts
    driver: DriverFacts
    access: PermissionFacts
    files: DataFolderFacts
    pythons: tuple[InterpreterFacts, ...]


def collect_report(
    environ: Mapping[str, str], *, python: str | None = None, seconds: float = TIMEOUT_SECONDS
) -> DoctorReport:
    """Collect the facts about this machine.

    Args:
        environ: the environment.
        python: value of ``--python``, which is then the only interpreter that is examined.
        seconds: time limit for the driver and the interpreters.

    Raises:
        InputError: ``python`` does not exist.
    """
    deadline = time.monotonic() + seconds
    try:
        paths = find_interpreters(python, environ)
    except InputError:
        raise InputError("--python: no such program; give the path of a Python with torch") from None
    driver_process = DriverProcess()  # forks, so it must start before any thread
    redactor = make_redactor(environ)
    interpreters = InterpreterProbes(paths, environ, python, redactor)
    system, permissions, files = collect_system_facts(environ), collect_permission_facts(), collect_data_folder_facts()
    driver = driver_process.facts(max(0.0, deadline - time.monotonic()))
    report = DoctorReport(
        system=system,
        driver=replace(driver, library=None if driver.library is None else redactor.path(driver.library)),
        access=permissions,
        files=replace(files, folder=redactor.path(files.folder)),
        pythons=interpreters.facts(deadline),
    )
    return msgspec.convert(redactor.redact_json(msgspec.to_builtins(report)), DoctorReport)
