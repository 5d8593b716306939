"""Runs a suite, part by part, and keeps every row: what was measured, what failed and why (``make gpu``).

    suite.py FILE [--part PART] [--cpu] [--out FILE] ...

Exit code 0: every row is there; 2: wrong input; 3: it cannot run, or there was no time for some rows.
"""

import argparse
import contextlib
import functools
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psutil
from msgspec import Meta, Struct
from suite_programs import run_program
from suite_results import ResultsFile, SuiteResults, SuiteRow

from vramtop.estimator.common.cancellation import CancelToken
from vramtop.estimator.common.errors import CannotTellError, ExitCode, InputError, VramtopError
from vramtop.estimator.common.paths import note_job_folder
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import MIB
from vramtop.estimator.common.untrusted_files import parse_toml, read_file
from vramtop.estimator.common.version import version_number
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.gpu_catalogue import match_nvml_name
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.job_file.load_and_save import names_user_code
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.job.settings import ModelSpec, Software
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.trace.installed_packages import Interpreter, installed_packages, torch_build
from vramtop.estimator.trace.interpreters import choose_interpreter
from vramtop.estimator.trace.measure.tiny_job import tiny_job
from vramtop.estimator.trace.worker_pool import keep_idle_workers
from vramtop.tui.cli.json_text import json_text
from vramtop.tui.cli.measuring.free_gpus import FreeGpus, NoFreeGpus, OpenGpus
from vramtop.tui.cli.measuring.measure_job import MeasuredJob, Measuring, measure_job
from vramtop.tui.cli.measuring.measured_report import measured_json, peak_json

# The table of a suite (TOML): parts, each with jobs and programs that are measured one after another.
#
#     [job.training]                 # settings that all jobs share, as in a job file
#     precision = "bf16"
#     [models.small]                 # a model of the jobs, described as in a job file
#     id = "gpt2"
#     [[part]]
#     name = "steps"
#     minutes = 9                    # it stops after this time, and goes on when it is started again
#     steps = 6                      # optimizer steps of each job
#     jobs = [
#         { model = "small", training = { micro_batch = 4, sequence_length = 512 }, lora = { rank = 16 } },
#         { model = "small", training = { compile = true }, seconds = 90 },   # not started when less time is left
#     ]
#     programs = [{ name = "context", file = "context.py", arguments = ["--lazy"], seconds = 60 }]
#
# A program is a Python file beside the table. It prints what it has measured as objects of JSON, one a line.


_Seconds = Annotated[float, Meta(gt=0, le=3600)]
_TABLES = ("training", "lora", "parallel", "software")
_SIZES = {"micro_batch": "b", "sequence_length": "s"}
_SUITE_TABLE_LIBRARIES = ("transformers", "bitsandbytes", "flash-attn", "liger-kernel", "peft")
"""Distributions that some jobs need beside torch."""
JOB_SECONDS = 25.0
"""Time that a job is expected to take at most, with its process's start."""


