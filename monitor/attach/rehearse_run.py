"""Rehearses a run beside it: its program, with its own interpreter, folder, arguments and environment."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import CannotTellError, InputError, VramtopError
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import Program
from vramtop.estimator.readers.source.evidence import Finding, JobReading

from ..host.containers import container_root
from ..host.interpreter import find_interpreter
from ..host.process_info import read_process
from ..host.process_stat import is_own_process
from ..host.run_processes import RunProcesses, find_run_processes
from ..probe.launch import without_probe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job.gpu_catalogue import Gpu
    from vramtop.estimator.trace.own_program import WhatRuns

    from .attachment import Attachment

_RANKS = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK"),
    *("PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID"),
)
_OF_THIS_START = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
"""Variables that differ with each start, and what they are in a rehearsal, which meets no other rank."""
_NO_NETWORK = "a program is offline only"
"""Part of what a kernel or container answers that cannot take the network away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgram:
    """The program of a run, as a rehearsal starts it."""

    program: Program
    environ: Mapping[str, str] = field(repr=False)
    """The environment of rank 0; it may contain secrets."""
    ranks: int
    """Processes of the run on this machine's GPUs."""
    spawns: bool
    """The program starts its ranks itself, one for each GPU that it finds."""

    def what_runs(self) -> WhatRuns:
        """Return what a rehearsal would start, for the user to agree to.

        Raises:
            InputError: it is no command of Python's, or others decide what it runs.
        """
        from vramtop.estimator.trace.own_program import what_runs

        return what_runs(self.program, self.environ)

    def rehearse(
        self, *, gpu: Gpu | None = None, gpus: int = 1, progress: Callable[[str], None] | None = None
    ) -> Budget:
        """Run it once more, without a GPU or network, at the lowest priority; where that must be, with the network.

        Args:
            gpu: that it finds; None: a Hopper GPU of 80 GiB.
            gpus: that a run of one process holds.
            progress: called with a few words about what is being done.

        Raises:
            InputError: it is no command of Python's, or others decide what it runs.
            CannotTellError: it ended before an optimizer had stepped.
        """
        program = replace(self.program, gpus=self.ranks if self.ranks > 1 else max(1, gpus))
        try:
            return self._rehearse(program, gpu, progress)
        except CannotTellError as error:
            if _NO_NETWORK not in error.message:
                raise
        return self._rehearse(replace(program, offline=False), gpu, progress)

    def _rehearse(self, program: Program, gpu: Gpu | None, progress: Callable[[str], None] | None) -> Budget:
        from vramtop.estimator.trace.rehearsal import rehearse_job

        found = rehearse_job(
            Job(program=program),
            gpu=gpu,
            environ=self.environ,
            progress=progress,
            may_run=True,
            kept=False,
            background=True,
        )
        return found.budget

    def kept(self) -> JobReading | None:
        """Return the job of this program as it was rehearsed last; None: never, or something has changed since."""
        from vramtop.estimator.trace.kept_rehearsals import of_run
        from vramtop.estimator.trace.python_command import python_command

        program = self.program
        try:
            python, words, given = python_command(program.words, self.environ, program.python, folder=program.folder)
        except InputError:
            return None
        found = of_run(python, words, program.folder or "", {**self.environ, **given})
        if found is None or (self.spawns and found[1].answer.world_size < self.ranks):
            return None
        name, kept = found
        command = shlex.join([kept.python, *kept.words])
        return reading_of(Program(command=command, folder=program.folder, kept=name), kept.date)


def reading_of(program: Program, date: str) -> JobReading:
    """Return a rehearsed program as the job of a run."""
    values = {"command": program.command, "folder": program.folder, "python": program.python, "kept": program.kept}
    said = f"rehearsed on {date}"
    findings = (
        Finding(key=f"program.{key}", value=text, origin=said, written=True) for key, text in values.items() if text
    )
    return JobReading(findings=tuple(findings), missing=(), warnings=())


def find_program(pid: int, *, start_time: float | None = None, on_gpu: Collection[int] | None = None) -> RunProgram:
    """Return the program of this user's run.

    Args:
        pid: any process of the run.
        start_time: its start time if it was seen before, because pids are reused.
        on_gpu: pids that hold GPU memory, from the driver.

    Raises:
        InputError: there is no such process.
        CannotTellError: it is another user's, in a container, has ended, or cannot be started again.
    """
    run = find_run_processes(read_process(pid, start_time=start_time), on_gpu=on_gpu)
    for process in filter(None, (run.program, run.launcher)):
        if not is_own_process(process.pid):
            owner = f" belongs to {process.user}" if process.user else " is not this user's"
            raise CannotTellError(f"Process {process.pid}{owner}: vramtop rehearses only your own runs.")
        if container_root(process.pid) is not None:
            raise CannotTellError(
                f"Process {process.pid} runs in a container, whose files are not those of this machine: start vramtop "
                "in the container to rehearse it."
            )
    return program_of_run(run, find_interpreter(run.program))


def program_of_run(run: RunProcesses, interpreter: Path | None) -> RunProgram:
    """Return the program of a run; if a launcher started its ranks, the launcher's command.

    Args:
        run: its processes, in our own root folder.
        interpreter: of its program.

    Raises:
        CannotTellError: it trains nothing that ends, or a part of it is hidden or gone.
    """
    started, pid = run.launcher or run.program, run.program.pid
    if run.program.launch.is_kernel or "notebook" in run.program.launch.launchers:
        raise CannotTellError(f"Process {pid} runs a notebook; save it as a script to rehearse it.")
    if run.program.known_program.kind == "server":
        raise CannotTellError(f"Process {pid} is a server, which trains nothing: there is nothing to rehearse.")
    if started.environ is None or started.cwd is None:
        raise CannotTellError(f"Process {started.pid} hides {' and '.join(started.hidden)}: it cannot be rehearsed.")
    if not started.cwd.is_dir():
        raise CannotTellError(f"The folder of process {started.pid} is gone, so it cannot be rehearsed: {started.cwd}")
    if interpreter is None or not os.access(interpreter, os.X_OK):
        raise CannotTellError(f"The interpreter of process {pid} is gone, so it cannot be rehearsed.")
    words, folder = [*started.argv], str(started.cwd.resolve())
    program = Program(command=shlex.join(words), folder=folder, python=str(interpreter), offline=True)
    environ = without_probe(started.environ)
    rank_0 = {**dict.fromkeys(_RANKS, "0"), **_OF_THIS_START}
    environ |= {name: value for name, value in rank_0.items() if name in environ}
    return RunProgram(program=program, environ=environ, ranks=len(run.ranks), spawns=run.self_started)


def with_rehearsal(attachment: Attachment, budget: Budget) -> Attachment:
    """Return a run with the program of its rehearsal as its job, also where that is not kept."""
    program = budget.job.program
    if program is None or attachment.reading.value("program.command") is not None:
        return attachment
    return replace(attachment, reading=reading_of(program, time.strftime("%Y-%m-%d %H:%M")), warnings=())


def kept_rehearsal(run: RunProcesses, interpreter: Path | None) -> JobReading | None:
    """Return the job of a run whose program the user has rehearsed, with the same arguments and environment."""
    try:
        return program_of_run(run, interpreter).kept()
    except VramtopError:
        return None
