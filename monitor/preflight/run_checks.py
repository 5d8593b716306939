"""Runs all checks of a job in parallel, each with its time limit, and collects their results."""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.cancellation import CancelToken, current_token
from vramtop.estimator.common.errors import CancelledError, CannotTellError, ExitCode, InputError, VramtopError
from vramtop.estimator.common.process_limit import ProcessLimitError, start_thread
from vramtop.estimator.common.records import replace
from vramtop.estimator.estimation import MethodChoice, estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.model.checkpoint import job_of_model
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.model.hub import Refusal
from vramtop.estimator.readers.source.evidence import DeviceChoice
from vramtop.estimator.trace.installed_packages import installed_packages, torch_build

from ..attach.chosen_devices import ChosenDevices, chosen_devices
from .checks import CHECKS
from .context import Check, CheckContext, CheckResult, LazyValue, inconclusive
from .facts import (
    DISTRIBUTIONS,
    JobInterpreter,
    Machine,
    count_local_ranks,
    find_model_location,
    job_environment,
    query_hub_access,
)

_Results: TypeAlias = "queue.SimpleQueue[tuple[int, CheckResult] | None]"
"""Results by the position of their check; None: cancelled."""
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
_MIN_SECRET_CHARACTERS = 6
"""Shorter values are words that occur in sentences by chance."""


def run_checks(
    context: CheckContext,
    checks: Sequence[Check] = CHECKS,
    *,
    timeout_seconds: float | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> tuple[CheckResult, ...]:
    """Return the result of each check, in the order of the checks; a check that hangs is abandoned and reported.

    Args:
        context: what the checks examine.
        checks: that are made.
        timeout_seconds: upper limit for every check, beside its own.
        on_result: called with each result as it comes, on this thread.

    Raises:
        CancelledError: cancelled by a ``CancelToken``, and with it the workers that the checks wait for.
    """
    results: _Results = queue.SimpleQueue()
    token = current_token()
    with token.on_cancel(lambda: results.put(None)):
        start = time.monotonic()
        for position, check in enumerate(checks):
            arguments = (position, check, context, results, token)
            thread = threading.Thread(target=_run_one, args=arguments, name=f"preflight {check.name}", daemon=True)
            try:
                start_thread(thread)
            except ProcessLimitError as error:
                results.put((position, inconclusive(error.message)))
        limits = [min(check.timeout_seconds, timeout_seconds or check.timeout_seconds) for check in checks]
        return _collect(checks, context, results, start=start, limits=limits, on_result=on_result)


def exit_code(results: Sequence[CheckResult]) -> ExitCode:
    """Return 1 if a check fails, 3 if it is unknown whether the job may start, else 0."""
    if any(result.status == "failure" for result in results):
        return ExitCode.NO
    unknown = any(result.unknown and result.decisive for result in results)
    return ExitCode.CANNOT_TELL if unknown else ExitCode.DONE


def _collect(
    checks: Sequence[Check],
    context: CheckContext,
    results: "_Results",
    *,
    start: float,
    limits: Sequence[float],
    on_result: Callable[[CheckResult], None] | None,
) -> tuple[CheckResult, ...]:
    found: dict[int, CheckResult] = {}
    while len(found) < len(checks):
        running = [position for position in range(len(checks)) if position not in found]
        next_limit = min(limits[position] for position in running)
        try:
            result = results.get(timeout=max(0.0, start + next_limit - time.monotonic()))
            if result is None:
                raise CancelledError("cancelled")
            arrived = [result]
        except queue.Empty:
            late = [position for position in running if start + limits[position] <= time.monotonic()]
            arrived = [(position, _timed_out(limits[position])) for position in late]
        for position, each in arrived:
            if position not in found:
                found[position] = _without_secrets(_named(each, checks[position]), context)
                if on_result is not None:
                    on_result(found[position])
    return tuple(found[position] for position in range(len(checks)))


def _run_one(position: int, check: Check, context: CheckContext, results: "_Results", token: CancelToken) -> None:
    result = inconclusive("the check itself failed", "report it with vramtop's output")
    try:
        with token.scope():
            result = check.run(context)
    except VramtopError as error:
        result = inconclusive(error.message)
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""
        result = inconclusive(f"{file}{error.strerror or type(error).__name__}")
    finally:
        results.put((position, result))


def _named(result: CheckResult, check: Check) -> CheckResult:
    return replace(result, name=check.name, decisive=check.decisive)


def _timed_out(seconds: float) -> CheckResult:
    return inconclusive(
        f"no answer within {seconds:g} seconds", "look for a hanging disk, network or program, or raise --timeout"
    )


def _without_secrets(result: CheckResult, context: CheckContext) -> CheckResult:
    """Return the result without the value of any variable that holds a secret, wherever a library may have put one."""
    keys = {context.job.run.inference_key, *context.job.run.required_environment}
    secrets = {
        value.strip()
        for name, value in context.environ.items()
        if len(value.strip()) >= _MIN_SECRET_CHARACTERS
        and not value.strip().startswith("/")  # the path of a key file is not a secret
        and (name in keys or any(word in name.upper() for word in _SECRET_WORDS))
    }
    found, advice = result.found, result.advice
    for secret in sorted(secrets, key=len, reverse=True):
        found = found.replace(secret, "(not shown)")
        advice = advice.replace(secret, "(not shown)") if advice else advice
    return replace(result, found=found, advice=advice)


# Builds the context of the preflight checks from a job, its launch line and the machine that it is to run on.


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
