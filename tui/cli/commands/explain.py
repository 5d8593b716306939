"""``vramtop explain FILE``: why a run ran out of memory, by its log or a memory snapshot; what would have fitted."""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict

import msgspec

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CannotTellError, ExitCode, InputError, VramtopError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import parse_size
from vramtop.estimator.crash.crash_file import read_crash_file, read_crash_stream
from vramtop.estimator.crash.explanation import Explanation, explain_failure, failure_of_snapshot
from vramtop.estimator.crash.records import CrashLog, Failure
from vramtop.estimator.crash.snapshot.records import MemorySnapshot
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job_file.changes import parse_assignment
from vramtop.monitor.board.fit import check_fit

from ...draw.text_output import TextOutput, detect_output
from ...job.advice import Advice
from ...job.load_job import load_from_options
from ...job.loaded_job import LoadedJob
from ...job.would_fit import budget_of_what_ran, failed_gpu
from ...reports.budget_text import closing_lines
from ...reports.crash_text import explanation_lines, snapshot_lines
from ..fitting.fit_check import Machine, advice_lines, advise, suggestion_json
from ..json_text import json_text
from ..measured_runs import Correct, correction, estimate_job
from ..progress import Progress

_GIVE_SIZE = (
    "The size of the GPU is unknown: give --gpu-type NAME or --gpu-memory SIZE to see which changes would have fit."
)


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the explanation; exit code 0: explained, 3: nothing that is understood.

    Raises:
        InputError: the file or the job cannot be read.
        CannotTellError: the file says nothing of memory that ran out.
    """
    given_bytes = parse_size(options.gpu_memory) if options.gpu_memory else None
    if options.gpu_type:  # a wrong flag is an error, whether it is needed or not
        given_bytes = find_gpu(options.gpu_type).total_bytes
    for text in options.set:
        parse_assignment(text)
    log, snapshot = _read(options)
    loaded, remark = _job(options, launch, log)
    failure = _failure(options, log, snapshot)
    if failure is not None and failure.memory is not None and failure.memory.total_bytes is None:
        failure = replace(failure, memory=replace(failure.memory, total_bytes=given_bytes))
    output = detect_output(ascii_only=options.ascii)
    if failure is None:
        assert snapshot is not None  # noqa: S101 - a log without a failure is an error
        return _report_snapshot(options, snapshot, loaded, output)
    memory = failure.memory
    budget, correct = _estimate(options, loaded, memory.total_bytes if memory else None)
    explanation = explain_failure(failure, budget=budget, snapshot=snapshot)
    code = ExitCode.CANNOT_TELL if failure.kind == "not understood" else ExitCode.DONE
    advice = None
    if loaded is not None and budget is not None:
        with Progress(quiet=options.json) as progress:
            advice = _would_fit(explanation, budget, options, progress=progress, correct=correct)
    if options.json:
        found = {
            "schema": 1,
            **msgspec.to_builtins(explanation),
            "failures": msgspec.to_builtins(log.failures) if log else [],
            "budget": budget.to_json() if budget else None,
            "suggestions": [suggestion_json(each, loaded) for each in advice.suggestions] if advice and loaded else [],
            "largest": asdict(advice.largest) if advice and advice.largest else None,
            "notes": [remark] if remark else [],
        }
        print(json_text(found))
        return code
    print("\n".join(explanation_lines(explanation, output, budget=budget, log=log)))
    if loaded is not None and budget is not None:
        if advice is not None:
            print("\n".join(advice_lines(advice, loaded, output)))
        print()
        print("\n".join(closing_lines(budget, loaded.notes, output, verbose=options.verbose)))
    if memory is not None and memory.total_bytes is None and failure.kind == "gpu":
        remark = f"{remark or ''} {_GIVE_SIZE}".strip()
    if remark:
        print()
        print("\n".join(output.wrapped(remark)))
    return code


def _read(options: argparse.Namespace) -> tuple[CrashLog | None, MemorySnapshot | None]:
    """Read the file, whichever it is."""
    with Progress(quiet=options.json) as progress:
        if options.file in ("-", "/dev/stdin"):
            found = read_crash_stream(sys.stdin.buffer, name="standard input", device=options.device, progress=progress)
        else:
            found = read_crash_file(options.file, device=options.device, progress=progress)
    return (found, None) if isinstance(found, CrashLog) else (None, found)


def _failure(options: argparse.Namespace, log: CrashLog | None, snapshot: MemorySnapshot | None) -> Failure | None:
    """Return the failure to explain; None: a snapshot of a process that had not failed.

    Raises:
        CannotTellError: the log has none.
        InputError: it has none of the rank that is asked for.
    """
    if log is None:
        return failure_of_snapshot(snapshot) if snapshot is not None else None
    if not log.failures:
        raise CannotTellError(
            f"{options.file}: no out-of-memory error found in its {log.lines:,} line{'' if log.lines == 1 else 's'}"
        )
    if options.rank is None:
        return log.cause
    of_rank = replace(log, failures=tuple(each for each in log.failures if each.rank == options.rank))
    if of_rank.cause is None:
        ranks = sorted({each.rank for each in log.failures if each.rank is not None})
        have = (
            f"it has errors of rank{'s' if ranks[1:] else ''} {', '.join(map(str, ranks))}"
            if ranks
            else "its errors name no rank"
        )
        raise InputError(f"--rank {options.rank}: {options.file} has no error of that rank; {have}")
    return of_rank.cause


_GIVE_JOB = (
    "The job is unknown: give it with --job JOB or as a launch line after -- to see which changes would have fit."
)
_GIVE_HOST_JOB = "The job is unknown: give it with --job JOB or as a launch line after -- to see its prediction."


def _job(
    options: argparse.Namespace, launch: Sequence[str] | None, log: CrashLog | None
) -> tuple[LoadedJob | None, str | None]:
    """Return the job, if it is given or the log's launch line says it, and a remark on where it was found."""
    if options.job or launch is not None:
        return load_from_options(options, launch), None
    if log is None or log.launch_line is None:
        if options.set:
            raise InputError("--set changes a setting of the job, but the job is unknown: give it with --job JOB")
        cause = log.cause if log is not None else None
        if cause is not None and cause.kind == "gpu library" and cause.source is not None:
            return None, None  # of a program whose jobs are mostly not estimated
        return None, _GIVE_JOB if cause is None or cause.memory else _GIVE_HOST_JOB
    try:
        loaded = load_from_options(options, shlex.split(log.launch_line))
    except (VramtopError, ValueError) as error:
        reason = error.message.rstrip(".") if isinstance(error, VramtopError) else "its quotes do not match"
        return None, f"vramtop cannot read the job from the log's launch line ({reason}): give it with --job JOB."
    return loaded, f"The job was read from the log's launch line: {log.launch_line[:200]}"


