"""The limit of processes and threads (``ulimit -u``, a container's ``pids.max``): recognised where it strikes."""

import errno

from .errors import CannotTellError

_SENTENCE = (
    "no further process or thread can be started: the limit of this user (ulimit -u) or of this container is reached; "
    "end some processes or raise the limit, and try again"
)


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
    reached = "can't start new thread" in str(error)  # a RuntimeError of Python's
    if isinstance(error, str):
        reached = reached or "Thread creation failed" in error or "Resource temporarily unavailable" in error
    return ProcessLimitError() if reached and isinstance(error, RuntimeError | str) else None
