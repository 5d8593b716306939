"""Builds the context of the preflight checks from a job, its launch line and the machine that it is to run on."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from vramtop.estimator.budget import Budget
from vramtop.estimator.common import CancelToken, CannotTellError, InputError, current_token
from vramtop.estimator.estimation import MethodChoice, estimate
from vramtop.estimator.job import Job
from vramtop.estimator.model import job_of_model, resolve_model
from vramtop.estimator.trace import torch_build
from vramtop.estimator.trace.installed_packages import installed_packages

from .context import CheckContext, LazyValue
from .facts import (
    DISTRIBUTIONS,
    REPORTING_MODULES,
    HubAccess,
    JobInterpreter,
    Machine,
    count_local_ranks,
    find_model_location,
    job_environment,
    query_hub_access,
)

ESTIMATE_TIMEOUT_SECONDS = 90.0
"""After this time the closed form answers in place of a deeper estimate."""


def prepare(
    job: Job,
    machine: Machine,
    interpreter: JobInterpreter,
    *,
    environ: Mapping[str, str],
    folder: Path,
    launch: Sequence[str] | None = None,
    method: MethodChoice = "auto",
    worker_python: str | None = None,
    seconds: float = ESTIMATE_TIMEOUT_SECONDS,
    correct: Callable[[Budget], Budget] = lambda budget: budget,
) -> CheckContext:
    """Return the context of a job's checks; its slow facts are not computed yet.

    Args:
        job: the job.
        machine: machine that it is to run on.
        interpreter: Python that will run it.
        environ: environment of the shell in which it is to be started.
        folder: folder in which it is to be started.
        launch: its launch line; None: there is none.
        method: method of the estimate for the verdict.
        worker_python: interpreter for that estimate; searched for if left out.
        seconds: time limit of that estimate.
        correct: corrects a budget by measured runs.
    """
    environ = job_environment(environ, launch)
    model = None
    with suppress(InputError):  # which the checks of the model report
        model = resolve_model(job.model, environ=environ)
    job = job if model is None else job_of_model(job, model)
    modules = sorted({name for groups in REPORTING_MODULES.values() for group in groups for name in group})

    def budget(method: MethodChoice) -> Budget:
        found = estimate(
            job,
            method=method,
            gpu=machine.gpu_type,
            memory_bytes=machine.memory_bytes,
            python=worker_python,
            environ=environ,
        )
        return correct(found)

    return CheckContext(
        job=job,
        machine=machine,
        environ=environ,
        working_folder=folder,
        quick_budget=LazyValue(lambda: budget("formula")),
        deepest_budget=LazyValue(lambda: _within(seconds, lambda: budget(method))),
        interpreter=interpreter,
        packages=LazyValue(
            lambda: installed_packages(
                interpreter.path,
                distributions=DISTRIBUTIONS,
                modules=modules,
                requirements_of=["transformers"],
                environ=environ,
            )
        ),
        torch_build=LazyValue(lambda: torch_build(interpreter.path, environ=environ)),
        hub_access=LazyValue(lambda: _hub_access(job, environ)),
        local_ranks=count_local_ranks(job, launch, environ, folder),
    )


def validate_job(context: CheckContext) -> None:
    """Raise an error if the job itself is invalid; a missing model is left to the checks.

    Raises:
        InputError: the job is invalid.
    """
    try:
        resolve_model(context.job.model, environ=context.environ)
    except InputError:
        return
    with suppress(CannotTellError):
        context.quick_budget()


def _within(seconds: float, estimate: Callable[[], Budget]) -> Budget:
    """Return the budget; the estimate is cancelled after this time."""
    token = CancelToken()
    timer = threading.Timer(seconds, token.cancel)
    timer.daemon = True
    timer.start()
    try:
        with current_token().on_cancel(token.cancel), token.scope():
            return estimate()
    finally:
        timer.cancel()


def _hub_access(job: Job, environ: Mapping[str, str]) -> HubAccess:
    location = find_model_location(job, environ)
    if location is None or location.hub_id is None:
        return HubAccess(answer="open", message="nothing needs to be downloaded", token_from=None)
    return query_hub_access(location.hub_id, environ)
