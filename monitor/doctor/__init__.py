"""The doctor's report: facts about this machine for a bug report, without secrets and names.

Lives here: facts about the driver, vramtop's files, permissions and the system, and the issues found in them.
Callers: the ``doctor`` command.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .data_folder import DataFolderFacts as DataFolderFacts
    from .driver_facts import DriverFacts as DriverFacts, GpuFacts as GpuFacts
    from .interpreters import InterpreterFacts as InterpreterFacts
    from .issues import Issue as Issue, Severity as Severity, find_issues as find_issues
    from .permissions import PermissionFacts as PermissionFacts
    from .report import DoctorReport as DoctorReport, collect_report as collect_report
    from .system import SystemFacts as SystemFacts
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "data_folder": "DataFolderFacts",
            "driver_facts": "DriverFacts GpuFacts",
            "interpreters": "InterpreterFacts",
            "issues": "find_issues Issue Severity",
            "permissions": "PermissionFacts",
            "report": "collect_report DoctorReport",
            "system": "SystemFacts",
        },
    )
