"""Reads a job from a job file, another tool's configuration, a model or a launch line, and says what is missing."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.paths import is_file, is_folder, working_folder
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import with_changes, with_old_model_removed
from vramtop.estimator.job.job_file.load_and_save import load_job, names_user_code, written_keys
from vramtop.estimator.job.settings import ModelSpec, Training
from vramtop.estimator.model.find_config import other_kind, read_config, resolve_model
from vramtop.estimator.model.read_architecture import read_architecture, usual_task

from .loaded_job import COMMAND_LINE, LoadedJob
from .usual_sizes import LENGTH, usual_length

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vramtop.estimator.readers.source.evidence import JobReading
    from vramtop.estimator.readers.source.shell_script import ScriptLaunch


JOB_SUFFIXES = (".toml", ".yaml", ".yml", ".json")
PROGRAM_SUFFIXES = (".py", ".ipynb")
"""Files that are read as if Python ran them without arguments."""


def from_file(path: Path, changes: Mapping[str, Any]) -> LoadedJob:
    """Return the job of a job file, a model's config.json or another tool's configuration, with changes.

    Raises:
        InputError: it is none of these, or cannot be read.
    """
    if not is_file(path):
        raise InputError(f"{path}: no such file")
    written = written_job(path) if path.suffix == ".toml" else None
    if written is not None:
        replaced = with_old_model_removed(written, changes)
        job = with_changes(written, replaced, where="the command line")
        kept = (key for key in written_keys(path) if key not in replaced)
        return LoadedJob(job=job, file=path, origins=dict.fromkeys(kept, path.name))
    if _is_model_config(path):
        job = with_changes(from_model(str(path.resolve()), changes), changes, where="the command line")
        return LoadedJob(job=job, origins={"model.id": path.name})
    from vramtop.estimator.readers.config_file import read_config_file, tool_of_file

    return _from_reading(read_config_file(path, given=changes), changes, tool=tool_of_file(path), place=path.name)


def pending_job(path: str) -> Job:
    """Return the job of a job file or of another tool's configuration, as ``--job`` names it.

    Raises:
        InputError: it is neither, or lacks a setting.
    """
    where = f"there, or check it by vramtop fit {path}"
    return require_complete(from_file(Path(path), {}), path, where).job


def written_job(path: Path) -> Job | None:
    """Return the job of a job file; None for a file that is another tool's, whose keys no job has.

    Raises:
        InputError: it is neither.
    """
    try:
        return load_job(path)
    except InputError:
        from vramtop.estimator.readers.source.data_files import read_table
        from vramtop.estimator.readers.tools.shared.unread_tools import unread_tool_of_table
        from vramtop.estimator.readers.tools.tool_registry import all_tools

        with contextlib.suppress(InputError):
            table = read_table(path)
            if any(tool.is_config(table) for tool in all_tools()) or unread_tool_of_table(table) is not None:
                return None
        raise


_MODEL_CONFIG_KEYS = {"model_type", "hidden_size", "n_embd", "d_model"}


def _is_model_config(path: Path) -> bool:
    """Return True if the JSON file describes a model rather than its training."""
    try:
        return path.suffix == ".json" and not _MODEL_CONFIG_KEYS.isdisjoint(read_config(path))
    except InputError:  # reported when the file is read as a tool's configuration
        return False


def from_model(name: str, changes: Mapping[str, Any]) -> Job:
    """Return the job of a model alone, for the task that it is usually trained for."""
    name = str(changes.get("model.id") or name)
    spec = ModelSpec(id=name)
    if "model.task" not in changes and not names_user_code(name):
        model = resolve_model(spec)
        return Job(model=ModelSpec(id=spec.id, task=usual_task(model.config, where=model.where)))
    return Job(model=spec)


def from_launch_line(launch: Sequence[str], changes: Mapping[str, Any], *, python: str | None = None) -> LoadedJob:
    """Return the job of a launch line, or of the one in the shell script that it runs, with changes.

    Args:
        launch: its words.
        changes: settings by their keys.
        python: the interpreter that the user has named for it, whose libraries count; None: the line's own.

    Raises:
        InputError: it cannot be read.
    """
    from vramtop.estimator.readers.launch_line import read_launch, tool_of_line

    if (script := in_shell_script(launch)) is not None:
        try:
            reading = read_launch(script.words, cwd=script.folder, given=changes)
        except InputError as error:
            raise InputError(f"{script.place}: {error.message}") from None
        loaded = _from_reading(reading, changes, tool=tool_of_line(script.words), place=COMMAND_LINE)
        return replace(loaded, notes=(script.note, *loaded.notes))
    reading = read_launch(launch, beside_python=_versions_beside_python(launch, python), given=changes)
    return _from_reading(reading, changes, tool=tool_of_line(launch), place=COMMAND_LINE)


def _versions_beside_python(launch: Sequence[str], python: str | None) -> dict[str, str]:
    """Return the versions of what is installed for the Python that a launch line starts; nothing is run."""
    from vramtop.estimator.common.library_versions import package_folders, versions_in
    from vramtop.estimator.readers.program.launch import LaunchParser
    from vramtop.estimator.trace.python_command import python_command

    with contextlib.suppress(InputError, ValueError):
        return versions_in(package_folders(python_command(LaunchParser(()).split(launch), os.environ, python)[0]))
    return {}


def in_shell_script(line: Sequence[str]) -> ScriptLaunch | None:
    """Return the launch line of the shell script that a command line runs; None: it runs none.

    Raises:
        InputError: what the script runs is open.
    """
    from vramtop.estimator.readers.launch_line import launch_of_shell_script

    return launch_of_shell_script(line, environ=os.environ, cwd=working_folder())


def is_read(named: str) -> bool:
    """Return True for a job file or a program, rather than a model."""
    path = Path(named)
    if path.suffix in (*JOB_SUFFIXES, *PROGRAM_SUFFIXES):
        return not is_folder(path)
    return path.suffix == ".sh" or (is_file(path) and is_shell_script(path))


def is_shell_script(path: Path) -> bool:
    """Return True for the file of a shell script."""
    from vramtop.estimator.readers.source.shell_script import shell_script_in

    return shell_script_in([str(path)], Path()) is not None


def _from_reading(reading: JobReading, changes: Mapping[str, Any], *, tool: str | None, place: str) -> LoadedJob:
    return LoadedJob(
        job=reading.job(changes),
        notes=reading.warnings,
        reading=reading,
        tool=tool,
        place=place,
        origins={**reading.evidence(), **reading.refused},
        missing=reading.still_missing(changes),
    )


NO_MODEL = "{} names no model that vramtop knows"
_SIZES = {"training.micro_batch", LENGTH}
_UNREAD = re.compile("Could not read |is not stated: ")
"""In a note on a script or a configuration that could not be read, or on an option that the model's shape lacks."""
_LACKS = re.compile(r" is (?:missing|not stated|not supported)")
_ABSENT = re.compile(r"Could not read the (?:script|notebook): (.*?): .*No such file or directory")
_EXAMPLE_VALUES = {
    "model.id": "meta-llama/Llama-3.1-8B",
    "training.micro_batch": "1",
    "training.sequence_length": "2048",
    "training.sequences_per_example": "NUMBER",
    "lora.targets": "all-linear",
    "parallel.strategy": "zero3",
    "parallel.data_shard": "8",
    "parallel.data_replicate": "8",
}
"""A value for each key that another tool's configuration may lack; no number where the first one is never right."""


