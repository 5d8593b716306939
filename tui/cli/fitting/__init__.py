"""Parts of ``vramtop fit`` and ``run --fit``: the check, its advice, the GPUs of this machine, and waiting for them.

Lives here: what commands that place a job on GPUs print and do beside the verdict itself.
Callers: ``commands`` and ``placing``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .advice import (
        Advice as Advice,
        Machine as Machine,
        advice_lines as advice_lines,
        advise as advise,
        suggestions_json as suggestions_json,
    )
    from .fit_check import (
        EXIT_CODES as EXIT_CODES,
        FitCheck as FitCheck,
        check_here as check_here,
        describe_machine as describe_machine,
        gpu_and_memory as gpu_and_memory,
        judge_on as judge_on,
        report_fit as report_fit,
    )
    from .fleet_check import (
        check_on_fleet as check_on_fleet,
        refuse_what_is_for_this_machine as refuse_what_is_for_this_machine,
    )
    from .guard import guarded as guarded
    from .machine_gpus import (
        NoGpusError as NoGpusError,
        committed_bytes as committed_bytes,
        open_source as open_source,
        read_gpus as read_gpus,
        select_devices as select_devices,
    )
    from .no_gpus import report_without_gpus as report_without_gpus
    from .waiting import (
        WaitRequest as WaitRequest,
        exec_program as exec_program,
        program_to_start as program_to_start,
        wait_until_it_fits as wait_until_it_fits,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "advice": "Advice advice_lines advise Machine suggestions_json",
            "fleet_check": "check_on_fleet refuse_what_is_for_this_machine",
            "fit_check": "check_here describe_machine EXIT_CODES FitCheck gpu_and_memory judge_on report_fit",
            "machine_gpus": "committed_bytes NoGpusError open_source read_gpus select_devices",
            "guard": "guarded",
            "no_gpus": "report_without_gpus",
            "waiting": "WaitRequest exec_program program_to_start wait_until_it_fits",
        },
    )
