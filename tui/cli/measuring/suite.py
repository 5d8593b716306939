"""Runs a suite, part by part, and keeps every row: what was measured, what failed and why."""

import contextlib
import functools
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import psutil

from vramtop.estimator.common import (
    MIB,
    CancelToken,
    CannotTellError,
    InputError,
    version_number,
)
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job import Job, ModelSpec, Software, match_nvml_name
from vramtop.estimator.model import resolve_model
from vramtop.estimator.trace import (
    POOL,
    Interpreter,
    choose_interpreter,
    convert_answer,
    keep_idle_workers,
    torch_build,
)
from vramtop.estimator.trace.installed_packages import installed_packages
from vramtop.estimator.trace.measure import tiny_job

from .free_gpus import FixedGpus
from .measured_job import MeasuredJob, Measuring, measure_job, predicted
from .measured_report import measured_json, peak_json
from .suite_programs import run_program
from .suite_results import ResultsFile, SuiteResults, SuiteRow
from .suite_table import Part, Program, SuiteJob

_LIBRARIES = ("torch", "transformers", "accelerate", "peft", "bitsandbytes", "flash-attn", "liger-kernel", "triton")
_CORES_PER_JOB, _MAX_JOBS_AT_ONCE = 4, 4
"""Cores for one job that is prepared while another has the GPU."""
_TINY_STEPS = 3
_PATIENCE = 3
"""A job is ended after so many times the seconds that it is expected to take: one that hangs costs no more."""
_IMPORT_SECONDS = 180.0
TORCH_PYTHON = "VRAMTOP_TORCH_PYTHON"
"""Environment variable of programs: the Python that has torch."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A suite on this machine.

    Args:
        parts: that are to be measured.
        folder: of the table, in which its programs are.
        file: of the results.
        how: each job is measured.
        python: the interpreter with torch.
        missing: libraries that are not installed there, or not for this torch, in words.
        again: also what failed before is measured.
        say: prints a line.
    """

    parts: Sequence[Part]
    folder: Path
    file: ResultsFile
    how: Measuring
    python: Path
    missing: Mapping[str, str]
    again: bool
    say: Callable[[str], None]

    def run(self) -> int:
        """Measure what the results lack; return how many jobs and programs there was no time for."""
        return sum(self._run_part(part) for part in self.parts)

    def predict(self) -> int:
        """Predict all jobs, and run nothing; return 0, as nothing is left to do."""
        for part in self.parts:
            for entry in part.jobs:
                unmeasured = MeasuredJob(job=entry.job, budget=None)
                row = _row(part, entry.name, predicted(entry.job, self.how, None, unmeasured), self.how)
                self.file.add(row)
                self.say(_line(row))
        return 0

    def _run_part(self, part: Part) -> int:
        jobs = [job for job in part.jobs if self._is_open(part, job.name)]
        programs = [program for program in part.programs if self._is_open(part, program.name)]
        done = len(part.jobs) + len(part.programs) - len(jobs) - len(programs)
        known = f", {done} of them measured before" if done else ""
        self.say(f"{part.name}: {len(part.jobs)} jobs, {len(part.programs)} programs{known}; {part.minutes:g} minutes")
        token, end = CancelToken(), time.monotonic() + part.minutes * 60
        timer = threading.Timer(part.minutes * 60, token.cancel)
        timer.daemon = True
        timer.start()
        try:
            for program in programs:
                if time.monotonic() + program.seconds < end:
                    self._keep(part, program.name, token, functools.partial(self._program_row, part, program))
            self._run_jobs(part, jobs, token, end)
        finally:
            timer.cancel()
        left = sum(self.file.results.row(part.name, name) is None for name in part.names)
        if left:
            self.say(f"{part.name}: no time for {left}; the same command goes on with them")
        return left

    def _is_open(self, part: Part, name: str) -> bool:
        row = self.file.results.row(part.name, name)
        return row is None or bool(row.lacks) or (self.again and row.error is not None)

    def _run_jobs(self, part: Part, jobs: Sequence[SuiteJob], token: CancelToken, end: float) -> None:
        """Run the jobs: some are prepared and predicted while one has the GPU."""
        waiting = iter(jobs)
        lock = threading.Lock()

        def work() -> None:
            while not token.cancelled:
                with lock:
                    job = next(waiting, None)
                if job is None:
                    return
                if time.monotonic() + job.seconds < end:
                    self._keep(part, job.name, token, functools.partial(self._job_row, part, job))

        count = max(2, min(_MAX_JOBS_AT_ONCE, (os.cpu_count() or 1) // _CORES_PER_JOB)) if self.how.gpus else 1
        with ThreadPoolExecutor(count) as pool:
            futures = [pool.submit(work) for _ in range(min(count, len(jobs)))]
            try:
                wait(futures)
            except BaseException:
                token.cancel()
                raise
            for future in futures:
                future.result()

    def _keep(self, part: Part, name: str, token: CancelToken, measure: Callable[[], SuiteRow]) -> None:
        """Measure, and keep the row, unless time ran out meanwhile; whatever goes wrong is a row too."""
        started = time.monotonic()
        with token.scope():
            try:
                row = measure()
            except InputError as error:
                row = SuiteRow(part=part.name, name=name, error=error.message)
            except Exception as error:  # noqa: BLE001 - one row must not end the others
                text = " ".join(str(error).split())[:300]
                row = SuiteRow(part=part.name, name=name, error=f"{type(error).__name__}: {text}")
        if token.cancelled:
            return
        row.seconds = round(time.monotonic() - started, 1) if row.seconds is None else row.seconds
        self.file.add(row)
        self.say(_line(row))

    def _job_row(self, part: Part, entry: SuiteJob) -> SuiteRow:
        lacking = [self.missing[name] for name in entry.needs if name in self.missing]
        if lacking:
            error = f"needs {', '.join(lacking)}"
            return SuiteRow(part=part.name, name=entry.name, error=error, lacks=lacking, seconds=0.0)
        steps = part.steps if self.how.gpus else min(part.steps, _TINY_STEPS)
        how = replace(self.how, steps=steps, timeout=min(self.how.timeout, _PATIENCE * entry.seconds))
        found = measure_job(how.job(self._with_versions(entry.job)), how)
        # the name is that of the table, also of a tiny model
        return _row(part, entry.name, found, how)

    def _with_versions(self, job: Job) -> Job:
        """Return the job with the versions that run it."""
        names = ("torch", "cuda", "transformers", "peft", "bitsandbytes")
        known = self.file.results.versions
        versions = {name: known[name].partition("+")[0] for name in names if name in known}
        stated = {name: value for name, value in msgspec.structs.asdict(job.software).items() if value is not None}
        return msgspec.structs.replace(job, software=Software(**{**versions, **stated}))

    def _program_row(self, part: Part, program: Program) -> SuiteRow:
        path = self.folder / program.file
        if not path.is_file():
            return SuiteRow(part=part.name, name=program.name, error=f"{path} is not there")
        command = [sys.executable, str(path), *program.arguments, *([] if self.how.gpus else ["--cpu"])]
        environ = {**os.environ, TORCH_PYTHON: str(self.python)}
        done = run_program(command, environ=environ, seconds=program.seconds)
        return SuiteRow(part=part.name, name=program.name, error=done.error, figures=list(done.figures))


def open_suite(
    parts: Sequence[Part],
    folder: Path,
    out: Path | None,
    how: Measuring,
    say: Callable[[str], None],
    *,
    again: bool = False,
) -> Suite:
    """Look at the machine, say what is missing for which jobs, and open the results.

    Args:
        parts: that are to be measured.
        folder: of the table.
        out: file of the results; None: beside the table on a GPU, and nowhere without one.
        how: each job is measured.
        say: prints a line.
        again: measure also what failed before.

    Raises:
        InputError: the file of results has something else.
        CannotTellError: nothing of the suite can run here.
    """
    keep_idle_workers()
    gpus = how.gpus.chosen if isinstance(how.gpus, FixedGpus) else None
    interpreter = choose_interpreter(how.python, os.environ)
    found, torch = installed_packages(interpreter.path, distributions=_LIBRARIES), torch_build(interpreter.path)
    if torch.problem is not None:
        raise CannotTellError(f"torch cannot be imported by {interpreter.path}: {torch.problem}")
    if gpus is not None and torch.cuda is None:
        raise CannotTellError(f"torch {torch.version} of {interpreter.path} was built without CUDA; nothing can be run")
    works = _Libraries.of(interpreter).transformers_has_torch
    cuda = {"cuda": torch.cuda} if torch.cuda else {}
    results = SuiteResults(
        card=gpus.name if gpus else None,
        driver=gpus.driver if gpus else None,
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        machine={
            "cores": os.cpu_count() or 0,
            "memory_bytes": psutil.virtual_memory().total,
            "system": platform.platform(),
            **({"gpu_bytes": gpus.devices[0].total_bytes or 0} if gpus else {}),
        },
        versions={"vramtop": version_number() or "checkout", "python": found.python, **found.versions, **cuda},
    )
    file = ResultsFile.open(out or _usual_file(folder, results), results)
    missing = {name: name for name in _LIBRARIES if name not in found.versions}
    if not works:
        missing["transformers"] = f"a transformers for torch {found.versions.get('torch')}"
    say(f"{gpus.name if gpus else 'no GPU: tiny models on the CPU'}; {interpreter.path}: {_listed(results.versions)}")
    for name in sorted(missing):
        count = sum(name in job.needs for part in parts for job in part.jobs)
        say(f"not installed: {missing[name]}" + (f", which {count} jobs need" if count else ""))
    if gpus is not None and works:
        _try_gpu(how)
    say(f"results: {file.path}" if file.path else "results are not kept; --out FILE keeps them")
    return Suite(
        parts=parts,
        folder=folder,
        file=file,
        how=how,
        python=interpreter.path,
        missing=missing,
        again=again,
        say=say,
    )


def _usual_file(folder: Path, results: SuiteResults) -> Path | None:
    """Return CARD-DATE.json beside the table, of yesterday if there is one; None without a GPU."""
    if results.card is None:
        return None
    card = "-".join(word for word in results.card.lower().split() if word not in ("nvidia", "geforce"))
    days = (time.strftime("%Y-%m-%d", time.gmtime(time.time() - ago)) for ago in (86_400, 0))
    begun, new = (folder / f"{card}-{day}.json" for day in days)
    return begun if begun.exists() and not new.exists() else new


class _Libraries(msgspec.Struct, frozen=True):
    """A worker's answer to the request ``ping``."""

    transformers_has_torch: bool

    @classmethod
    def of(cls, interpreter: Interpreter) -> "_Libraries":
        """Have an interpreter import its libraries.

        Raises:
            CannotTellError: they cannot be imported.
        """
        return convert_answer(POOL.request(interpreter, {"op": "ping"}, _IMPORT_SECONDS), cls)


def _try_gpu(how: Measuring) -> None:
    """Run one step of a tiny model, so that a GPU that torch cannot use is said once, and not in every row.

    Raises:
        CannotTellError: it does not run.
    """
    job = Job(name="a tiny model, to try the GPU", model=ModelSpec(id="gpt2"))
    found = measure_job(tiny_job(job, resolve_model(job.model)), replace(how, steps=1, method="formula"))
    if found.error is not None:
        raise CannotTellError(found.error)


def _row(part: Part, name: str, found: MeasuredJob, how: Measuring) -> SuiteRow:
    measured = measured_json(found)
    formula = None
    with contextlib.suppress(CannotTellError):  # a model that is code has no closed form
        gpu = match_nvml_name(found.card) if found.card else None
        formula = peak_json(found, estimate(how.predicted_job(found.job), method="formula", gpu=gpu))
    return SuiteRow(
        part=part.name, name=name, error=measured["error"], seconds=found.seconds, measured=measured, formula=formula
    )


def _line(row: SuiteRow) -> str:
    """Return a row in a line: what was measured, and by how much the predictions differ."""
    words = [f"{row.part}: {row.name}"]
    step, told = (row.measured["measured"], row.measured["predicted"]) if row.measured else (None, None)
    if step is not None:
        seen = {
            "allocated": step["max_allocated_bytes"],
            "reserved": step["max_reserved_bytes"],
            "device": step["process_bytes"] if step["process_bytes"] is not None else step["device_bytes"],
        }
        for name, size in seen.items():
            if size is not None:
                guesses = [each[f"{name}_bytes"] for each in (told, row.formula) if each is not None]  # type: ignore[literal-required]
                apart = ", ".join(f"{100 * (guess / size - 1):+.1f} %" for guess in guesses if guess is not None)
                words.append(f"{name} {size / MIB:,.1f} MiB ({apart or 'not predicted'})")
    if row.figures:
        failed = sum("error" in each for each in row.figures)
        words.append(f"{len(row.figures)} figures" + (f", {failed} of them errors" if failed else ""))
    if row.error:
        words.append(row.error)
    return "; ".join(words) + f"; {row.seconds:.1f} s" if row.seconds is not None else "; ".join(words)


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
