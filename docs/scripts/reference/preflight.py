"""The page of the preflight checks."""

import inspect

from vramtop.monitor.preflight.checks import CHECKS

from .markdown import bullets, page, prose

_INTRODUCTION = """\
`vramtop preflight JOB` makes these checks at the same time, except those that do not apply. A job with a **failure**
cannot run (exit code 1); with **warnings** it can (0). A check that ends without a result after 30 to 120 s
(`--timeout`) is a warning; if it is **decisive**, the exit code is 3. Folders, targets and variables are those of the
job file's [`[run]`](job-file.md#run) table, or of the tool that was read."""


def preflight_page() -> str:
    """Return the page."""
    lines = (
        f"{check.name}{' (decisive)' if check.decisive else ''}: "
        f"{prose(inspect.cleandoc(check.run.__doc__ or '').partition(chr(10) * 2)[0])}"
        for check in CHECKS
    )
    return page("Preflight checks", _INTRODUCTION, bullets(lines))
