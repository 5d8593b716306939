"""The page of the preflight checks."""

import inspect

from vramtop.monitor.preflight.checks import CHECKS

from .markdown import page, prose, table

_INTRODUCTION = """\
`vramtop preflight JOB` makes these checks at the same time, except those that do not apply. A job with a **failure**
cannot run (exit code 1); with **warnings** it can (0). A check that ends without a result after 30 to 120 s
(`--timeout`) is a warning; if it is **decisive**, the exit code is 3. Folders, targets and variables are those of the
job file's [`[run]`](job-file.md#run) table, or of the tool that was read."""


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
