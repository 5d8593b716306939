"""Standard error of a command that ``vramtop run`` has started, where vramtop says one sentence at most."""

import contextlib
import os


class CommandStderr:
    """Standard error of a command, for one sentence; held open until that is written, or until the command has ended.

    Args:
        descriptor: a duplicate of it; negative: there is none.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        with contextlib.suppress(OSError):
            os.set_inheritable(descriptor, False)

    @property
    def is_open(self) -> bool:
        """True while something may be said."""
        return self._descriptor >= 0

    def say(self, sentence: str) -> None:
        """Write a line, and close."""
        if self.is_open:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, f"vramtop: {sentence}\n".encode())
            self.close()

    def close(self) -> None:
        """Let go of it: a pipe ends when nobody holds it open."""
        if self.is_open:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1
