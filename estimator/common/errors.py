"""The exceptions that vramtop shows to its users, each as one clear sentence.

- ``VramtopError``: what went wrong, where, and what to do; never a traceback
    - ``InputError``, exit code 2: a file, flag or value is wrong
    - ``CannotTellError``, exit code 3: the input is fine, but the answer is unavailable here
    - ``CancelledError``, exit code 3: the request was cancelled before it was answered
"""

from .exit_codes import ExitCode

_MAX_CHARACTERS = 1500
"""The longest sentences name every known key."""


class VramtopError(Exception):
    """A failure that a user can understand and act on.

    Args:
        message: one sentence: what is wrong, where, and what to do about it.
    """

    exit_code = ExitCode.CANNOT_TELL
    title = "vramtop cannot continue"

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
