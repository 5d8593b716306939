"""Reads the run of one process and estimates its job, in the worker process; every failure becomes a reason."""

import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from vramtop.estimator.common.errors import CannotTellError, InputError, VramtopError
from vramtop.estimator.common.limits import PROCESS_READING
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.gpu_catalogue import match_nvml_name
from vramtop.estimator.job.job_file.changes import replaces_model

from ...board.board import NoBudgetReason
from ...history.corrections import Corrections
from ...host.process_info import UnreadableProcessError, remember_process_tree
from ...host.process_stat import is_running
from ..attachment import Attachment
from ..read_run import read_run
from ..saved_answers import SavedAnswers, with_saved_answers
from .worker_client import ReadRequest, RunAnswer

_TREE_SECONDS = 1.0
"""Age of the tree of processes that several readings share; ranks that are younger are read when a board has them."""
_EVIDENCE = ("training.", "lora.", "parallel.")
"""Tables whose settings show that a program trains."""


def prepare_process() -> None:
    """Prepare this process for one request after another: the tree of processes is read once a second at most."""
    remember_process_tree(_TREE_SECONDS)


class _OutOfTimeError(BaseException):
    """A reading took too long; no reader takes this for an error of what it reads."""


def answer(request: ReadRequest) -> RunAnswer:
    """Return the answer to a request; never raises."""
    try:
        with _in_time():
            return _read(request)
    except _OutOfTimeError:
        sentence = f"Process {request.pid} is not read: {PROCESS_READING.too_long()}."
        return RunAnswer(reason="too slow", sentence=sentence)
    except VramtopError as error:
        return RunAnswer(reason="unreadable", sentence=error.message)
    except Exception as error:  # noqa: BLE001 - one bad process must not stop the others
        sentence = f"reading it failed ({type(error).__name__}); this is a bug in vramtop, please report it"
        return RunAnswer(reason="unreadable", sentence=sentence, traceback=traceback.format_exc())


@contextmanager
def _in_time() -> Iterator[None]:
    """Limit the time of a reading; only a main thread, as the worker's, can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _OutOfTimeError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, PROCESS_READING.seconds or 0.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _read(request: ReadRequest) -> RunAnswer:
    pid, start_time = request.pid, request.start_time
    try:
        _require_environment(pid)
        read = partial(read_run, pid, start_time=start_time, on_gpu=request.on_gpu or None)
        settings = request.settings
        reread = None if replaces_model(settings) else lambda given: read(given=given)
        attachment = with_saved_answers(read(given=settings), SavedAnswers(), reread=reread)
    except UnreadableProcessError as error:
        return RunAnswer(reason=error.reason, sentence=error.message, too_early=error.reason == "starting")
    except VramtopError as error:
        reason: NoBudgetReason = "unreadable" if is_running((pid, start_time)) else "ended"
        return RunAnswer(reason=reason, sentence=error.message)
    return _with_budget(request, attachment)


def _require_environment(pid: int) -> None:
    """Raise an error if the environment, which names ranks and sharding, is hidden: the budget would be a wrong one."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - a path that is read once
            file.read(1)
    except PermissionError:
        sentence = f"This user may not read the environment of process {pid}; its owner or root may."
        raise UnreadableProcessError(sentence, reason="no access") from None
    except OSError:
        raise UnreadableProcessError(f"Process {pid} has ended.", reason="ended") from None


def _with_budget(request: ReadRequest, attachment: Attachment) -> RunAnswer:
    reading = attachment.reading
    missing, job = reading.still_missing(request.settings), reading.job(request.settings)
    reason: NoBudgetReason | None = None
    sentence = "vramtop does not know its model"
    of_training = (finding for finding in reading.findings if finding.key.startswith(_EVIDENCE))
    # any program that loads a model has a precision
    if missing and not any(finding.written or finding.key != "training.precision" for finding in of_training):
        reason, sentence = "job not read", "it does not say what it trains"
    elif "model.id" in missing:
        reason = "needs model"
    if reason is not None:
        return RunAnswer(
            attachment=attachment, job=job, missing=missing, reason=reason, sentence=sentence, too_early=True
        )
    gpu = match_nvml_name(request.gpu_name, request.gpu_bytes) if request.gpu_name and not job.target.gpu else None
    try:
        budget = estimate(job, gpu=gpu, environ=attachment.estimate_environ)
    except (InputError, CannotTellError) as error:
        return RunAnswer(
            attachment=attachment, job=job, missing=missing, reason="no budget", sentence=error.message, too_early=True
        )
    if request.corrects and not missing:
        budget = Corrections().corrected(
            budget, card=request.gpu_name, versions=attachment.versions, environ=attachment.estimate_environ
        )
    return RunAnswer(attachment=attachment, job=job, missing=missing, budget=budget, too_early=bool(missing))
