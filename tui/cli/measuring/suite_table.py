"""The table of a suite (TOML): parts, each with jobs and programs that are measured one after another.

    [job.training]                 # settings that all jobs share, as in a job file
    precision = "bf16"
    [models.small]                 # a model of the jobs, described as in a job file
    id = "gpt2"
    [[part]]
    name = "steps"
    minutes = 9                    # it stops after this time, and goes on when it is started again
    steps = 6                      # optimizer steps of each job
    jobs = [
        { model = "small", training = { micro_batch = 4, sequence_length = 512 }, lora = { rank = 16 } },
        { model = "small", training = { compile = true }, seconds = 90 },   # not started when less time is left
    ]
    programs = [{ name = "context", file = "context.py", arguments = ["--lazy"], seconds = 60 }]

A program is a Python file beside the table. It prints what it has measured as objects of JSON, one a line.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from vramtop.estimator.common import InputError, note_job_folder, parse_toml, read_file
from vramtop.estimator.job import Job, job_from_mapping, resolve_job
from vramtop.estimator.job.job_file import names_user_code

_Seconds = Annotated[float, Meta(gt=0, le=3600)]
_TABLES = ("training", "lora", "parallel", "software")
_SIZES = {"micro_batch": "b", "sequence_length": "s"}
_LIBRARIES = ("transformers", "bitsandbytes", "flash-attn", "liger-kernel", "peft")
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
        return tuple(name for name in _LIBRARIES if name in libraries)


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
        raise InputError(f"{path}: no table of a suite: {error}") from None
    note_job_folder(path.parent)
    parts = tuple(_part(path, table, part) for part in table.part)
    names = [(part.name, name) for part in parts for name in part.names]
    twice = next((f"{part}: {name}" for part, name in names if names.count((part, name)) > 1), None)
    if twice is not None or not names:
        raise InputError(f"{path}: {f'{twice} stands there twice' if twice else 'it has no job and no program'}")
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
        raise InputError(f"--part {absent}: there is no such part, only {known}")
    return tuple(found[key] for key in wanted) or tuple(parts)


def _part(path: Path, table: _Table, part: _PartTable) -> Part:
    jobs = tuple(_job(path, table, entry, f"{path}: {part.name}, job {at}") for at, entry in enumerate(part.jobs, 1))
    return Part(name=part.name, minutes=part.minutes, steps=part.steps, jobs=jobs, programs=tuple(part.programs))


def _job(path: Path, table: _Table, entry: Mapping[str, Any], where: str) -> SuiteJob:
    unknown = sorted(set(entry) - {"model", "attention", "seconds", *_TABLES})
    name = entry.get("model")
    if unknown or name not in table.models:
        wrong = f"there is no key {unknown[0]}" if unknown else f"[models.{name}] is not in the table"
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
