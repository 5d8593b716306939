"""From a job and where it is to run to all that its checks look at."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.cancellation import CancelToken, current_token
from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.estimation import MethodChoice, estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.trace.installed_packages import installed_packages, torch_build

from .checks.libraries import DISTRIBUTIONS
from .checks.model import find_model_location
from .checks.output_folders import REPORTING_MODULES
from .context.check_context import CheckContext, LazyValue
from .facts.hub_access import HubAccess, query_hub_access
from .facts.job_interpreter import JobInterpreter
from .facts.launch_environment import count_local_ranks, job_environment
from .facts.machine import Machine

ESTIMATE_TIMEOUT_SECONDS = 90.0
"""After so long, the closed form answers in place of anything deeper."""


def prepare(
    job: Job,
    machine: Machine,
    python: JobInterpreter,
    *,
    environ: Mapping[str, str],
    folder: Path,
    launch: Sequence[str] | None = None,
    method: MethodChoice = "auto",
    worker_python: str | None = None,
    seconds: float = ESTIMATE_TIMEOUT_SECONDS,
) -> CheckContext:
    """What the checks of a job look at; nothing of it is looked at yet.

    Args:
        job: the job.
        machine: where it is to run.
        python: what will run it.
        environ: of the shell in which it is to be started.
        folder: in which it is to be started.
        launch: its launch line; None: there is none.
        method: of the budget for the verdict.
        worker_python: the interpreter for that budget; searched for when left out.
        seconds: so long that budget may take.
    """
    environ = job_environment(environ, launch)
    modules = sorted({name for groups in REPORTING_MODULES.values() for group in groups for name in group})

    def budget(method: MethodChoice) -> Budget:
        return estimate(
            job,
            method=method,
            gpu=machine.gpu_type,
            memory_bytes=machine.memory_bytes,
            python=worker_python,
            environ=environ,
        )

    return CheckContext(
        job=job,
        machine=machine,
        environ=environ,
        working_folder=folder,
        quick_budget=LazyValue(lambda: budget("formula")),
        deepest_budget=LazyValue(lambda: _within(seconds, lambda: budget(method))),
        interpreter=python,
        packages=LazyValue(
            lambda: installed_packages(
                python.path,
                distributions=DISTRIBUTIONS,
                modules=modules,
                wishes_of=["transformers"],
                environ=environ,
            )
        ),
        torch_build=LazyValue(lambda: torch_build(python.path, environ=environ)),
        hub_access=LazyValue(lambda: _access(job, environ)),
        local_ranks=count_local_ranks(job, launch, environ, folder),
    )


def validate_job(context: CheckContext) -> None:
    """Raise what is wrong with the job itself; that its model is not here is for the checks to say.

    Raises:
        InputError: the job makes no sense.
    """
    try:
        resolve_model(context.job.model, environ=context.environ)
    except InputError:
        return
    with suppress(CannotTellError):
        context.quick_budget()


def _within(seconds: float, ask: Callable[[], Budget]) -> Budget:
    """The budget, given up after so many seconds."""
    cancel = CancelToken()
    timer = threading.Timer(seconds, cancel.cancel)
    timer.daemon = True
    timer.start()
    try:
        with current_token().on_cancel(cancel.cancel), cancel.scope():
            return ask()
    finally:
        timer.cancel()


def _access(job: Job, environ: Mapping[str, str]) -> HubAccess:
    place = find_model_location(job, environ)
    if place is None or place.hub_id is None:
        return HubAccess(answer="open", message="nothing is to be fetched", token_from=None)
    return query_hub_access(place.hub_id, environ)
