"""Internal errors: the user gets a sentence, and a file with the traceback for a bug report."""

import platform
import time
import traceback
from pathlib import Path


def crash_sentence(error: BaseException) -> str:
    """Return what happened and how to report it; the traceback is written to a file.

    A limit of the machine is no internal error: it has a sentence of its own.
    """
    from vramtop.estimator.common.process_limit import caused_by_process_limit
    from vramtop.estimator.common.secrets import mask_line

    from ..draw.text_output import printable

    if limit := caused_by_process_limit(error):
        return limit.message
    what = mask_line(printable(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__))
    request = "please report it to vramtop's issue tracker"
    path = save_fault("".join(traceback.format_exception(error)))
    if path is None:
        where = traceback.extract_tb(error.__traceback__)[-1:]
        place = "".join(f", in {Path(frame.filename).name}, line {frame.lineno}" for frame in where)
        return f"internal error ({what}{place}); {request}, with the output of vramtop doctor"
    return f"internal error ({what}); {request}, with {printable(str(path))} and the output of vramtop doctor"


def save_fault(text: str) -> Path | None:
    """Write a traceback to the user's data folder, readable by the user only; None if that is impossible."""
    from vramtop.estimator.common.errors import CannotTellError
    from vramtop.estimator.common.private_files import make_own_folder, write_private
    from vramtop.estimator.common.secrets import mask_line
    from vramtop.monitor.storage.user_file import data_file

    header = f"vramtop on Python {platform.python_version()}, {platform.platform()}\n"
    try:
        path = data_file(f"fault-{time.strftime('%Y%m%d-%H%M%S')}.txt")
        make_own_folder(path)
        write_private(path, f"{header}{mask_line(text)}".encode(errors="replace"))
    except (OSError, CannotTellError):
        return None
    return path
