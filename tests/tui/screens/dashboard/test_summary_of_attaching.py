"""The summary says what is being read, and why nothing has a budget."""

from typing import Any

import pytest
from builders import make_board, make_gpu, make_process

from vramtop.estimator.common.records import replace
from vramtop.monitor.board.board import AttachProgress
from vramtop.tui.screens.dashboard.header_text import summary_line


@pytest.mark.parametrize(
    ("progress", "reasons", "words"),
    [
        (None, (), "no budgets yet: press a to attach to a running job, f to check a new one"),
        (AttachProgress(2, 16), ("reading…",), "reading 3 of 16 runs"),
        (AttachProgress(0, 2), ("reading…",), "reading 1 of 2 runs"),
        (AttachProgress(0, 1), ("reading…",), "reading a run"),
        (AttachProgress(0, 0), ("reading…",), "reading the runs"),
        (AttachProgress(0, 0), (), "no processes on these GPUs: press f to check whether a job fits"),
        (
            AttachProgress(1, 1),
            ("server", "server", "no access"),
            "no running job has a budget (2 × server, 1 × no access)",
        ),
    ],
)
def test_the_summary_before_there_is_a_budget(progress: Any, reasons: Any, words: str) -> None:
    processes = [make_process(pid) for pid in range(1, len(reasons) + 1)]
    board = make_board([make_gpu(0, processes)])
    gpu = board.gpus[0]
    rows = tuple(replace(row, no_budget_reason=reason) for row, reason in zip(gpu.rows, reasons, strict=True))
    shown = replace(board, gpus=(replace(gpu, rows=rows),), attach_progress=progress)
    assert summary_line(shown, 140).plain.startswith(words)
