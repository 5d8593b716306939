"""The exit codes of the command line, and the exceptions that users see, each as one clear sentence.

- ``VramtopError``: what went wrong, where, and what to do; never a traceback
    - ``InputError``, exit code 2: a file, flag or value is wrong
    - ``CannotTellError``, exit code 3: the input is fine, but the answer is unavailable here
    - ``CancelledError``, exit code 3: the request was cancelled before it was answered
"""

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
