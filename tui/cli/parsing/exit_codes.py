"""Meanings of each command's exit codes, for help, the manual page and the documentation."""

from collections.abc import Mapping

from vramtop.estimator.common.errors import ExitCode


def exit_codes_of(command: str) -> dict[ExitCode, str]:
    """Return what each exit code of a command means, in the order of the codes.

    Args:
        command: its name; empty: the dashboard.
    """
    found = {ExitCode.WRONG_INPUT: "wrong input", **OF_COMMANDS[command]}
    return {code: found[code] for code in sorted(found)}


def exit_codes_sentence(command: str) -> str:
    """Return the exit codes of a command in one sentence, for the end of its help."""
    return f"Exit codes: {'; '.join(f'{code} {text}' for code, text in exit_codes_of(command).items())}."


_FIT = {
    ExitCode.DONE: "it fits",
    ExitCode.NO: "it does not fit",
    ExitCode.CANNOT_TELL: "unknown, also where a rehearsal would tell",
    ExitCode.TIGHT: "tight: the expected peak fits, the upper bound does not",
}
_UNTIL_INTERRUPTED = {ExitCode.DONE: "interrupted"}
OF_COMMANDS: Mapping[str, Mapping[ExitCode, str]] = {
    "": {
        ExitCode.DONE: "the dashboard was quit, or with --once a reading was printed",
        ExitCode.CANNOT_TELL: "with --once: no current readings, for example without a driver",
    },
    "estimate": {ExitCode.DONE: "estimated", ExitCode.CANNOT_TELL: "the job cannot be estimated"},
    "program": {ExitCode.DONE: "written", ExitCode.CANNOT_TELL: "no script stands for the job"},
    "fit": _FIT,
    "wait": {
        **_FIT,
        ExitCode.DONE: "it fits, or with --exec the command's own exit code",
        ExitCode.NO: "it did not fit in time, or can never fit",
    },
    "preflight": {
        ExitCode.DONE: "no check fails, though there may be warnings, a tight fit among them",
        ExitCode.NO: "a check fails: the job would not run",
        ExitCode.CANNOT_TELL: ("no check fails, but the driver, the memory or the model's files could not be checked"),
    },
    "models": {ExitCode.DONE: "listed", ExitCode.WRONG_INPUT: "wrong input, or no model has such a name"},
    "attach": {ExitCode.DONE: "the run was read", ExitCode.CANNOT_TELL: "a setting that is needed is missing"},
    "explain": {ExitCode.DONE: "explained", ExitCode.CANNOT_TELL: "no out-of-memory error found, or not understood"},
    "snapshot": {
        ExitCode.DONE: "the snapshot is written",
        ExitCode.CANNOT_TELL: "no snapshot: the process has no probe, or did not answer in time",
    },
    "run": {
        ExitCode.DONE: "the exit code of the command, whatever it is",
        ExitCode.NO: "with --fit: it does not fit, and was not started",
        ExitCode.CANNOT_TELL: "with --fit --strict: it is unknown whether it fits, and it was not started",
        ExitCode.TIGHT: "with --fit --strict: it is tight, and was not started",
    },
    "rehearse": {
        ExitCode.DONE: "the budget is printed, whether it fits or not",
        ExitCode.CANNOT_TELL: "the program failed, or ended before an optimizer had stepped",
    },
    "measure": {
        ExitCode.DONE: "it ran",
        ExitCode.NO: "it ran out of memory",
        ExitCode.CANNOT_TELL: "it could not run: the job is not supported, a process died, or time ran out",
    },
    "history": {ExitCode.DONE: "listed or removed", ExitCode.CANNOT_TELL: "the history cannot be read or written"},
    "stream": {ExitCode.DONE: "standard input or output was closed"},
    "record": {ExitCode.DONE: "recorded", ExitCode.CANNOT_TELL: "there was no reading"},
    "export": {**_UNTIL_INTERRUPTED, ExitCode.WRONG_INPUT: "wrong input, or vramtop cannot listen on the address"},
    "report": {ExitCode.DONE: "written"},
    "serve": {**_UNTIL_INTERRUPTED, ExitCode.WRONG_INPUT: "wrong input, or vramtop cannot listen on the address"},
    "doctor": {
        ExitCode.DONE: "printed",
        ExitCode.CANNOT_TELL: "printed, but the driver does not work or does not answer",
    },
    "config": {
        ExitCode.DONE: "printed or changed",
        ExitCode.WRONG_INPUT: "wrong input, or an error in the settings file",
        ExitCode.CANNOT_TELL: "the settings file cannot be written",
    },
    "completion": {ExitCode.DONE: "printed"},
}
"""By command; the dashboard is the empty name. What every command may end with is not here."""
