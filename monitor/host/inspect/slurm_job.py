"""The name of a Slurm job whose processes hide their environment: as ``scontrol show job`` says."""

import os
import re
import subprocess
from collections.abc import Iterable

from vramtop.estimator.common import find_program

from ..plain_text import sanitize_line

_UNNAMED = re.compile(r"Slurm job (\d+)( step \S+)?")
_FIELDS = re.compile(r"JobName=(.*?) UserId=([^( ]+)")
"""A name may contain spaces; the user stands behind it, with the uid in parentheses."""
_SECONDS = 5


def with_job_names(places: Iterable[str]) -> tuple[str, ...]:
    """Return where a process runs, with the names and owners of Slurm jobs that have no name; asks the controller.

    Args:
        places: descriptions of ``container_info``.
    """
    return tuple(_named(place) for place in places)


def _named(place: str) -> str:
    found = _UNNAMED.fullmatch(place)
    facts = _FIELDS.search(_ask(found[1])) if found else None
    name = sanitize_line(f"{facts[1]}, of {facts[2]}") if facts else None
    return f"{place} ({name})" if name else place


def _ask(job: str) -> str:
    """Return the record of a job in one line; empty: there is no scontrol, no such job any more, or no answer."""
    program = find_program("scontrol", os.environ.get("PATH"))
    if program is None:
        return ""
    try:
        answer = subprocess.run(
            [program, "show", "job", job, "-o"],
            capture_output=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.decode(errors="replace") if answer.returncode == 0 else ""
