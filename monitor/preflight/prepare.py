"""Context of a job's preflight checks, from the job, its launch line and the machine that it is to run on."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from vramtop.estimator.budget import Budget
from vramtop.estimator.common import limits
from vramtop.estimator.common.cancellation import CancelToken, current_token
from vramtop.estimator.common.errors import CannotTellError, InputError, VramtopError
from vramtop.estimator.estimation import MethodChoice, estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.model.checkpoint import job_of_model
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.model.hub import Refusal, ask_hub, hub_host
from vramtop.estimator.readers.source.evidence import DeviceChoice
from vramtop.estimator.trace.installed_packages import installed_packages, torch_build

from ..attach.chosen_devices import ChosenDevices, chosen_devices
from .check import CheckContext
from .checks.libraries import DISTRIBUTIONS
from .job_launch import JobInterpreter, count_local_ranks, job_environment
from .machine import Machine
from .model_files import find_model_location

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
    choice: DeviceChoice | None = None,
    method: MethodChoice = "auto",
    worker_python: str | None = None,
    seconds: float = ESTIMATE_TIMEOUT_SECONDS,
    correct: Callable[[Budget], Budget] = lambda budget: budget,
    rehearses: bool = False,
) -> CheckContext:
    """Return the context of a job's checks; its slow facts are not computed yet.

    Args:
        job: the job.
        machine: machine that it is to run on.
        interpreter: Python that will run it.
        environ: environment of the shell in which it is to be started.
        folder: folder in which it is to be started.
        launch: its launch line; None: there is none.
        choice: the GPUs that its launch line or script chooses; None: those of the environment.
        method: method of the estimate for the verdict.
        worker_python: interpreter for that estimate; searched for if left out.
        seconds: time limit of that estimate.
        correct: corrects a budget by measured runs.
        rehearses: the user has asked for the job's program to be run, which is done once.
    """
    environ = job_environment(environ, launch)
    devices = ChosenDevices()
    if machine.snapshot is not None:
        try:
            devices = chosen_devices(choice, environ, machine.snapshot.gpus)
        except InputError:  # a choice of no GPU, which the check of the visible devices reports
            if choice is not None:
                devices = ChosenDevices(selection=(), origin=choice.origin)
                environ["CUDA_VISIBLE_DEVICES"] = choice.visible or choice.text
    environ = devices.environ(environ)
    model = None
    with suppress(InputError):  # which the checks of the model report
        model = resolve_model(job.model, environ=environ)
    job = job if model is None else job_of_model(job, model)

    def rehearse() -> Budget:
        from vramtop.estimator.trace.rehearsal import rehearse_job

        gpu, size = machine.gpu_type, machine.memory_bytes
        return rehearse_job(job, gpu=gpu, memory_bytes=size, environ=environ, may_run=rehearses).budget

    rehearsed = LazyValue(rehearse)

    def budget(method: MethodChoice) -> Budget:
        if job.program is not None:
            return correct(rehearsed())
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
        devices=devices,
        working_folder=folder,
        quick_budget=LazyValue(lambda: budget("formula")),
        deepest_budget=LazyValue(lambda: _within(seconds, lambda: budget(method))),
        interpreter=interpreter,
        packages=LazyValue(
            lambda: installed_packages(
                interpreter.path,
                distributions=DISTRIBUTIONS,
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


_Value = TypeVar("_Value")


class LazyValue(Generic[_Value]):
    """A value that is computed once, by the first thread that asks; other threads wait for it.

    Args:
        compute: returns the value, or raises a VramtopError, which is then raised for every caller.
    """

    def __init__(self, compute: Callable[[], _Value]) -> None:
        self._compute = compute
        self._lock = threading.Lock()
        self._value: _Value | VramtopError | None = None

    def __call__(self) -> _Value:
        """Return the value."""
        with self._lock:
            if self._value is None:
                try:
                    self._value = self._compute()
                except VramtopError as error:
                    self._value = error
        if isinstance(self._value, VramtopError):
            raise self._value
        return self._value


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


def _hub_access(job: Job, environ: Mapping[str, str]) -> Refusal:
    location = find_model_location(job, environ)
    if location is None or location.hub_id is None:
        return Refusal("open", "nothing needs to be downloaded")
    return query_hub_access(location.hub_id, environ)


def query_hub_access(model: str, environ: Mapping[str, str]) -> Refusal:
    """Request the header of the model's config.json, to which the same restrictions apply as to its weights.

    A redirection is not followed: it shows that access is granted (``open``).

    Args:
        model: hub id.
        environ: environment with HF_ENDPOINT, the token and the offline variables.
    """
    answer = ask_hub(model, environ, limits.HUB_ACCESS, method="HEAD")
    return answer if isinstance(answer, Refusal) else Refusal("open", f"{hub_host(environ)} gives it")
