"""``vramtop --once``: print the GPUs as they are now, as text or JSON."""

import argparse
from contextlib import closing
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import InputError
from vramtop.monitor.anomalies.detector import AnomalyDetector
from vramtop.monitor.attach.automatic.automatic_attach import AutomaticAttach
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.host.plain_text import gpu_list
from vramtop.monitor.snapshot.snapshot import Snapshot, WatchedJob
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource

from ...draw.text_output import detect_output
from ..crash_report import save_fault
from ..display_options import display_filter

if TYPE_CHECKING:
    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job.job import Job


_ATTACH_SECONDS = 2.5
"""Time for reading the training processes; those that were not reached say so."""


def run(options: argparse.Namespace) -> int:
    """Print one reading; exit code 0."""
    board = _read(options)
    if options.json:
        import json

        from ..board_json import board_json

        print(json.dumps(board_json(board), indent=2))
    else:
        from ..board_text import board_lines

        print("\n".join(board_lines(board, detect_output(ascii_only=options.ascii))))
    return 0


def _read(options: argparse.Namespace) -> Board:
    def quick(job: "Job") -> "Budget":
        # only if there is a job: importing it takes a fifth of the start-up time
        from vramtop.estimator.estimation import estimate

        from ..measured_runs import correction

        gpu = None if job.target.gpu else watchlist.gpu_type
        return correction(options, job, gpu, here=not job.target.gpu)(estimate(job, gpu=gpu))

    anomalies = AnomalyDetector(min_duration_seconds=0)
    watchlist = Watchlist(quick, anomaly_detector=anomalies, display_filter=display_filter(options))
    if options.job:
        from ..estimators import pending_jobs

        for job in pending_jobs(options):
            watchlist.add_pending(job)
    with closing(NvmlSource()) as source:
        source.open()
        snapshot = source.read()
    if options.pid is not None:
        _watch(options, watchlist, snapshot)
    attach = AutomaticAttach(watchlist, enabled=options.attach, corrects=options.history, on_bug=save_fault)
    board = watchlist.update(snapshot)
    attach.observe(board)
    if not attach.finished.is_set():  # there are runs to read
        attach.start()
        attach.finished.wait(_ATTACH_SECONDS)
        attach.close()
    board = watchlist.rebuild_board() or board
    if board.hidden and board.hidden.missing:
        present = gpu_list(gpu.index for gpu in snapshot.gpus)
        raise InputError(f"there is no GPU {', '.join(board.hidden.missing)} here, only {present}")
    return board


def _watch(options: argparse.Namespace, watchlist: Watchlist, snapshot: Snapshot) -> None:
    from vramtop.estimator.estimation import estimate
    from vramtop.estimator.job.gpu_catalogue import match_nvml_name

    from ..measured_runs import corrected_run
    from .attach import largest_rank, read_job_of_run

    attachment, job, _ = read_job_of_run(options.pid, {}, snapshot)
    if job is None:
        return
    largest = largest_rank(attachment, snapshot)
    gpu_type = match_nvml_name(largest[0].name, largest[0].total_bytes) if largest and largest[0].name else None
    budget = estimate(job, gpu=None if job.target.gpu else gpu_type, environ=attachment.estimate_environ)
    watchlist.set_budget(corrected_run(options, budget, attachment, largest[0] if largest else None))
    ranks = tuple((rank.pid, rank.start_time) for rank in attachment.ranks)
    watchlist.add_run(WatchedJob(job=job, pids=ranks))
