"""Runs a suite and keeps every row: jobs as ``vramtop measure`` runs them, and programs (``make gpu``).

    suite.py FILE [--part PART] [--cpu] [--out FILE] ...

Exit code 0: every row is there; 2: wrong input; 3: there was no time for some rows.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tomlkit
from msgspec import Meta, Struct
from suite_results import SuiteResults, SuiteRow, read_results, write_results

from vramtop.estimator.common.errors import CannotTellError, ExitCode, InputError, VramtopError
from vramtop.estimator.common.sizes import MIB
from vramtop.estimator.common.untrusted_files import parse_toml
from vramtop.estimator.common.version import version_number
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.gpu_catalogue import match_nvml_name
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.trace.installed_packages import installed_packages, torch_build
from vramtop.estimator.trace.interpreters import choose_interpreter

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

VRAMTOP = str(Path(sys.executable).with_name("vramtop"))
TORCH_PYTHON = "VRAMTOP_TORCH_PYTHON"
"""Environment variable of programs: the Python that has torch."""
_TABLES = ("training", "lora", "parallel")
_SIZES = {"micro_batch": "b", "sequence_length": "s"}
_SOFTWARE = ("torch", "transformers", "peft", "bitsandbytes")
_OTHERS = ("accelerate", "flash-attn", "liger-kernel", "triton")
_TINY_STEPS = 3
_PATIENCE = 3
"""A job is ended after so many times the seconds that it is expected to take: one that hangs costs no more."""
_END_SECONDS = 5.0


class Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job or a program of a suite."""

    name: str
    seconds: Annotated[float, Meta(gt=0, le=3600)]
    """Time that a program takes at most; that a job is expected to take."""
    job: dict[str, Any] = {}
    """The tables of a job file; empty: a program."""
    file: str = ""
    """A Python file, beside the table."""
    arguments: list[str] = []


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a suite."""

    name: str
    minutes: float = 9
    steps: int = 6
    entries: list[Entry] = []


def read_suite(path: Path) -> tuple[Part, ...]:
    """Return the parts of a suite.

    Raises:
        InputError: the file cannot be read, or something in it is wrong.
    """
    try:
        table = parse_toml(path.read_text(encoding="utf-8"))
        parts = []
        for part in table["part"]:
            programs = [{"seconds": 60.0, **each} for each in part.pop("programs", ())]
            jobs = [_job(path.parent, table, each) for each in part.pop("jobs", ())]
            parts.append(msgspec.convert({**part, "entries": [*programs, *jobs]}, Part))
    except (OSError, ValueError, KeyError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: not a suite: {error}") from None
    return tuple(parts)


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


def _job(folder: Path, table: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    attention = {"attention": entry["attention"]} if "attention" in entry else {}
    model = {**table["models"][entry["model"]], **attention, "code_folder": str(folder.resolve())}
    shared = table.get("job", {})
    own = {key: {**shared.get(key, {}), **entry.get(key, {})} for key in _TABLES if key in shared or key in entry}
    name = " ".join((entry["model"], *_words(own, entry)))
    return {"name": name, "seconds": entry.get("seconds", 25.0), "job": {"name": name, "model": model, **own}}


def _words(tables: Mapping[str, Mapping[str, Any]], entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of a job's name: its sizes, then its settings, those that are words without their keys."""
    yield from (f"{letter}{tables['training'][key]}" for key, letter in _SIZES.items() if key in tables["training"])
    yield from (entry[key] if key == "attention" else key for key in ("attention", "lora") if key in entry)
    settings = ((key, value) for table in tables.values() for key, value in table.items() if key not in _SIZES)
    for key, value in settings:
        yield value if isinstance(value, str) else key if value is True else f"{key} {value}"


class Suite(Struct, frozen=True, kw_only=True):
    """A suite on this machine."""

    folder: Path
    """Of the table, in which its programs are."""
    out: Path | None
    """File of the results; None: they are not kept."""
    results: SuiteResults
    python: str
    """The interpreter with torch."""
    words: tuple[str, ...]
    """Further words for ``vramtop measure``."""

    @property
    def on_cpu(self) -> bool:
        """Tiny models are run."""
        return self.results.card is None

    def run(self, part: Part) -> int:
        """Measure what the results of a part lack; return how many jobs and programs there was no time for."""
        end = time.monotonic() + 60 * part.minutes
        rows = [(entry, self.results.row(part.name, entry.name)) for entry in part.entries]
        todo = [entry for entry, row in rows if row is None or not row.is_done]
        print(f"{part.name}: {len(rows)} rows, {len(rows) - len(todo)} of them measured before", flush=True)
        left = 0
        for entry in todo:
            begun = time.monotonic()
            if begun + entry.seconds > end:
                left += 1
                continue
            row = self._job_row(part, entry) if entry.job else self._program_row(part, entry)
            row.seconds = round(time.monotonic() - begun, 1)
            before = self.results.row(part.name, entry.name)
            self.results.rows[:] = [*(each for each in self.results.rows if each is not before), row]
            if self.out is not None:
                write_results(self.out, self.results)
            print(_line(row), flush=True)
        if left:
            print(f"{part.name}: no time left for {left}; run the same command again to continue", flush=True)
        return left

    def _job_row(self, part: Part, entry: Entry) -> SuiteRow:
        row = SuiteRow(part=part.name, name=entry.name)
        steps = str(min(part.steps, _TINY_STEPS) if self.on_cpu else part.steps)
        known = self.results.versions
        software = {name: known[name].partition("+")[0] for name in (*_SOFTWARE, "cuda") if name in known}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "job.toml")
            path.write_text(tomlkit.dumps({**entry.job, "software": software}), encoding="utf-8")
            limit = _PATIENCE * entry.seconds
            words = ["--json", "--no-history", "--steps", steps, "--timeout", str(limit), "--python", self.python]
            printed, row.error = run_program(
                [VRAMTOP, "measure", str(path), *words, *self.words], seconds=2 * limit + 60, environ=os.environ
            )
        if not printed.startswith("{"):
            return row
        row.measured = found = json.loads(printed)
        row.error = found["error"]
        if not self.on_cpu and found["measured"] is not None:
            with contextlib.suppress(VramtopError):  # a model that is code has no closed form
                job = job_from_mapping(found["job"], where=entry.name)
                gpu = match_nvml_name(found["card"])
                row.formula = {"method": "formula", **estimate(job, method="formula", gpu=gpu).to_json()["peak"]}
        return row

    def _program_row(self, part: Part, entry: Entry) -> SuiteRow:
        command = [sys.executable, str(self.folder / entry.file), *entry.arguments, *(["--cpu"] if self.on_cpu else [])]
        environ = {**os.environ, TORCH_PYTHON: self.python}
        printed, error = run_program(command, seconds=entry.seconds, environ=environ)
        return SuiteRow(part=part.name, name=entry.name, error=error, figures=list(_figures(printed)))


