"""Runs a training script for real (``measure``): the plan and the answers are files in a folder.

``plan.json`` is the plan of ``run_script``, and ``train.py`` the script. Each rank writes ``RANK.STAGE.json`` there
(``Stages``): ``ready`` before it touches its GPU, ``context`` once its CUDA context exists, ``first step`` and
``steady`` after the first and the last one, and at the end ``done`` with its figures, or ``failed`` with a sentence.

Several ranks are started by torchrun, which this process becomes; each runs the worker again with the folder.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ..request.protocol import QUIET_AND_OFFLINE, RefusedError, die_with_parent
from .stages import Stages


def main(arguments: list[str]) -> None:
    """Run as one rank, or start all."""
    die_with_parent()
    os.dup2(2, 1)  # nothing reads stdout: what libraries and a user's model print must not fill its pipe
    os.environ.update(QUIET_AND_OFFLINE)
    plan = json.loads(Path(arguments[0], "plan.json").read_text(encoding="utf-8"))
    if "RANK" in os.environ or len(plan["limits"]) == 1:
        _end(_run_rank(plan))
    from torch.distributed.run import main as torchrun

    count = len(plan["limits"])  # it ends all ranks when one fails, and when it is told to end
    words = ["--standalone", f"--nproc-per-node={count}", str(Path(__file__).resolve().parents[1] / "__main__.py")]
    torchrun([*words, "measure", *arguments])


def _run_rank(plan: dict[str, Any]) -> int:
    stages = Stages(Path(plan["folder"]), int(os.environ.get("RANK", "0")))
    try:
        from .run_script import run_script

        found = run_script(plan, stages)
    except Exception as error:  # noqa: BLE001 - any failure has to reach the caller as a sentence
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        stages.report("failed", {"error": str(error) if isinstance(error, RefusedError) else text})
        return 1
    stages.report("done", found)
    return 1 if "out_of_memory" in found else 0


def _end(code: int) -> None:
    """End the process; a failed rank of several at once, as NCCL's threads would wait for the other ranks."""
    if code and "RANK" in os.environ:
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)
