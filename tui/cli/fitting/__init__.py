"""Parts of ``vramtop fit``: its advice, waiting until a job fits, and the cards on which it would fit.

Lives here: what ``commands/fit.py`` prints and does beside the verdict itself.
Callers: ``commands``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .advice import (
        Advice as Advice,
        Machine as Machine,
        advice_json as advice_json,
        advice_lines as advice_lines,
        advise as advise,
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
            "advice": "Advice Machine advice_json advice_lines advise",
            "no_gpus": "report_without_gpus",
            "waiting": "WaitRequest exec_program program_to_start wait_until_it_fits",
        },
    )