class NotStatedError(InputError):
    """A job leaves out a required setting, which a rehearsal of its program might tell."""

    at_usual_sizes: Job | None = None


def require_complete(loaded: LoadedJob, source: str, where: str) -> LoadedJob:
    """Return a job that has all required settings, with a note about those that were guessed.

    Args:
        loaded: the job.
        source: its file or launch line, for the error.
        where: how a missing setting is added there, for the error.

    Raises:
        InputError: a required setting is missing.
    """
    if loaded.is_launch_line and loaded.job.program is None and (kind := _other_input(loaded.job.model)):
        raise CannotTellError(
            f"{source} trains {loaded.job.model.id} for {kind}, whose inputs are not read from "
            "a script; --rehearse runs it without a GPU"
        )
    assumed = _assumed_sizes(loaded)
    if loaded.missing and not assumed:
        refused = loaded.reading.refused if loaded.reading else {}
        wrong = [key for key in loaded.missing if key in refused]
        first = (*wrong, *loaded.missing)[0]
        example = f"{where} --set {first}={_EXAMPLE_VALUES.get(first, 1)}"
        if wrong:
            raise InputError(f"{refused[first]}; correct it, or give it {example}")
        unread = next((f" ({each.rstrip('.')})" for each in loaded.notes if _UNREAD.search(each)), "")
        left_open = loaded.reading.left_open if loaded.reading is not None else ()
        warnings = loaded.reading.warnings if loaded.reading is not None else ()
        named = [each for each in left_open if " line " in each] or [each for each in warnings if _LACKS.search(each)]
        lines = [each.rstrip(".") for each in named][:_MAX_LINES]
        where_open = unread or (f" ({'; '.join(lines)})" if lines else "")
        if absent := _ABSENT.search(unread):
            raise InputError(f"{absent[1]}: no such file")
        if "model.id" in loaded.missing and loaded.is_launch_line:
            others = ", ".join(key for key in loaded.missing if key not in ("model.id", LENGTH))  # images have none
            also = f"; {others} must be given too" if others else ""
            raise NotStatedError(
                f"{NO_MODEL.format(source)}{where_open}; give it {where} --set model.id=NAME: a hub id, "
                f"a folder with a config.json, or FILE.py:FUNCTION for your own model{also}"
            )
        add = "add it" if len(loaded.missing) == 1 else "add each"
        if unread:
            add = f"correct that, or {add}"
        error = NotStatedError(f"{source} does not set {', '.join(loaded.missing)}{where_open}; {add} {example}")
        if set(loaded.missing) <= _SIZES:
            with contextlib.suppress(InputError, CannotTellError):
                length = {LENGTH: usual_length(loaded.job.model)} if LENGTH in loaded.missing else {}
                error.at_usual_sizes = with_changes(loaded.job, length)
        raise error
    if assumed:
        changes = {"unsure.between": {key: others for key, (_, *others) in assumed.items()}}
        job = with_changes(loaded.job, {key: usual for key, (usual, *_) in assumed.items()} | changes)
        loaded = replace(loaded, job=job, missing=())
    findings = loaded.reading.findings if loaded.reading else ()
    guessed = [f"{key} = {usual:,}" for key, (usual, *_) in assumed.items()]
    guessed += [f"{f.key} = {f.value_text} ({f.origin})" for f in findings if not f.written]
    if not guessed:
        return loaded
    note = f"Assumed (the job does not set these): {'; '.join(guessed)}."
    return replace(loaded, notes=(*loaded.notes, note))