def run_program(command: Sequence[str], *, seconds: float, environ: Mapping[str, str]) -> tuple[str, str | None]:
    """Run a program; return what it printed, and why it did not end well.

    After this time it is ended, with whatever it has started.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": errors}
        with subprocess.Popen(command, env=environ, start_new_session=True, **streams) as process:
            try:
                code: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, signal.SIGTERM)
                    process.wait(_END_SECONDS)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        for file in (output, errors):
            file.seek(0)
        last = errors.read().strip().rpartition("\n")[2][:300]
        if code == 0:
            return output.read(), None
        how = f"it was killed after {seconds:g} s" if code is None else f"it ended with code {code}"
        return output.read(), f"{how}: {last}" if last else how


def _figures(printed: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of JSON that a program has printed; another line becomes one with an error."""
    for number, line in enumerate(printed.splitlines(), 1):
        try:
            yield msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            yield {"name": f"line {number}", "error": f"not a JSON object ({error}): {line.strip()[:200]}"}


def _line(row: SuiteRow) -> str:
    """Return a row in a line: what was measured, and what was predicted."""
    words = [f"{row.part}: {row.name}"]
    step, told = (row.measured["measured"], row.measured["predicted"]) if row.measured else (None, None)
    if step is not None and step["max_allocated_bytes"] is not None:
        predicted = f", predicted {told['allocated_bytes'] / MIB:,.1f}" if told else ""
        words.append(f"allocated {step['max_allocated_bytes'] / MIB:,.1f} MiB{predicted}")
    words += [f"{len(row.figures)} figures"] if row.figures else []
    return "; ".join((*words, *([row.error] if row.error else []), f"{row.seconds} s"))


def open_suite(options: argparse.Namespace) -> Suite:
    """Look at the machine, and open the results: beside the table on a GPU, else only where ``--out`` says.

    Raises:
        InputError: the file of results has something else.
        CannotTellError: there is no GPU.
    """
    folder, card, driver = options.suite.parent, None, None
    if not options.cpu:
        seen, error = run_program([VRAMTOP, "--once", "--json"], seconds=60, environ=os.environ)
        found = json.loads(seen) if error is None else {}
        if not found.get("gpus"):
            raise CannotTellError(f"there is no GPU to measure on: {error}")
        card, driver = found["gpus"][0]["name"], found["source"]["driver_version"]
    python = choose_interpreter(options.python, os.environ).path
    installed, cuda = installed_packages(python, distributions=(*_SOFTWARE, *_OTHERS)), torch_build(python).cuda
    versions = {"vramtop": version_number() or "checkout", "python": installed.python, **installed.versions}
    versions |= {"cuda": cuda} if cuda else {}
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    results = SuiteResults(card=card, driver=driver, started=started, versions=versions)
    out = options.out
    if out is None and card is not None:
        name = "-".join(word for word in card.lower().split() if word not in ("nvidia", "geforce"))
        days = (time.strftime("%F", time.gmtime(time.time() - ago)) for ago in (86_400, 0))
        begun, new = (folder / f"{name}-{day}.json" for day in days)
        out = begun if begun.exists() and not new.exists() else new  # it was begun before midnight
    if out is not None and out.exists():
        known = read_results(out)
        if known.card != card:
            raise InputError(f"{out} has the results of {known.card or 'no GPU'}; give another file with --out")
        results.started, results.rows = known.started, known.rows
    print(f"{card or 'no GPU: tiny models on the CPU'}; {python}: {versions}; results: {out}", flush=True)
    words = ("--method", options.method, *(["--cpu"] if options.cpu else []))
    return Suite(folder=folder, out=out, results=results, python=str(python), words=words)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path, help="the table")
    parser.add_argument("--part", action="append", default=[], help="only this part, by name or number (repeatable)")
    parser.add_argument("--out", type=Path, help="file for the results (default: CARD-DATE.json beside the table)")
    parser.add_argument("--cpu", action="store_true", help="tiny models on the CPU")
    parser.add_argument("--method", choices=("auto", "formula", "exact", "traced"), default="auto")
    parser.add_argument("--python", help="the Python that has torch")
    options = parser.parse_args(arguments)
    end: Callable[..., Any] = lambda number, _frame: sys.exit(128 + number)  # noqa: E731
    signal.signal(signal.SIGTERM, end)  # what it has started ends with it
    try:
        parts = chosen_parts(read_suite(options.suite), options.part)
        suite = open_suite(options)
        return ExitCode.CANNOT_TELL if sum([suite.run(part) for part in parts]) else ExitCode.DONE
    except VramtopError as error:
        print(f"suite.py: {error.message}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
