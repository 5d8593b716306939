"""Rehearses programs that were not wholly read, where the user agrees: on a terminal, or by a flag or setting."""

import argparse
import shlex
import sys
from collections.abc import Sequence

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import NOT_REHEARSED, CannotTellError, Verdict, VramtopError
from vramtop.estimator.common.secrets import displayed
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.job.gpu_catalogue import Gpu
from vramtop.estimator.job.job import Job

from ..draw.text_output import detect_output, printable
from ..job.loaded_job import LoadedJob
from ..job.program_job import rehearsing
from .progress import Progress


def rehearsal_of(
    options: argparse.Namespace,
    job: Job,
    gpu: Gpu | None,
    memory_bytes: int | None,
    *,
    known: Sequence[str] = (),
    kept: bool = True,
) -> Budget | None:
    """Return the rehearsal of a program: one that is kept, or a new one if the user agrees; None: neither.

    Args:
        options: of the command line.
        job: with a program.
        gpu: that the program finds.
        memory_bytes: its memory.
        known: sentences for the user to decide by: what is known without a rehearsal.
        kept: a kept rehearsal may be taken.

    Raises:
        InputError: it is no command of Python's, or others decide what it runs.
        CannotTellError: the program ended before an optimizer had stepped.
    """
    from vramtop.estimator.trace.rehearsal import rehearse_job  # only where a program is rehearsed

    def rehearse(*, may_run: bool) -> Budget:
        with Progress(quiet=options.json) as progress:
            return rehearse_job(
                job, gpu=gpu, memory_bytes=memory_bytes, progress=progress, may_run=may_run, kept=kept
            ).budget

    if getattr(options, "rehearse", False):
        return rehearse(may_run=True)
    try:
        return rehearse(may_run=False)
    except CannotTellError as error:
        if not error.message.startswith(NOT_REHEARSED):
            raise
    return rehearse(may_run=True) if may_run(options, job, known) else None


def rehearsal_is_kept(job: Job, gpu: Gpu | None, memory_bytes: int | None) -> bool:
    """Return True if a rehearsal of a program is kept that still holds."""
    from vramtop.estimator.trace.rehearsal import rehearse_job

    try:
        rehearse_job(job, gpu=gpu, memory_bytes=memory_bytes)
    except CannotTellError:
        return False
    return True


def may_run(options: argparse.Namespace, job: Job, known: Sequence[str] = ()) -> bool:
    """Return True if the user lets the program of a job run: by a flag, or on a terminal by setting or answer.

    The answer counts for the rest of the command.

    Raises:
        InputError: others decide what it runs.
    """
    if (asked := getattr(options, "rehearse", False)) is not None:
        return bool(asked)
    if options.json or not (sys.stdin.isatty() and sys.stdout.isatty()) or job.program is None:
        return False
    from vramtop.estimator.trace.own_program import what_runs

    what = what_runs(job.program)
    if options.settings.values["estimates.rehearse"] != "always":
        options.rehearse = _ask(options, known, [
            ("command", what.command),
            ("folder", what.folder),
            ("Python", what.interpreter),
            ("script", f"{what.script}, of {what.owner}"),
        ])  # fmt: skip
        return bool(options.rehearse)
    return True


_YES, _NO = ("", "y", "yes"), ("n", "no")
_DISCARDED = "it runs without a GPU, and what it writes is discarded"


def _ask(options: argparse.Namespace, known: Sequence[str], rows: Sequence[tuple[str, str]]) -> bool:
    """Ask until the answer is yes or no; the end of the input is a no."""
    output = detect_output(ascii_only=options.ascii)
    for sentence in known:
        print("\n".join(output.wrapped(printable(sentence), further="  ")))
    print("\n".join(output.text(f"  {name:<9}{printable(text)}") for name, text in rows))
    while True:
        print(f"Rehearse it for the exact figure ({_DISCARDED})? [Y/n] ", end="", flush=True)
        line = sys.stdin.readline()
        answer = line.strip().lower()
        if not line or answer in _NO:
            print(flush=True)
            return False
        if answer in _YES:
            return True


