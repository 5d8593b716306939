"""``vramtop run -- COMMAND``: start a command unchanged, with the probe in its Python processes that import torch."""

import argparse
import os
import signal
from collections.abc import Sequence

from vramtop.estimator.common.errors import InputError
from vramtop.monitor.attach.automatic.start_following import start_following
from vramtop.monitor.probe.launch import probed_environment


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Replace this process with the command; returns if it does not fit, 1 or 4, or cannot be started.

    Raises:
        InputError: no command is given, or it cannot be started.
        CannotTellError: with ``--strict``, whether it fits is not known.
    """
    if not launch:
        raise InputError("no command given; write: vramtop run -- python train.py ...")
    environ = probed_environment(os.environ, snapshot_folder=_snapshot_folder(options.snapshot_on_oom))
    if options.fit:
        from ..fitting.guard import guarded  # imports the estimator

        found = guarded(options, launch, environ)
        if isinstance(found, int):
            return found
        environ = found
    else:
        of_the_check = {
            "--strict": options.strict,
            "--gpu": options.gpu is not None,
            "--set": options.set,
            "--rehearse": options.rehearse,
            "--read-only": options.settings.origins["estimates.rehearse"] == "--no-rehearse",
        }
        if flag := next((name for name, value in of_the_check.items() if value), None):
            raise InputError(f"{flag} needs --fit")
    if options.history:
        # in a process of its own, which ends where there is no driver
        start_following(os.getpid(), os.environ, settings=options.set)
    ignored = (signal.SIGPIPE, signal.SIGXFSZ)  # by Python, and so by the command, which would inherit it
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ignored}
    try:
        os.execvpe(launch[0], list(launch), environ)  # noqa: S606
    except OSError as error:
        raise InputError(f"{launch[0]}: cannot be started: {error.strerror or error}") from None
    finally:  # vramtop goes on: a pipe that is closed must not end it without a word
        for number, handler in before.items():
            signal.signal(number, handler)


def _snapshot_folder(given: str | None) -> str | None:
    """Return the folder for snapshots of runs that fail; None: none are wanted.

    Raises:
        InputError: it cannot be written to.
    """
    if given is None:
        return None
    folder = os.path.abspath(os.path.expanduser(given))  # noqa: PTH100, PTH111 - pathlib need not be loaded here
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):  # noqa: PTH112
        raise InputError(f"--snapshot-on-oom: {folder} is not a writable folder")
    return folder