_RANKS = ("parallel.data_shard", "parallel.data_replicate")
_USUAL_RANKS, _FEW_RANKS = 8, 2
_SHORT, _LONG = 512, 8192
"""Tokens of short and of long examples of the data sets that people fine-tune on."""


def _assumed_sizes(loaded: LoadedJob) -> dict[str, list[int]]:
    """Return the usual length and number of GPUs of a job that lacks nothing but these, and others for its range.

    A script of the user's own decides its length itself, which a rehearsal tells.

    Raises:
        InputError: the model is not found.
    """
    own_script = loaded.is_launch_line and loaded.tool in (None, "transformers")
    may_be_assumed = {*_RANKS, *(() if own_script or loaded.job.training.mode != "train" else (LENGTH,))}
    refused = loaded.reading.refused if loaded.reading else {}
    if not may_be_assumed.issuperset(loaded.missing) or refused.keys() & {*loaded.missing}:
        return {}
    parallel = loaded.job.parallel
    within = parallel.tensor * parallel.pipeline * parallel.context
    sizes = {key: [max(1, ranks // within) for ranks in (_USUAL_RANKS, _FEW_RANKS)] for key in _RANKS}
    if LENGTH in loaded.missing:
        sizes[LENGTH] = [usual_length(loaded.job.model, most) for most in (Training().sequence_length, _SHORT, _LONG)]
    return {key: sizes[key] for key in loaded.missing}


def _other_input(spec: ModelSpec) -> str | None:
    """Return the task of a model that takes images or audio and has no formula; None: it is another, or not found."""
    from vramtop.estimator.program.named_models import find_named_model, named_by_config

    if not spec.id or names_user_code(spec.id):
        return None
    try:
        model = resolve_model(spec)
        read_architecture(model.config, spec.task, where=model.where)
    except InputError:
        named = find_named_model(spec.id)
    except CannotTellError:
        named = find_named_model(spec.id) or named_by_config(model)
    else:
        return None
    return other_kind(spec.id) if named is None else named.task


_MAX_LINES = 3
"""Lines of a script that the sentence on missing settings names."""
