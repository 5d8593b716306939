"""All checks of a job, side by side, each with its time limit."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from vramtop.estimator.common.cancellation import CancelToken, current_token
from vramtop.estimator.common.errors import CancelledError, VramtopError

from .checks.cuda import ComputeCapabilityCheck, CudaRuntimeCheck, DriverCheck, VisibleDevicesCheck
from .checks.environment_keys import EnvironmentKeysCheck, HubTokenCheck
from .checks.libraries import LibrariesCheck
from .checks.memory import FitVerdictCheck, HostMemoryCheck, LowerBoundCheck
from .checks.model import ModelAccessCheck, ModelFilesCheck
from .checks.nccl import InfiniBandCheck, NetworkInterfaceCheck, RendezvousCheck, SharedMemoryCheck
from .checks.output_folders import LogFolderCheck, OutputFolderCheck, ReportingTargetsCheck
from .context.check import Check, CheckResult
from .context.check_context import CheckContext

CHECKS: tuple[type[Check], ...] = (
    *(DriverCheck, CudaRuntimeCheck, ComputeCapabilityCheck, VisibleDevicesCheck),
    *(LowerBoundCheck, FitVerdictCheck, HostMemoryCheck),
    *(ModelFilesCheck, ModelAccessCheck, HubTokenCheck, EnvironmentKeysCheck),
    *(OutputFolderCheck, LogFolderCheck, ReportingTargetsCheck),
    LibrariesCheck,
    *(NetworkInterfaceCheck, InfiniBandCheck, SharedMemoryCheck, RendezvousCheck),
)
"""In the order in which they are shown."""
_Answers: TypeAlias = "queue.SimpleQueue[tuple[int, CheckResult] | None]"
"""None: it was given up."""
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
_SHORTEST_SECRET = 6
"""Shorter values are words that stand in sentences by chance."""


def run_checks(
    context: CheckContext,
    checks: Sequence[Check] | None = None,
    *,
    seconds: float | None = None,
    told: Callable[[CheckResult], None] | None = None,
) -> tuple[CheckResult, ...]:
    """What each check says, in the order of the checks. A check that hangs is left behind, and said to.

    Args:
        context: what they look at.
        checks: all when left out.
        seconds: so long each may take at most; its own limit when left out.
        told: called with each outcome as it comes, on this thread.

    Raises:
        CancelledError: it was given up (``CancelToken``), and with it the workers that the checks wait for.
    """
    checks = [kind() for kind in CHECKS] if checks is None else checks
    answers: _Answers = queue.SimpleQueue()
    cancel = current_token()
    with cancel.on_cancel(lambda: answers.put(None)):
        begun = time.monotonic()
        for place, check in enumerate(checks):
            work = threading.Thread(
                target=_work,
                args=(place, check, context, answers, cancel),
                name=f"preflight {check.name}",
                daemon=True,
            )
            work.start()
        return _gather(checks, context, answers, begun=begun, seconds=seconds, told=told)


def _gather(
    checks: Sequence[Check],
    context: CheckContext,
    answers: "_Answers",
    *,
    begun: float,
    seconds: float | None,
    told: Callable[[CheckResult], None] | None,
) -> tuple[CheckResult, ...]:
    ends = {
        place: begun + min(check.timeout_seconds, seconds or check.timeout_seconds)
        for place, check in enumerate(checks)
    }
    found: dict[int, CheckResult] = {}
    while len(found) < len(checks):
        next_end = min(end for place, end in ends.items() if place not in found)
        try:
            answer = answers.get(timeout=max(0.0, next_end - time.monotonic()))
            if answer is None:
                raise CancelledError("given up")
            answered = [answer]
        except queue.Empty:
            now = time.monotonic()
            late = [place for place, end in ends.items() if place not in found and end <= now]
            answered = [(place, _late(checks[place], ends[place] - begun)) for place in late]
        for place, outcome in answered:
            if place not in found:
                found[place] = _without_secrets(outcome, context)
                if told is not None:
                    told(found[place])
    return tuple(found[place] for place in range(len(checks)))


def exit_code(outcomes: Sequence[CheckResult]) -> int:
    """1: something fails; 3: nothing does, but whether the job may start cannot be told; 0: it may, as far as seen."""
    if any(outcome.status == "failure" for outcome in outcomes):
        return 1
    return 3 if any(outcome.unknown and outcome.decisive for outcome in outcomes) else 0


def _work(place: int, check: Check, context: CheckContext, answers: "_Answers", cancel: CancelToken) -> None:
    outcome = check.inconclusive("the check itself failed", "report it, with what vramtop wrote to the terminal")
    try:
        with cancel.scope():
            outcome = check.run(context)
    except VramtopError as error:
        outcome = check.inconclusive(error.message)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        outcome = check.inconclusive(f"{where}{error.strerror or type(error).__name__}")
    finally:
        answers.put((place, outcome))


def _late(check: Check, seconds: float) -> CheckResult:
    return check.inconclusive(
        f"no answer within {seconds:g} seconds", "look for a disk, a network or a program that hangs; or --timeout"
    )


def _without_secrets(outcome: CheckResult, context: CheckContext) -> CheckResult:
    """The outcome without any value of a variable that holds a secret, wherever a library may have put one."""
    keys = {context.job.run.inference_key, *context.job.run.required_environment}
    secrets = sorted(
        (
            value.strip()
            for name, value in context.environ.items()
            if len(value.strip()) >= _SHORTEST_SECRET
            and not value.strip().startswith("/")  # the path of a key is none
            and (name in keys or any(word in name.upper() for word in _SECRET_WORDS))
        ),
        key=len,
        reverse=True,
    )
    found, advice = outcome.found, outcome.advice
    for secret in secrets:
        found = found.replace(secret, "(not shown)")
        advice = advice.replace(secret, "(not shown)") if advice else advice
    return replace(outcome, found=found, advice=advice)
