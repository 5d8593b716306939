"""The exit codes of the command line: one meaning each, in all commands. ``tui.cli.parsing`` has them in words."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit code of a command."""

    DONE = 0
    """What was asked for was done; of a check: the job fits, nothing fails."""
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