def is_open(loaded: LoadedJob, budget: Budget, verdict: Verdict) -> bool:
    """Return True if what was not read of a program could change its verdict, and a rehearsal would tell it."""
    if loaded.program is None or budget.rehearsal is not None or loaded.typed:
        return False
    return verdict in ("tight", "unknown") and bool(loaded.unknown(budget))


_MOST_UNKNOWN = 4


def what_is_known(loaded: LoadedJob, budget: Budget | None = None, need: str | None = None) -> tuple[str, ...]:
    """Return what a program needs as far as it was read, and what is not known of it."""
    read = f"read from the {loaded.place or 'command line'}"
    first = f"Needs about {need}, {read}." if need else f"The program was {read}."
    unknown = loaded.unknown(budget)
    if budget is not None and unknown == (budget.doubt,):
        return (f"{first} {budget.doubt}",)
    more = [f"and {len(unknown) - _MOST_UNKNOWN} more"] if len(unknown) > _MOST_UNKNOWN else []
    listed = [f"- {each}" for each in (*unknown[:_MOST_UNKNOWN], *more)]
    return f"{first} Not known:", *listed


def offer_of(options: argparse.Namespace, loaded: LoadedJob, budget: Budget | None) -> str | None:
    """Return the command that rehearses a program of which something is not known; None: all is, or it cannot be."""
    is_rehearsed = budget is not None and budget.rehearsal is not None
    if loaded.program is None or is_rehearsed or not loaded.unknown(budget):
        return None
    line = rehearsing_line(options, loaded.program)
    return f"vramtop read the program but did not run it; {line} runs it without a GPU."


def not_rehearsed(
    options: argparse.Namespace, loaded: LoadedJob, gpu: Gpu | None, memory_bytes: int | None
) -> CannotTellError:
    """Return the error for a program that was not rehearsed; its last line is the command to rehearse it."""
    if loaded.unread is None:
        from vramtop.estimator.trace.rehearsal import rehearse_job

        try:
            rehearse_job(loaded.job, gpu=gpu, memory_bytes=memory_bytes)
        except CannotTellError as not_kept:
            return not_kept
    error = CannotTellError(f"{NOT_REHEARSED}{rehearsing_line(options, loaded.job)} runs the program without a GPU")
    error.output = loaded.unread or ""
    return error


def usual_need(loaded: LoadedJob, gpu: Gpu | None) -> tuple[str, ...]:
    """Return what a program of which batch or length are not known needs at the usual ones, as a sentence."""
    from vramtop.estimator.estimation import estimate

    job = loaded.at_usual_sizes
    if job is None:
        return ()
    try:
        budget = estimate(job, method="formula", gpu=gpu)
    except VramtopError:  # what else is wrong with it is no reason not to run it
        return ()
    sizes = f"{job.training.micro_batch} x {job.training.sequence_length:,} tokens"
    ranks = job.parallel.world_size
    each = f"each of {ranks:,} GPUs needs" if ranks > 1 else "it needs"
    return (f"At {sizes} on a GPU, which is a guess, {each} about {format_gib(budget.peak.device_bytes)} GiB.",)


_MACHINE_FLAGS = ("gpu_type", "gpu_memory", "gpu", "gpus", "host_memory")


def rehearsing_line(options: argparse.Namespace, job: Job) -> str:
    """Return the command of vramtop that rehearses a program, for the machine of the command line."""
    words = ["vramtop", *rehearsing(options.command).split()]
    for name in _MACHINE_FLAGS:
        if value := getattr(options, name, None):
            words += [f"--{name.replace('_', '-')}", str(value)]
    if options.names_python:
        words += ["--python", options.python]
    if getattr(options, "exec", None) == []:
        words.append("--exec")
    command = job.program.command if job.program is not None else ""
    return displayed(f"{shlex.join(words)} -- {command}")
