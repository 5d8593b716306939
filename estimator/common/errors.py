"""The exit codes of the command line, and the exceptions that users see, each as one clear sentence.

- ``VramtopError``: what went wrong, where, and what to do; never a traceback
    - ``InputError``, exit code 2: a file, flag or value is wrong
    - ``CannotTellError``, exit code 3: the input is fine, but the answer is unavailable here
    - ``CancelledError``, exit code 3: the request was cancelled before it was answered
"""

import errno
import threading
from enum import IntEnum
from typing import Literal

Verdict = Literal["fits", "tight", "does_not_fit", "unknown"]
"""Whether a job fits: of one GPU, of all, or of a changed job."""
NOT_REHEARSED = "not rehearsed: "
"""Beginning of the sentence about a program that has no kept rehearsal; the command that makes one follows."""
_MAX_CHARACTERS = 1500
"""The longest sentences name every known key."""


class ExitCode(IntEnum):
    """Exit code of a command."""

    DONE = 0
    """The command did its work; a check: the job fits, nothing fails."""
    NO = 1
    """The answer is no: the job does not fit, a check fails, it ran out of memory."""
    WRONG_INPUT = 2
    """A flag, a file or a value is wrong."""
    CANNOT_TELL = 3
    """The input is fine, but the answer is not to be had: no driver, no GPU, a setting is not known."""
    TIGHT = 4
    """The expected peak fits, the upper bound does not."""
    INTERNAL_ERROR = 70
    """A bug of vramtop; ``EX_SOFTWARE`` of sysexits.h."""
    INTERRUPTED = 130
    """Ctrl-C: 128 and the number of SIGINT, as shells count."""
    READER_GONE = 141
    """The program that reads the output has closed it: 128 and the number of SIGPIPE."""


class VramtopError(Exception):
    """A failure that a user can understand and act on.

    Args:
        message: one sentence: what is wrong, where, and what to do about it.
    """

    exit_code = ExitCode.CANNOT_TELL
    title = "vramtop cannot continue"
    output = ""
    """The end of the output of the program that failed, if one did."""

    @property
    def message(self) -> str:
        """The sentence for the user, without secrets; a very long one, which quotes some input, without its middle."""
        from .secrets import displayed

        text = displayed(str(self.args[0])) if self.args else self.title
        half = _MAX_CHARACTERS // 2
        return text if len(text) <= _MAX_CHARACTERS else f"{text[:half]} ... {text[-half:]}"


class InputError(VramtopError):
    """The user's input (a file, an option, a value) is wrong."""

    exit_code = ExitCode.WRONG_INPUT
    title = "Wrong input"


class CannotTellError(VramtopError):
    """The request is valid, but what is needed to answer it is not available."""

    exit_code = ExitCode.CANNOT_TELL
    title = "Cannot tell"


class CancelledError(VramtopError):
    """The request was cancelled; nothing waits for the answer."""

    exit_code = ExitCode.CANNOT_TELL
    title = "Cancelled"


# The limit of processes and threads (``ulimit -u``, a container's ``pids.max``), recognised by its errors.


_SENTENCE = (
    "cannot start another process or thread: this user (ulimit -u) or container is at its limit; end some processes "
    "or raise the limit"
)
_THREAD_WORDS = ("can't start new thread", "cannot join thread before it is started")
"""Messages of Python's RuntimeError; the second comes from a program that ends without having started a thread."""
_WORDS = (_THREAD_WORDS[0], "Thread creation failed", "pthread_create failed", "Resource temporarily unavailable")
"""Messages of Python, OpenMP, OpenBLAS and the system on stderr."""


class ProcessLimitError(CannotTellError):
    """No process or thread can be started."""

    title = "Too many processes"

    def __init__(self) -> None:
        super().__init__(_SENTENCE)


def process_limit_error(error: BaseException | str) -> ProcessLimitError | None:
    """Return the sentence for an error which says that no process or thread can be started; None for any other.

    Args:
        error: what was raised when a process or thread was started, or what a process wrote before it ended.
    """
    if isinstance(error, OSError):
        return ProcessLimitError() if error.errno == errno.EAGAIN else None
    words = _WORDS if isinstance(error, str) else _THREAD_WORDS if isinstance(error, RuntimeError) else ()
    return ProcessLimitError() if any(each in str(error) for each in words) else None


def caused_by_process_limit(error: BaseException) -> ProcessLimitError | None:
    """Return the sentence if the limit led to an error, perhaps by way of another one; None: it did not."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ProcessLimitError):
            return cause
        if isinstance(cause, RuntimeError) and (limit := process_limit_error(cause)):
            return limit
        cause = cause.__cause__ or cause.__context__
    return None


def require_threads(count: int) -> None:
    """Make sure that this many threads can be started, before something begins that could not be ended in order.

    Raises:
        ProcessLimitError: they cannot.
    """
    enough = threading.Event()
    threads = [threading.Thread(target=enough.wait, daemon=True) for _ in range(count)]
    try:
        for thread in threads:
            start_thread(thread)
    finally:
        enough.set()


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        ProcessLimitError: no thread can be started.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise process_limit_error(error) or error from None
