"""The command-line flags that describe a job: one for each key of the job file, and the names of other tools.

Lives here: the flags, what each sets, the words as people type them, and the settings that all of them make together.
Callers: ``job`` itself and ``cli``. No Textual.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .flag_settings import FlagSettings as FlagSettings, settings_of_flags as settings_of_flags
    from .gpu_flags import (
        GPU_TYPE_FLAGS as GPU_TYPE_FLAGS,
        GpuAction as GpuAction,
        GpuTypeAction as GpuTypeAction,
        gpu_count as gpu_count,
    )
    from .job_flags import (
        TRUST_KEY as TRUST_KEY,
        add_job_arguments as add_job_arguments,
        flags_by_key as flags_by_key,
        value_alone as value_alone,
    )
    from .method_flag import with_method as with_method
    from .typed_words import normal_words as normal_words
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "flag_settings": "FlagSettings settings_of_flags",
            "gpu_flags": "gpu_count GpuAction GpuTypeAction GPU_TYPE_FLAGS",
            "job_flags": "add_job_arguments flags_by_key TRUST_KEY value_alone",
            "method_flag": "with_method",
            "typed_words": "normal_words",
        },
    )
