"""The page of the preflight checks."""

import inspect

from vramtop.monitor.preflight.checks import CHECKS

from .markdown import page, prose, table

_INTRODUCTION = """\
`vramtop preflight JOB` and the preflight screen make these checks at the same time, each with a time limit (`--timeout`
sets one for all). A check that does not apply is skipped: NCCL's on one GPU, a hub token for a local model.

- A **failure** is what the job will not run with. A **warning** does not stop it: with warnings alone the exit
  code is 0.
- A check that cannot be made, or not in time, is a warning that says why. If it is **decisive**, it is not known
  whether the job can start: exit code 3.
- Folders, targets and variables are those of the job file's [`[run]`](job-file.md#run) table, or of the tool that was
  read."""


def preflight_page() -> str:
    """Return the page."""
    rows = [
        (
            check.name,
            prose(inspect.cleandoc(check.run.__doc__ or "").partition("\n\n")[0]),
            prose(check.waits_for),
            f"{check.timeout_seconds:.0f} s",
            "yes" if check.decisive else "",
        )
        for check in CHECKS
    ]
    head = ("check", "what must hold, or is compared", "waits for", "time limit", "decisive")
    return page("Preflight checks", _INTRODUCTION, table(head, rows))
