"""The limit of processes and threads (``ulimit -u``, a container's ``pids.max``): recognised where it strikes."""

import errno
import threading

from .errors import CannotTellError

_SENTENCE = (
    "no further process or thread can be started: the limit of this user (ulimit -u) or of this container is reached; "
    "end some processes or raise the limit, and try again"
)
_WORDS = (
    "can't start new thread",
    "Thread creation failed",
    "pthread_create failed",
    "Resource temporarily unavailable",
)
"""Of Python's RuntimeError; of OpenMP, OpenBLAS and the system on stderr."""


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
    words = _WORDS if isinstance(error, str) else _WORDS[:1] if isinstance(error, RuntimeError) else ()
    return ProcessLimitError() if any(each in str(error) for each in words) else None


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        ProcessLimitError: no thread can be started.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise process_limit_error(error) or error from None
