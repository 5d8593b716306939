"""The JSON of ``vramtop doctor``."""

from typing import Annotated, Any

from vramtop.estimator.common.fields_of import FieldsOf
from vramtop.monitor.doctor.facts import (
    DataFolderFacts,
    Driver,
    GpuFacts,
    InterpreterFacts,
    PermissionFacts,
    SystemFacts,
)
from vramtop.monitor.doctor.issues import Issue
from vramtop.tui.cli.commands.doctor import TerminalFacts

from .versioned import Versioned


class DoctorJson(Versioned):
    """Facts about this machine for a bug report, without names of users and hosts."""

    findings: list[Annotated[dict[str, Any], FieldsOf(Issue)]]
    """What is wrong or unusual, the most severe first."""
    system: Annotated[dict[str, Any], FieldsOf(SystemFacts)]
    """The system."""
    driver: Annotated[dict[str, Any], FieldsOf(Driver)]
    """The driver."""
    gpus: list[Annotated[dict[str, Any], FieldsOf(GpuFacts)]]
    """The GPUs."""
    access: Annotated[dict[str, Any], FieldsOf(PermissionFacts)]
    """What this user may do."""
    terminal: Annotated[dict[str, Any], FieldsOf(TerminalFacts)]
    """The terminal."""
    pythons: list[Annotated[dict[str, Any], FieldsOf(InterpreterFacts)]]
    """Interpreters that could run vramtop's workers."""
    files: Annotated[dict[str, Any], FieldsOf(DataFolderFacts)]
    """The data folder."""
    changed_settings: list[str]
    """Names of the settings that are not at their defaults; their values may name hosts."""
