"""A fault of vramtop's own: the user gets a sentence, a bug report gets the rest from a file."""

import os
import platform
import sys
import time
import traceback
from pathlib import Path


def report_crash(error: BaseException) -> int:
    """Say that it happened and where the rest of it is; the exit code: ``EX_SOFTWARE``, which no answer has."""
    sys.stderr.write(f"vramtop: {crash_sentence(error)}\n")
    return os.EX_SOFTWARE


def crash_sentence(error: BaseException) -> str:
    """What happened, and what a bug report needs, which is written to a file."""
    from ..draw.text_output import printable

    what = printable(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    report = "please report it to vramtop's issue tracker"
    path = _keep(error)
    if path is None:
        where = traceback.extract_tb(error.__traceback__)[-1:]
        place = "".join(f", in {Path(frame.filename).name}, line {frame.lineno}" for frame in where)
        return f"a fault of its own ({what}{place}); {report}, with what vramtop doctor prints"
    return f"a fault of its own ({what}); {report}, with {printable(str(path))} and what vramtop doctor prints"


def _keep(error: BaseException) -> Path | None:
    """Write the traceback where the user's data is, for the user alone; None where that cannot be done."""
    from vramtop.estimator.common.errors import CannotTellError
    from vramtop.monitor.storage.user_file import data_file

    here = f"vramtop on Python {platform.python_version()}, {platform.platform()}\n"
    try:
        path = data_file(f"fault-{time.strftime('%Y%m%d-%H%M%S')}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123
            file.writelines([here, *traceback.format_exception(error)])
    except (OSError, CannotTellError):
        return None
    return path
