"""The host: processes, their tree, their containers and interpreters, its memory, and ending a process.

Lives here: everything read from psutil and /proc.
Callers: every other room of the monitor.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .available_ram import (
        RANKS_OF_DESCRIBED_HOST as RANKS_OF_DESCRIBED_HOST,
        HostRam as HostRam,
        HostVerdict as HostVerdict,
        available_host_memory as available_host_memory,
        host_total_bytes as host_total_bytes,
        host_verdict as host_verdict,
    )
    from .idleness import IdleTracker as IdleTracker, machine_is_idle as machine_is_idle
    from .interpreter import find_interpreter as find_interpreter, installed_versions as installed_versions
    from .plain_text import (
        INVISIBLE_CHARACTERS as INVISIBLE_CHARACTERS,
        displayed_line as displayed_line,
        duration_text as duration_text,
        sanitize_line as sanitize_line,
        strip_invisible as strip_invisible,
    )
    from .process_identity import (
        HOST_PID_NAMESPACE as HOST_PID_NAMESPACE,
        is_running as is_running,
        is_same_start as is_same_start,
        namespace_pids as namespace_pids,
        read_stat as read_stat,
        start_time_of as start_time_of,
    )
    from .process_info import (
        ProcessInfo as ProcessInfo,
        UnreadableProcessError as UnreadableProcessError,
        ancestors as ancestors,
        parse_rank as parse_rank,
        read_process as read_process,
        remember_process_tree as remember_process_tree,
    )
    from .process_origin import (
        ProcessOrigin as ProcessOrigin,
        ancestor_pids as ancestor_pids,
        read_origin as read_origin,
    )
    from .process_strings import read_command_line as read_command_line, read_environ as read_environ
    from .processes import (
        ENDED_NOTE as ENDED_NOTE,
        ZOMBIE_NOTE as ZOMBIE_NOTE,
        ProcessDirectory as ProcessDirectory,
        ProcessFacts as ProcessFacts,
    )
    from .run_processes import RunProcesses as RunProcesses, find_run_processes as find_run_processes
    from .terminate import (
        GRACE_SECONDS as GRACE_SECONDS,
        ProcessTermination as ProcessTermination,
        TerminationBatch as TerminationBatch,
        refusal_reason as refusal_reason,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "available_ram": (
                "available_host_memory host_total_bytes host_verdict HostRam HostVerdict RANKS_OF_DESCRIBED_HOST"
            ),
            "idleness": "IdleTracker machine_is_idle",
            "interpreter": "find_interpreter installed_versions",
            "plain_text": "displayed_line duration_text INVISIBLE_CHARACTERS sanitize_line strip_invisible",
            "process_identity": "HOST_PID_NAMESPACE is_running is_same_start namespace_pids read_stat start_time_of",
            "process_info": (
                "ancestors parse_rank ProcessInfo read_process remember_process_tree UnreadableProcessError"
            ),
            "process_origin": "ancestor_pids ProcessOrigin read_origin",
            "process_strings": "read_command_line read_environ",
            "processes": "ENDED_NOTE ProcessDirectory ProcessFacts ZOMBIE_NOTE",
            "run_processes": "find_run_processes RunProcesses",
            "terminate": "GRACE_SECONDS ProcessTermination refusal_reason TerminationBatch",
        },
    )
