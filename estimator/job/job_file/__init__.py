"""The job file: read, converted, changed, edited and saved.

Lives here: TOML to ``Job`` and back, changes by dotted keys, and the words for what is wrong with a value.
Callers: anyone, mostly through ``job``. Imports the job's settings and ``common``.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .changes import (
        ABOUT_THE_MODEL as ABOUT_THE_MODEL,
        check_value as check_value,
        job_differences as job_differences,
        parse_assignment as parse_assignment,
        replaces_model as replaces_model,
        with_changes as with_changes,
        with_old_model_removed as with_old_model_removed,
    )
    from .convert import (
        check_job as check_job,
        job_from_mapping as job_from_mapping,
        job_to_mapping as job_to_mapping,
    )
    from .edit import edit_job_file as edit_job_file, toml_value as toml_value, unified_diff as unified_diff
    from .keys import choices_of as choices_of, job_keys as job_keys, table_struct as table_struct
    from .load import load_job as load_job, written_keys as written_keys
    from .save import job_to_toml as job_to_toml, save_job as save_job
    from .user_code import model_code as model_code, names_user_code as names_user_code
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "changes": (
                "ABOUT_THE_MODEL check_value job_differences parse_assignment replaces_model with_changes "
                "with_old_model_removed"
            ),
            "convert": "check_job job_from_mapping job_to_mapping",
            "edit": "edit_job_file toml_value unified_diff",
            "keys": "choices_of job_keys table_struct",
            "load": "load_job written_keys",
            "save": "job_to_toml save_job",
            "user_code": "model_code names_user_code",
        },
    )
