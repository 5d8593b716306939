"""Preflight: checks before launch that everything a job needs is present.

Lives here: ``prepare`` builds the context of a job, ``run_checks`` runs the checks and collects their results.
Callers: the preflight screen and the ``preflight`` command.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .prepare import ESTIMATE_TIMEOUT_SECONDS as ESTIMATE_TIMEOUT_SECONDS, validate_job as validate_job
    from .run_checks import exit_code as exit_code
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "prepare": "ESTIMATE_TIMEOUT_SECONDS validate_job",
            "run_checks": "exit_code",
        },
    )
