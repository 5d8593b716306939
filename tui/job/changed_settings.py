"""What the user has changed about a job, to be pasted elsewhere: vramtop's flags, and edits of the tool's own files."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from vramtop.estimator.advice.config_edits import tool_edits
from vramtop.estimator.job.job import Inference, Job, Lora, ModelSpec
from vramtop.estimator.job.job_file import job_differences, job_to_mapping
from vramtop.estimator.job.job_file_edit import toml_value

from .job_flags import TRUST_KEY, flags_by_key
from .load_job import LoadedJob

_ACCUMULATION = "training.gradient_accumulation"


def changed_settings_text(job: Job, source: LoadedJob | None, given: str, *, gpus: int | None = None) -> str:
    """The command that gives the same verdict, and below it the edits of the tool's own file or launch line.

    Args:
        job: as the form has it.
        source: what it was opened from; None: it was typed.
        given: how that was named: a path, or a launch line in one line.
        gpus: so many cards of a kind that is not here.
    """
    command = " ".join(_command(job, source, given, gpus))
    edits = "\n".join(_edit_lines(job, source))
    return f"{command}\n\n{edits}" if edits else command


def _command(job: Job, source: LoadedJob | None, given: str, gpus: int | None) -> Iterator[str]:
    yield "vramtop fit"
    launched = source is not None and source.place == "command line"
    if source is None:
        base = Job(name=job.name, model=ModelSpec(id=job.model.id, config=job.model.config))
        yield shlex.quote(job.model.id or "MODEL")
        changes = _said(job_differences(base, job), base)
    else:
        if not launched:
            yield shlex.quote(given)
        changes = _changes(job, source)
    yield from _flags(changes)
    if job.target.gpu and gpus is not None:
        yield f"--gpus {gpus}"
    if launched:
        yield f"-- {given}"


def _changes(job: Job, source: LoadedJob) -> dict[str, Any]:
    """What differs from what was read, with what was missing there, and what would follow from what is changed."""
    changes = _said(job_differences(source.job, job), source.job)
    tables = job_to_mapping(job)
    for key in source.missing:
        table, _, name = key.partition(".")
        changes[key] = tables[table].get(name)
    if changes and source.reading is not None and source.reading.global_batch is not None:
        changes.setdefault(_ACCUMULATION, job.training.gradient_accumulation)
    return changes


def _said(changes: Mapping[str, Any], before: Job) -> dict[str, Any]:
    """The changes without the defaults of a table that is new, but for one, which makes the table."""
    there, found, made = job_to_mapping(before), dict(changes), set[str]()
    new = {"lora": job_to_mapping(Job(lora=Lora())), "inference": job_to_mapping(Job(inference=Inference()))}
    for key, value in changes.items():
        table, _, name = key.partition(".")
        if table in new and table not in there and name:
            if new[table][table].get(name) == value and table in made:
                del found[key]
            made.add(table)
    return found


def _flags(changes: Mapping[str, Any]) -> Iterator[str]:
    named = flags_by_key()
    for key, value in changes.items():
        if value is None and "." not in key:
            continue  # a table that is gone has no flag; what it was opened from says what to take out
        if key == "target.gpu":
            yield f"--gpu-type {shlex.quote(str(value))}"
        elif key == TRUST_KEY and value is True:
            yield named[key]
        elif key in named and value is not None:
            yield f"{named[key]} {shlex.quote(_text(value))}"
        elif value is not None:
            yield f"--set {shlex.quote(f'{key}={toml_value(value)}')}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else toml_value(value)


def _edit_lines(job: Job, source: LoadedJob | None) -> Iterator[str]:
    if source is None:
        return
    changes = _changes(job, source)
    gone = [key for key, value in changes.items() if value is None and "." not in key]
    if gone:
        yield f"# take out: {', '.join(gone)}"
    if source.reading is None:
        return
    changed = job_differences(source.job, job)
    wanted = {key: value for key, value in changes.items() if key in changed and value is not None}
    wanted.pop("target.gpu", None)
    edits = tool_edits(source.reading, source.job, wanted, tool=source.tool, place=source.place)
    yield from (f"# {edit.place}: {edit.words}" if edit.place else f"# {edit.words}" for edit in edits)
