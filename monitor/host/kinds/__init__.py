"""Kinds of processes: training, server, notebook, desktop, helper, by tables of programs with one row each.

Lives here: the tables, and the search in them by command line, which reads nothing.
Callers: the ``board`` for each of its process rows; reports and screens to name what a process is; ``host`` itself to
find the processes of a server.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .known_program import KnownProgram as KnownProgram, ProcessKind as ProcessKind
    from .process_kind import (
        has_server_title as has_server_title,
        identify as identify,
        kind_label as kind_label,
        program_of as program_of,
        program_path as program_path,
    )
    from .session_programs import starts_sessions as starts_sessions
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "known_program": "KnownProgram ProcessKind",
            "process_kind": "has_server_title identify kind_label program_of program_path",
            "session_programs": "starts_sessions",
        },
    )