class Program(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program that measures something else than a job's steps."""

    name: str
    file: str
    """A Python file, beside the table."""
    arguments: list[str] = []
    seconds: _Seconds = 60
    """Time that it takes at most; then it is ended."""


class SuiteJob(Struct, frozen=True, kw_only=True):
    """A job of a suite."""

    job: Job
    seconds: float

    @property
    def name(self) -> str:
        """Its name in the results."""
        return self.job.label

    @property
    def needs(self) -> tuple[str, ...]:
        """Distributions that its steps need beside torch."""
        training, lora = self.job.training, self.job.lora
        libraries = {"transformers"} - ({"transformers"} if names_user_code(self.job.model.id) else set())
        libraries |= set(resolve_job(self.job).optimizer.libraries) if training.optimizer_class is None else set()
        if lora is not None:
            libraries |= {"peft"} if lora.quantization == "none" else {"peft", "bitsandbytes"}
        if self.job.model.attention.startswith("flash_attention"):
            libraries.add("flash-attn")
        if training.loss == "fused-linear" or training.fused_kernels:
            libraries.add("liger-kernel")
        return tuple(name for name in _SUITE_TABLE_LIBRARIES if name in libraries)


class Part(Struct, frozen=True, kw_only=True):
    """A part of a suite."""

    name: str
    minutes: float
    steps: int
    jobs: tuple[SuiteJob, ...]
    programs: tuple[Program, ...]

    @property
    def names(self) -> list[str]:
        """Names of its rows."""
        return [*(program.name for program in self.programs), *(job.name for job in self.jobs)]


class _PartTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    minutes: Annotated[float, Meta(gt=0, le=24 * 60)] = 9
    steps: Annotated[int, Meta(ge=1, le=1000)] = 6
    jobs: list[dict[str, Any]] = []
    programs: list[Program] = []


class _Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    part: list[_PartTable]
    job: dict[str, dict[str, Any]] = {}
    models: dict[str, dict[str, Any]] = {}


def read_suite(path: Path) -> tuple[Part, ...]:
    """Return the parts of a suite.

    Raises:
        InputError: the file cannot be read, or something in it is wrong.
    """
    try:
        table = msgspec.convert(parse_toml(read_file(path).decode()), _Table)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: not a suite: {error}") from None
    note_job_folder(path.parent)
    parts = tuple(_part(path, table, part) for part in table.part)
    names = [(part.name, name) for part in parts for name in part.names]
    twice = next((f"{part}: {name}" for part, name in names if names.count((part, name)) > 1), None)
    if twice is not None or not names:
        raise InputError(f"{path}: {f'{twice} occurs twice' if twice else 'it has no job and no program'}")
    return parts


def chosen_parts(parts: Sequence[Part], wanted: Sequence[str]) -> tuple[Part, ...]:
    """Return the parts with these names or numbers; all if there are none.

    Raises:
        InputError: there is no such part.
    """
    found = {key: part for at, part in enumerate(parts, 1) for key in (str(at), part.name)}
    absent = next((key for key in wanted if key not in found), None)
    if absent is not None:
        known = ", ".join(f"{at} ({part.name})" for at, part in enumerate(parts, 1))
        raise InputError(f"--part {absent}: no such part; the suite has {known}")
    return tuple(found[key] for key in wanted) or tuple(parts)


def _part(path: Path, table: _Table, part: _PartTable) -> Part:
    jobs = tuple(_job(path, table, entry, f"{path}: {part.name}, job {at}") for at, entry in enumerate(part.jobs, 1))
    return Part(name=part.name, minutes=part.minutes, steps=part.steps, jobs=jobs, programs=tuple(part.programs))


def _job(path: Path, table: _Table, entry: Mapping[str, Any], where: str) -> SuiteJob:
    unknown = sorted(set(entry) - {"model", "attention", "seconds", *_TABLES})
    name = entry.get("model")
    if unknown or name not in table.models:
        wrong = f"unknown key {unknown[0]}" if unknown else f"[models.{name}] is not in the table"
        raise InputError(f"{where}: {wrong}")
    model = {**table.models[name], **({"attention": entry["attention"]} if "attention" in entry else {})}
    if names_user_code(model.get("id")):
        model["code_folder"] = str(path.parent.resolve())
    own = {key: entry[key] for key in _TABLES if key in entry}
    shared = {key: {**table.job.get(key, {}), **own.get(key, {})} for key in {*table.job, *own}}
    label = " ".join((name, *_words(shared, entry)))
    seconds = float(entry.get("seconds", JOB_SECONDS))
    return SuiteJob(job=job_from_mapping({"name": label, "model": model, **shared}, where=where), seconds=seconds)


def _words(tables: Mapping[str, Mapping[str, Any]], entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of a job's name: its sizes, then its settings, those that are words without their keys."""
    training = tables.get("training", {})
    yield from (f"{letter}{training[key]}" for key, letter in _SIZES.items() if key in training)
    if "attention" in entry:
        yield str(entry["attention"])
    if "lora" in entry:
        yield "lora"
    for table in _TABLES:
        for key, value in tables.get(table, {}).items():
            if key not in _SIZES:
                plain = isinstance(value, str)
                yield f"{value}" if plain else key if value is True else f"{key} {_word(value)}"


def _word(value: object) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


class _GpusInTurn(FreeGpus):
    """The GPUs while one job after another has them; jobs are prepared without."""

    turn: threading.Lock = msgspec.field(default_factory=threading.Lock)
    """Held from ``ready`` until ``release``."""
    _has_turn: bool = False

    def read(self, stage: str, pids: Sequence[int]) -> None:
        """Read NVML; at ``ready``, wait for the GPUs first."""
        if stage == "ready":
            self._has_turn = self.turn.acquire()
        FreeGpus.read(self, stage, pids)

    def release(self) -> None:
        """Let the next job have the GPUs."""
        if self._has_turn:
            self._has_turn = False
            self.turn.release()


@dataclass(frozen=True, slots=True)
class FixedGpus:
    """The GPUs that the jobs of a suite have in turn, chosen while none of them runs."""

    chosen: FreeGpus
    turn: threading.Lock = field(default_factory=threading.Lock)

    def free(self, ranks: int) -> FreeGpus:
        """Return the GPUs for this number of ranks.

        Raises:
            NoFreeGpus: there are not enough.
        """
        if ranks > len(self.chosen.devices):
            raise NoFreeGpus(f"the job has {ranks} ranks, and the suite has {len(self.chosen.devices)} GPU")
        return _GpusInTurn(self.chosen.source, self.chosen.devices[:ranks], self.chosen.snapshot, turn=self.turn)


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
            self.say(f"{part.name}: no time left for {left}; run the same command again to continue")
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
        raise CannotTellError(
            f"torch {torch.version} of {interpreter.path} was built without CUDA, so it cannot run anything"
        )
    works = transformers_has_torch(interpreter)
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
        say(f"not installed: {missing[name]}" + (f" (needed by {count} job{'s' * (count > 1)})" if count else ""))
    if gpus is not None and works:
        _try_gpu(how)
    say(f"results: {file.path}" if file.path else "results are not saved; --out FILE saves them")
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


def transformers_has_torch(interpreter: Interpreter) -> bool:
    """Have an interpreter import transformers, which leaves a torch out that is too old for it.

    Raises:
        CannotTellError: it cannot be imported.
    """
    ask = "import transformers; print(transformers.is_torch_available())"
    try:
        found = subprocess.run(
            [interpreter.path, "-u", "-c", ask], capture_output=True, text=True, timeout=_IMPORT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotTellError(f"transformers cannot be imported by {interpreter.path}: {error}") from None
    return found.stdout.split()[-1:] == ["True"]


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path, help="the table")
    parser.add_argument("--part", action="append", default=[], help="only this part, by name or number (repeatable)")
    parser.add_argument("--again", action="store_true", help="also repeat jobs that failed before")
    parser.add_argument("--out", type=Path, help="file for the results (default: CARD-DATE.json beside the table)")
    parser.add_argument("--cpu", action="store_true", help="tiny models on the CPU")
    parser.add_argument("--gpu", help="only these GPUs")
    parser.add_argument("--method", choices=("auto", "formula", "exact", "traced"), default="auto")
    parser.add_argument("--python", help="the Python that has torch")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args(arguments)

    def say(text: str) -> None:
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    with contextlib.ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):  # what it has started ends with it
            stack.callback(signal.signal, number, signal.signal(number, end))
        try:
            parts = chosen_parts(read_suite(options.suite), options.part)
            opened = None if options.cpu else stack.enter_context(OpenGpus.open(options.gpu))
            how = Measuring(
                gpus=FixedGpus(opened.free(1)) if opened else None,
                steps=1,
                timeout=600.0,
                limit_bytes=None,
                method=options.method,
                python=options.python,
                keep=False,  # rows that were measured before would correct the predictions of later ones
                progress=lambda _: None,
            )
            suite = open_suite(parts, options.suite.parent, options.out, how, say, again=options.again)
            left = suite.run()
        except VramtopError as error:
            print(f"suite.py: {error.message}", file=sys.stderr)
            return error.exit_code
        if options.json:
            print(json_text(msgspec.to_builtins(suite.file.results)))
        return ExitCode.CANNOT_TELL if left else ExitCode.DONE


if __name__ == "__main__":
    raise SystemExit(main())
