"""Runs all checks of a job in parallel, each with its time limit, and collects their results."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from vramtop.estimator.common.cancellation import CancelToken, current_token
from vramtop.estimator.common.errors import CancelledError, ExitCode, VramtopError
from vramtop.estimator.common.process_limit import ProcessLimitError, start_thread
from vramtop.estimator.common.records import replace

from .check import Check, CheckContext, CheckResult, inconclusive
from .checks import CHECKS

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
                advice = "look for a hanging disk, network or program, or raise --timeout"
                arrived = [
                    (position, inconclusive(f"no answer within {limits[position]:g} seconds", advice))
                    for position in late
                ]
            for position, each in arrived:
                if position not in found:
                    named = replace(each, name=checks[position].name, decisive=checks[position].decisive)
                    found[position] = _without_secrets(named, context)
                    if on_result is not None:
                        on_result(found[position])
        return tuple(found[position] for position in range(len(checks)))


def exit_code(results: Sequence[CheckResult]) -> ExitCode:
    """Return 1 if a check fails, 3 if it is unknown whether the job may start, else 0."""
    if any(result.status == "failure" for result in results):
        return ExitCode.NO
    unknown = any(result.unknown and result.decisive for result in results)
    return ExitCode.CANNOT_TELL if unknown else ExitCode.DONE


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
