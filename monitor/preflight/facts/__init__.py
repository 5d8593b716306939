"""Facts for the preflight checks: interpreter, packages, model files, disk space, hub access, launch line and machine.

Lives here: collection only; the checks judge.
Callers: ``context``, ``checks`` and ``prepare``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .disk_space import (
        free_bytes as free_bytes,
        has_no_inodes as has_no_inodes,
        nearest_existing_folder as nearest_existing_folder,
        write_error as write_error,
    )
    from .hub_access import (
        HubAccess as HubAccess,
        query_hub_access as query_hub_access,
    )
    from .job_interpreter import JobInterpreter as JobInterpreter, find_job_interpreter as find_job_interpreter
    from .launch_environment import count_local_ranks as count_local_ranks, job_environment as job_environment
    from .machine import (
        DRIVER_TIMEOUT_SECONDS as DRIVER_TIMEOUT_SECONDS,
        Machine as Machine,
        described_machine as described_machine,
        this_machine as this_machine,
    )
    from .model_files import ModelFolder as ModelFolder
    from .model_location import (
        ModelLocation as ModelLocation,
        find_model_location as find_model_location,
        inspect_model as inspect_model,
        is_downloaded as is_downloaded,
    )
    from .required_packages import (
        DISTRIBUTIONS as DISTRIBUTIONS,
        REPORTING_MODULES as REPORTING_MODULES,
        RequiredLibrary as RequiredLibrary,
        required_libraries as required_libraries,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "disk_space": "free_bytes has_no_inodes nearest_existing_folder write_error",
            "hub_access": "HubAccess query_hub_access",
            "job_interpreter": "find_job_interpreter JobInterpreter",
            "launch_environment": "count_local_ranks job_environment",
            "machine": "described_machine DRIVER_TIMEOUT_SECONDS Machine this_machine",
            "model_files": "ModelFolder",
            "model_location": "find_model_location inspect_model is_downloaded ModelLocation",
            "required_packages": "DISTRIBUTIONS REPORTING_MODULES required_libraries RequiredLibrary",
        },
    )
