"""The JSON of ``vramtop doctor``."""

from typing import Annotated, Any, TypedDict

from vramtop.estimator.budget import FieldsOf
from vramtop.monitor.doctor import DataFolderFacts, GpuFacts, InterpreterFacts, Issue, PermissionFacts, SystemFacts

from ...tty import TerminalFacts
from .version import Versioned


class DriverJson(TypedDict):
    """The driver."""

    problem: str | None
    """Why it cannot be used, in a sentence; null: it can."""
    driver_version: str | None
    """Its version."""
    nvml_version: str | None
    """Version of NVML."""
    cuda_version: str | None
    """Latest CUDA version that it supports."""
    kernel_module: str | None
    """Kind and version of the kernel module."""
    library: str | None
    """Path of the library that was loaded."""
    init_seconds: float | None
    """Time that NVML took to start."""
    unanswered: str | None
    """The call that had not returned at the time limit; null: all did."""


class DoctorJson(Versioned):
    """Facts about this machine for a bug report, without names of users and hosts."""

    findings: list[Annotated[dict[str, Any], FieldsOf(Issue)]]
    """What is wrong or unusual, the most severe first."""
    system: Annotated[dict[str, Any], FieldsOf(SystemFacts)]
    """The system."""
    driver: DriverJson
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
