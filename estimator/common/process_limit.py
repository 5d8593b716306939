"""The limit of processes and threads (``ulimit -u``, a container's ``pids.max``), recognised by its errors."""

import errno
import threading

from .errors import CannotTellError

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