def _estimate(
    options: argparse.Namespace, loaded: LoadedJob | None, memory_bytes: int | None
) -> tuple[Budget | None, Correct]:
    """Return the budget of the job, if it is known, and what corrects budgets by measured runs."""
    if loaded is None:
        return None, lambda budget: budget
    gpu = find_gpu(options.gpu_type) if options.gpu_type else None
    budget = estimate_job(options, loaded, gpu, memory_bytes, here=False)
    return budget, correction(options, loaded.job, gpu, here=False)


def _would_fit(
    explanation: Explanation,
    budget: Budget,
    options: argparse.Namespace,
    *,
    progress: Callable[[str], None],
    correct: Callable[[Budget], Budget],
) -> Advice | None:
    """Return the changes with which the job would have fitted beside what others held; None: the GPU is not known.

    A run that needed more than its budget's upper bound needs as much more with every change.

    Args:
        explanation: of the failure.
        budget: of the job, corrected by measured runs if there are any of it.
        options: of the command line.
        progress: called with what is being done.
        correct: corrects a budget by measured runs.
    """
    device, ran = failed_gpu(explanation, budget), budget_of_what_ran(explanation, budget)
    if device is None:
        return None
    return advise(
        ran,
        lambda changed: check_fit(changed, (device,)).verdict,
        Machine(gpu=None, memory_bytes=device.total_bytes, gpus=device.count, python=options.python),
        method=options.method if ran is budget else "formula",  # a trace does not know what ran beyond it
        progress=progress,
        correct=correct,
    )


def _report_snapshot(
    options: argparse.Namespace, snapshot: MemorySnapshot, loaded: LoadedJob | None, output: TextOutput
) -> int:
    """Print what a snapshot holds whose process had not run out of memory."""
    budget, _ = _estimate(options, loaded, snapshot.total_bytes)
    if options.json:
        found = {
            "schema": 1,
            "failure": None,
            "snapshot": msgspec.to_builtins(snapshot),
            "budget": budget.to_json() if budget else None,
        }
        print(json_text(found))
        return 0
    print("\n".join(snapshot_lines(snapshot, output, budget=budget)))
    if loaded is not None and budget is not None:
        print()
        print("\n".join(closing_lines(budget, loaded.notes, output, verbose=options.verbose)))
    return 0
