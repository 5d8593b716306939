"""``vramtop run --fit``: the check before a command starts, which a job that would not fit does not pass."""

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Mapping, Sequence

import msgspec

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import NOT_REHEARSED, CannotTellError, VramtopError
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import parse_assignment, with_changes
from vramtop.estimator.job.settings import ModelSpec, Parallel
from vramtop.monitor.board.capacity import count_devices
from vramtop.monitor.board.fit_result import DeviceVerdict, FitResult

from ...draw.text_output import printable
from ..rehearsing import offer_of
from .fit_check import FitCheck, check_here, report_fit
from .machine_gpus import gpus_here, load_for_gpus


def guarded(options: argparse.Namespace, launch: Sequence[str], environ: Mapping[str, str]) -> int | dict[str, str]:
    """Check whether the job of a command fits this machine's GPUs.

    Args:
        options: of ``vramtop run``.
        launch: the command.
        environ: with which it will start.

    Returns:
        The environment with which to start it: where it would not fit on every GPU that it sees, with those on which it
        does in CUDA_VISIBLE_DEVICES. Otherwise the exit code; the report is printed.

    Raises:
        InputError: ``--gpu`` names no GPU here, or ``--set`` no setting.
        CannotTellError: with ``--strict``, whether it fits is not known.
    """
    if options.gpu is not None:
        with contextlib.suppress(CannotTellError):
            gpus_here(options.gpu)  # a wrong index is an error of this command line, not of the job
    for text in options.set:
        key, value = parse_assignment(text)
        with_changes(Job(model=ModelSpec(id="any")), {key: value}, where="--set")  # refuses a mistyped setting
    try:
        loaded = load_for_gpus(options, launch)
        check = _of_this_machine(check_here(options, loaded), launch)
        verdict = check.judge(check.budget)
    except VramtopError as error:
        unread = (
            f"{' '.join(error.output.split()).rstrip('.')}; "
            if error.output and error.message.startswith(NOT_REHEARSED)
            else ""
        )
        reason = f"cannot tell whether the job fits: {unread}{error.message.rstrip('.')}"
        if options.strict:
            raise CannotTellError(f"{reason}; it was not started (--strict)") from None
        _say(f"{reason}; starting it anyway")
        return dict(environ)
    starts = verdict.verdict == "fits" if options.strict else _starts(verdict, check.budget)
    if not starts:
        code = report_fit(options, check)
        _say(f"the command was not started{' (--strict)' if _starts(verdict, check.budget) else ''}")
        return code
    _say(verdict.sentence)
    if check.is_open() and (offer := offer_of(options, check.loaded, check.budget)) is not None:
        _say(offer)
    if all(_starts(gpu, check.budget) and not gpu.device.mig for gpu in verdict.gpus) or not verdict.rank_devices:
        return dict(environ)
    return {**environ, "CUDA_VISIBLE_DEVICES": ",".join(verdict.cuda_devices)}  # it might take another one


def _starts(verdict: FitResult | DeviceVerdict, budget: Budget) -> bool:
    """Return True if a job is started by this verdict: unless it is expected not to fit."""
    if verdict.verdict == "unknown" and not budget.peak.says_nothing:
        return verdict.margin_bytes is None or verdict.margin_bytes >= 0
    return verdict.verdict != "does_not_fit"


_MACHINES = re.compile(r"--(?:nnodes|num[-_]machines|num[-_]nodes)(?:=|\s+)(?:\d+:)?(\d+)")
"""How launchers are told of several machines (torchrun, accelerate, deepspeed)."""
_MACHINES_VARIABLES = ("NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")


def _of_this_machine(check: FitCheck, launch: Sequence[str]) -> FitCheck:
    """Return the check of this machine's ranks, if the command starts the job on several machines."""
    count = count_devices(check.devices)
    machines = _MACHINES.findall(" ".join(launch))
    machines += [os.environ[name] for name in _MACHINES_VARIABLES if os.environ.get(name, "").isdecimal()]
    if len(check.budget.ranks) <= count or max(map(int, machines), default=1) < 2:
        return check

    def judge(budget: Budget) -> FitResult:
        here = Parallel(strategy="ddp", data_replicate=count)  # as many ranks as GPUs, each with the highest peak
        return check.judge(replace(budget, job=msgspec.structs.replace(budget.job, parallel=here), stages=()))

    return replace(check, judge=judge)


def _say(sentence: str) -> None:
    print(f"vramtop: {printable(sentence)}", file=sys.stderr, flush=True)
