"""The page of the preflight checks."""

import inspect

from vramtop.monitor.preflight.checks import CHECKS

from .markdown import page, prose, table

_INTRODUCTION = """\
`vramtop preflight JOB` and the preflight screen make these checks at the same time. A check that does not apply is
skipped. The job does not run with a **failure** (exit code 1); it runs with **warnings** (0). A check that cannot be
made, or not within 30 to 120 s (`--timeout` sets one limit for all), is a warning; if it is **decisive**, the exit code
is 3. Folders, targets and variables are those of the job file's [`[run]`](job-file.md#run) table, or of the tool that
was read."""


def preflight_page() -> str:
    """Return the page."""
    rows = [
        (
            check.name,
            prose(inspect.cleandoc(check.run.__doc__ or "").partition("\n\n")[0]),
            "yes" if check.decisive else "",
        )
        for check in CHECKS
    ]
    head = ("check", "what must hold, or is compared", "decisive")
    return page("Preflight checks", _INTRODUCTION, table(head, rows))
