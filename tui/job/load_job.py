"""From what a user wrote on the command line to a Job: a job file, a model with flags, or a launch line."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.paths import expand_user, is_file, is_folder
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.estimator.job.job_file import (
    job_keys,
    load_job,
    names_user_code,
    parse_assignment,
    with_changes,
    written_keys,
)
from vramtop.estimator.model.architecture import usual_task
from vramtop.estimator.model.find_config import read_config, resolve_model

if TYPE_CHECKING:
    from vramtop.estimator.readers.source.evidence import JobReading

_NO_FLAG = ("name", "model.id", "model.config", "target.gpu")
_BY_SET_ALONE = ("software", "run", "unsure")
"""Tables whose settings are rarely said outside of a job file."""
_SWITCH = "model.trust_remote_code"
"""Said by its flag alone, as transformers' own scripts take it."""
_MODEL_FIELDS = {"model_type", "hidden_size", "n_embd", "d_model"}
_EXAMPLES = {
    "model.id": "meta-llama/Llama-3.1-8B",
    "training.micro_batch": "1",
    "training.sequence_length": "2048",
    "lora.targets": "all-linear",
    "parallel.strategy": "zero3",
    "parallel.data_shard": "8",
    "parallel.data_replicate": "8",
}
"""A value for each key that a configuration may leave open."""
_FILES = (".toml", ".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedJob:
    """A job, and what it was read from."""

    job: Job
    notes: tuple[str, ...] = ()
    """Warnings about what was not understood."""
    file: Path | None = None
    """The user's own job file."""
    reading: "JobReading | None" = None
    """Of another tool's launch line or file."""
    tool: str | None = None
    """Which tool that is, where it is a known one."""
    place: str | None = None
    """``command line``, or the name of that tool's file."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each value was read, by dotted key."""
    missing: tuple[str, ...] = ()
    """Keys that matter and were not found."""


def job_flags() -> dict[str, str]:
    """A flag for each job key: ``--micro-batch`` for ``training.micro_batch``.

    Those of ``[lora]`` and ``[inference]`` begin with the table's name.
    """
    flags = {}
    for key in job_keys():
        table, _, name = key.partition(".")
        if key not in _NO_FLAG and table not in _BY_SET_ALONE:
            prefix = f"{table}-" if table in ("lora", "inference") else ""
            flags[f"--{prefix}{name.replace('_', '-')}"] = key
    return flags


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """The JOB argument, a flag for each of its settings, and ``--set``."""
    parser.add_argument(
        "job",
        nargs="?",
        metavar="JOB",
        help="job file (TOML), configuration of another tool (axolotl, LLaMA-Factory, torchtune, ...), model (built-in "
        "name, hub id in the local cache, folder with config.json, module:callable), or a launch line after --",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set any key of the job file")
    group = parser.add_argument_group("settings of the job (as in a job file)")
    for flag, key in job_flags().items():
        if key == _SWITCH:
            group.add_argument(
                flag, dest=key, action="store_const", const="true", help="run code in the model's folder"
            )
        else:
            group.add_argument(flag, dest=key, metavar="VALUE", help=f"{key}", default=None)


def job_from_options(options: argparse.Namespace, launch: Sequence[str] | None) -> tuple[Job, tuple[str, ...]]:
    """The job that the arguments describe, and warnings about what was not understood; see ``load_from_options``."""
    source = load_from_options(options, launch)
    return source.job, source.notes


def load_from_options(options: argparse.Namespace, launch: Sequence[str] | None) -> LoadedJob:
    """The job that the arguments describe, with where it was read from.

    Args:
        options: parsed by a parser with ``add_job_arguments``.
        launch: the launch line that stood after ``--``; None: there was none.

    Raises:
        InputError: there is none, it cannot be read, or something that matters is missing.
    """
    changes = dict(_given(options))
    if launch is not None:
        if options.job:
            raise InputError(f"both a job ({options.job}) and a launch line after -- were given; give one")
        return _complete(_from_launch_line(launch, changes), "the launch line", "before the --, with")
    if not options.job:
        raise InputError("no job is given: a job file, a model, or a launch line after --")
    path = Path(options.job)
    if path.suffix in _FILES and not path.is_dir():
        return _complete(_from_file(path, changes), str(path), "with")
    try:
        return LoadedJob(job=with_changes(_from_model(options.job, changes), changes, where="the command line"))
    except InputError as error:
        raise (_not_a_job(error) if path.is_file() else error) from None


def _not_a_job(error: InputError) -> InputError:
    return InputError(
        f"{error.message}; a job is a file that ends in {', '.join(_FILES)}, a model, or a launch line after --"
    )


def load_from_text(text: str) -> LoadedJob:
    """What a person types or pastes: a job file, a tool's configuration, a launch line, a model; it may lack values.

    Args:
        text: the path of a file, perhaps quoted; a launch line, perhaps of several lines; or a model's name.

    Raises:
        InputError: it is none of these, or cannot be read.
    """
    text = text.strip().removeprefix("$ ").strip()
    alone = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
    path = expand_user(alone)
    if path.suffix in _FILES and (is_file(path) or len(text.split()) == 1):
        return _from_file(path, {})
    if len(text.split()) > 1 and not is_folder(path):
        return _from_launch_line([text], {})
    if not alone:
        raise InputError("nothing is given: a job file, a tool's configuration, a launch line, or a model")
    return LoadedJob(job=_from_model(alone, {}), origins={"model.id": "as you gave it"})


def _given(options: argparse.Namespace) -> Mapping[str, Any]:
    flags = {key: getattr(options, key) for key in job_flags().values() if getattr(options, key) is not None}
    assignments = [f"{key}={value}" for key, value in flags.items()] + list(options.set)
    return dict(parse_assignment(text) for text in assignments)


def _from_file(path: Path, changes: Mapping[str, Any]) -> LoadedJob:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if path.suffix == ".toml" and not _is_torchtitan(path):
        job = with_changes(load_job(path), changes, where="the command line")
        return LoadedJob(job=job, file=path, origins=dict.fromkeys(written_keys(path), path.name))
    if _is_model_config(path):
        job = with_changes(_from_model(str(path.resolve()), changes), changes, where="the command line")
        return LoadedJob(job=job, origins={"model.id": path.name})
    from vramtop.estimator.readers.config_file import read_config_file, tool_of_file

    return _from_reading(read_config_file(path), changes, tool=tool_of_file(path), place=path.name)


def _is_torchtitan(path: Path) -> bool:
    """Its TOML has tables that no job file has."""
    from vramtop.estimator.readers.source.data_files import read_table
    from vramtop.estimator.readers.tools.registry import find_tool_by_config

    try:
        return find_tool_by_config(read_table(path)) is not None
    except InputError:  # said where it is read as a job file
        return False


def _from_model(name: str, changes: Mapping[str, Any]) -> Job:
    spec = ModelSpec(id=name)
    if "model.task" not in changes and not names_user_code(name):
        model = resolve_model(spec)
        return Job(model=ModelSpec(id=spec.id, task=usual_task(model.config, where=model.where)))
    return Job(model=spec)


def _is_model_config(path: Path) -> bool:
    """The JSON describes a model, rather than how one is trained."""
    try:
        return path.suffix == ".json" and not _MODEL_FIELDS.isdisjoint(read_config(path))
    except InputError:  # said where it is read as a tool's configuration
        return False


def _from_launch_line(launch: Sequence[str], changes: Mapping[str, Any]) -> LoadedJob:
    from vramtop.estimator.readers.launch_line import read_launch, tool_of_line

    return _from_reading(read_launch(launch), changes, tool=tool_of_line(launch), place="command line")


def _from_reading(reading: "JobReading", changes: Mapping[str, Any], *, tool: str | None, place: str) -> LoadedJob:
    return LoadedJob(
        job=reading.job(changes),
        notes=reading.warnings,
        reading=reading,
        tool=tool,
        place=place,
        origins=reading.evidence(),
        missing=reading.still_missing(changes),
    )


def _complete(source: LoadedJob, what: str, where: str) -> LoadedJob:
    """The source with a note on what was guessed; a job that lacks a value that matters is refused."""
    if source.missing:
        first = source.missing[0]
        raise InputError(
            f"{what} does not say {', '.join(source.missing)}; add it {where} --set {first}={_EXAMPLES[first]}"
        )
    findings = source.reading.findings if source.reading else ()
    guessed = [f"{f.key} = {f.value} ({f.origin})" for f in findings if not f.written]
    return replace(source, notes=(*source.notes, f"Not written anywhere: {'; '.join(guessed)}.")) if guessed else source
