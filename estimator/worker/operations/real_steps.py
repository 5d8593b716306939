"""Operation ``measure``: the real steps of a job on the CPU, in this process.

The request is that of ``measure/__main__.py`` with ``device`` "cpu", for one rank; the answer is what the rank reports.
"""

from __future__ import annotations

import gc
import os
from typing import Any

from ..measure.real_steps import NoStages, run_steps, versions
from ..request.protocol import UnsupportedError
from ..request.request import read_request


def real_steps(message: dict[str, Any]) -> dict[str, Any]:
    """Run the steps.

    Raises:
        RefusedError: the installed libraries cannot run the job.
    """
    gc.enable()  # tensors in cycles are freed as in a process of one's own
    try:
        found = run_steps(read_request(message), message["measure"], NoStages())
    except UnsupportedError as reason:
        return {"unsupported": str(reason)}
    return {"pid": os.getpid(), **found, "versions": versions()}
