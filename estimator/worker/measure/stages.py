"""Stages of a measurement, through files in a folder that the caller made: each rank writes, the caller answers.

``RANK.STAGE.json`` is written when a rank reaches a stage; at those at which memory is read from outside, it waits for
the caller's ``STAGE.go``.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

WAIT_SECONDS = 3600.0
"""Time after which a rank goes on without an answer; it waits for its turn while another job has the GPU."""
_POLL_SECONDS = 0.01


class Stages:
    """What a rank reports.

    Args:
        folder: of the caller.
        rank: its number.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank

    def report(self, stage: str, figures: dict[str, Any]) -> None:
        """Write a stage and its figures."""
        path = self._folder / f"{self._rank}.{stage}.json"
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps({"pid": os.getpid(), **figures}), encoding="utf-8")
        unfinished.rename(path)

    def wait(self, stage: str, figures: dict[str, Any]) -> None:
        """Write a stage, and wait until the caller has read the memory."""
        self.report(stage, figures)
        until = time.monotonic() + WAIT_SECONDS
        while not (self._folder / f"{stage}.go").exists() and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
