"""The changed settings of a job as text to paste: vramtop's flags, and edits of the tool's own files."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from vramtop.estimator.common.secrets import displayed
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_differences, job_to_mapping, with_changes
from vramtop.estimator.job.job_file.edit import toml_value
from vramtop.estimator.job.settings import Inference, Lora, ModelSpec

from .flags.job_flags import TRUST_KEY, flags_by_key
from .loaded_job import LoadedJob
from .program_job import program_job
from .usual_sizes import usual_sizes

_OF_THE_PROGRAM = ("program.command", "program.folder", "program.file")
"""What the command itself says, and where it is typed."""


def changed_settings_text(job: Job, loaded: LoadedJob | None, text: str, *, gpus: int | None = None) -> str:
    """Return the command that gives the same verdict, and below it the edits of the tool's own file or launch line.

    Args:
        job: as the form has it.
        loaded: the job that was opened; None: it was typed into the form.
        text: what was opened: a path, or a launch line in one line.
        gpus: number of GPUs of a machine that is described; None: this machine.
    """
    command = " ".join(_command(job, loaded, text, gpus))
    edits = "\n".join(_edit_lines(job, loaded))
    return f"{command}\n\n{edits}" if edits else command


def _command(job: Job, loaded: LoadedJob | None, text: str, gpus: int | None) -> Iterator[str]:
    program = job.program
    yield "vramtop fit" if program is None else "vramtop fit --rehearse"
    is_launch_line = loaded is not None and loaded.is_launch_line
    if program is not None:
        text = program.command
        changes = job_differences(program_job([]).job, job)
        changes = {key: value for key, value in changes.items() if key not in _OF_THE_PROGRAM}
    elif loaded is None:
        model = ModelSpec(id=job.model.id, config=job.model.config)
        base = Job(name=job.name, model=model)
        if model.id:
            base = with_changes(base, usual_sizes(job))
        yield shlex.quote(job.model.id or "MODEL")
        changes = _without_table_defaults(job_differences(base, job), base)
    else:
        if not is_launch_line:
            yield shlex.quote(text)
        changes = _changes(job, loaded)
    yield from _flags(changes)
    if job.target.gpu and gpus is not None:
        yield f"--gpus {gpus}"
    if is_launch_line or program is not None:
        yield f"-- {displayed(text)}"


_ACCUMULATION = "training.gradient_accumulation"


def _changes(job: Job, loaded: LoadedJob) -> dict[str, Any]:
    """Return the differences from what was opened, with the settings that were missing there.

    The accumulation is added if it was derived from a global batch: it would change with the other settings.
    """
    changes = _without_table_defaults(job_differences(loaded.job, job), loaded.job)
    tables = job_to_mapping(job)
    for key in loaded.missing:
        table, _, name = key.partition(".")
        changes[key] = tables[table].get(name)
    if changes and loaded.reading is not None and loaded.reading.global_batch is not None:
        changes.setdefault(_ACCUMULATION, job.training.gradient_accumulation)
    return changes


def _without_table_defaults(changes: Mapping[str, Any], before: Job) -> dict[str, Any]:
    """Remove the defaults of tables that are new; one key of each stays, which creates the table."""
    tables_before, kept, created = job_to_mapping(before), dict(changes), set[str]()
    defaults = {"lora": job_to_mapping(Job(lora=Lora())), "inference": job_to_mapping(Job(inference=Inference()))}
    for key, value in changes.items():
        table, _, name = key.partition(".")
        if table in defaults and table not in tables_before and name:
            if defaults[table][table].get(name) == value and table in created:
                del kept[key]
            created.add(table)
    return kept


def _flags(changes: Mapping[str, Any]) -> Iterator[str]:
    flags = flags_by_key()
    for key, value in changes.items():
        if value is None and "." not in key:
            continue  # a removed table has no flag; the edits tell to remove it
        if key == "target.gpu":
            yield f"--gpu-type {shlex.quote(str(value))}"
        elif key == TRUST_KEY and value is True:
            yield flags[key]
        elif key in flags and value is not None:
            yield f"{flags[key]} {shlex.quote(value if isinstance(value, str) else toml_value(value))}"
        elif value is not None:
            yield f"--set {shlex.quote(f'{key}={toml_value(value)}')}"


def _edit_lines(job: Job, loaded: LoadedJob | None) -> Iterator[str]:
    if loaded is None or job.program is not None:
        return
    changes = _changes(job, loaded)
    removed = [key for key, value in changes.items() if value is None and "." not in key]
    if removed:
        yield f"# remove: {', '.join(removed)}"
    if loaded.reading is None:
        return
    from vramtop.estimator.advice.setting_edits import tool_edits

    changed = job_differences(loaded.job, job)
    wanted = {key: value for key, value in changes.items() if key in changed and value is not None}
    wanted.pop("target.gpu", None)
    edits = tool_edits(loaded.reading, loaded.job, wanted, tool=loaded.tool, place=loaded.place)
    yield from (f"# {edit.place}: {edit.words}" if edit.place else f"# {edit.words}" for edit in edits)
