"""Basics that every part of vramtop uses: errors with exit codes, sizes, paths, untrusted files, cancellation.

Lives here: code without a subject of its own that must work in one way everywhere.
Callers: anyone. Imports nothing else of vramtop.
"""

from typing import TYPE_CHECKING

from .lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .cancellation import CancelToken as CancelToken, current_token as current_token
    from .errors import (
        CancelledError as CancelledError,
        CannotTellError as CannotTellError,
        ExitCode as ExitCode,
        InputError as InputError,
        VramtopError as VramtopError,
    )
    from .http_fetch import Answer as Answer, fetch as fetch
    from .limits import (
        Deadline as Deadline,
        Limit as Limit,
        LimitError as LimitError,
        decode_json as decode_json,
        read_all as read_all,
    )
    from .paths import (
        JOB_FOLDERS as JOB_FOLDERS,
        current_folder as current_folder,
        expand_user as expand_user,
        is_file as is_file,
        is_folder as is_folder,
        note_job_folder as note_job_folder,
        working_folder as working_folder,
    )
    from .private_files import (
        PRIVATE as PRIVATE,
        make_own_folder as make_own_folder,
        open_private as open_private,
        write_private as write_private,
    )
    from .process_limit import (
        ProcessLimitError as ProcessLimitError,
        caused_by_process_limit as caused_by_process_limit,
        process_limit_error as process_limit_error,
        require_threads as require_threads,
        start_thread as start_thread,
    )
    from .reserved_memory import (
        ReservedMemory as ReservedMemory,
        estimates_only_figures as estimates_only_figures,
        how_reserved_memory_is_found as how_reserved_memory_is_found,
        only_figures as only_figures,
        with_reserved_memory as with_reserved_memory,
    )
    from .secrets import (
        displayed as displayed,
        displayed_arguments as displayed_arguments,
        displayed_data as displayed_data,
        mask_line as mask_line,
        mask_strings as mask_strings,
        show_secrets as show_secrets,
    )
    from .sizes import (
        GIB as GIB,
        KIB as KIB,
        MIB as MIB,
        TIB as TIB,
        UNSEEN_BYTES as UNSEEN_BYTES,
        format_apart as format_apart,
        format_gib as format_gib,
        format_size as format_size,
        parse_size as parse_size,
    )
    from .trust import (
        Writers as Writers,
        find_program as find_program,
        look_up_program as look_up_program,
        own_writers as own_writers,
        process_owner as process_owner,
        user_name as user_name,
        why_not_found as why_not_found,
        writers_of_program as writers_of_program,
    )
    from .untrusted_files import (
        MAX_CONFIG_BYTES as MAX_CONFIG_BYTES,
        TooLargeError as TooLargeError,
        check_nesting as check_nesting,
        open_file as open_file,
        parse_toml as parse_toml,
        read_file as read_file,
        read_start as read_start,
    )
    from .version import DISTRIBUTION as DISTRIBUTION, version_number as version_number
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "cancellation": "CancelToken current_token",
            "reserved_memory": (
                "estimates_only_figures how_reserved_memory_is_found only_figures ReservedMemory with_reserved_memory"
            ),
            "errors": "CancelledError CannotTellError ExitCode InputError VramtopError",
            "http_fetch": "Answer fetch",
            "limits": "Deadline decode_json Limit LimitError read_all",
            "paths": ("current_folder expand_user is_file is_folder JOB_FOLDERS note_job_folder working_folder"),
            "private_files": "make_own_folder open_private PRIVATE write_private",
            "process_limit": (
                "caused_by_process_limit process_limit_error ProcessLimitError require_threads start_thread"
            ),
            "secrets": ("displayed displayed_arguments displayed_data mask_line mask_strings show_secrets"),
            "sizes": "format_apart format_gib format_size GIB KIB MIB parse_size TIB UNSEEN_BYTES",
            "trust": (
                "find_program look_up_program own_writers process_owner user_name why_not_found Writers "
                "writers_of_program"
            ),
            "untrusted_files": (
                "check_nesting MAX_CONFIG_BYTES open_file parse_toml read_file read_start TooLargeError"
            ),
            "version": "DISTRIBUTION version_number",
        },
    )
