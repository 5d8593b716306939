"""The exceptions that vramtop shows to its users as one clear sentence.

- ``VramtopError``: what went wrong, where, and what to do; never a traceback
    - ``InputError``, exit code 2: a file, flag or value is wrong
    - ``CannotTellError``, exit code 3: the input is fine, but the answer cannot be known here
    - ``CancelledError``, exit code 3: somebody gave the question up before it was answered
"""

_LONGEST = 1500
"""Characters: the longest sentences name every known key."""


class VramtopError(Exception):
    """A failure that a user can understand and act on.

    Args:
        message: one sentence: what is wrong, where, and what to do about it.
    """

    exit_code = 3
    title = "vramtop cannot go on"

    @property
    def message(self) -> str:
        """The sentence for the user, without the middle where it quotes what is endless."""
        text = str(self.args[0]) if self.args else self.title
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"


class InputError(VramtopError):
    """The user's input (a file, an option, a value) is wrong."""

    exit_code = 2
    title = "Wrong input"


class CannotTellError(VramtopError):
    """The question is a good one, but what is needed to answer it is not here."""

    exit_code = 3
    title = "Cannot tell"


class CancelledError(VramtopError):
    """The question was given up; nobody waits for the answer."""

    exit_code = 3
    title = "Cancelled"
