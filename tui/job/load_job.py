"""Loads a job from what the user named: a job file, another tool's configuration, a launch line, or a model."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.paths import (
    current_folder,
    expand_user,
    is_file,
    is_folder,
    note_job_folder,
    working_folder,
)
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.secrets import displayed
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import (
    job_differences,
    parse_assignment,
    with_changes,
    with_old_model_removed,
)
from vramtop.estimator.job.job_file.load_and_save import load_job, names_user_code, written_keys
from vramtop.estimator.job.rules.library_defaults import LONGEST, serving_defaults
from vramtop.estimator.job.settings import ModelSpec, Program, Training
from vramtop.estimator.job.settled import preparation
from vramtop.estimator.model.checkpoint import job_of_model
from vramtop.estimator.model.find_config import PIPELINE, looks_like_hub_id, read_config, resolve_model
from vramtop.estimator.model.read_architecture import max_positions, read_architecture, usual_task

from .flags.gpu_flags import GPU_TYPE_FLAGS, GpuAction, GpuCountAction, GpuTypeAction
from .flags.job_flags import add_job_arguments, flags_by_key
from .flags.settings import FlagSettings, settings_of_flags, with_method
from .flags.words import normal_words

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.readers.source.evidence import DeviceChoice, JobReading
    from vramtop.estimator.readers.source.shell_script import ScriptLaunch

    from .scripted_models import ScriptedModel


_WITH_SCRIPTS = ("fit", "estimate", "program", "wait", "preflight")
"""Commands that take a model without a closed form, for which its training script stands."""
_JOB_SUFFIXES = (".toml", ".yaml", ".yml", ".json")
_PROGRAM_SUFFIXES = (".py", ".ipynb")
"""Files that are read as if Python ran them without arguments."""
_OF_PROGRAMS = ("program.", "software.")
"""Settings that ``--set`` gives a rehearsal; others describe a job."""
_REHEARSAL = re.compile(r"(?:vramtop )?(?:rehearse|(?:fit|wait|run --fit) --rehearse) (?:-- )?")
"""The beginning of a line that rehearses a program."""
_COMMANDS = ("fit", "estimate", "wait", "preflight", "run", "--fit")
_COMMAND = re.compile(r"(?:vramtop )?(?:fit|estimate|wait|preflight|run|rehearse) (?:.* )?-- ")
"""A line of vramtop's with a launch line."""
_MODEL_CONFIG_KEYS = {"model_type", "hidden_size", "n_embd", "d_model"}
_COMMAND_LINE = "command line"
_GIVEN = "you"
"""Origin of a value that the user edited."""
_TRAINABLE = "--trainable"
_LENGTH = "training.sequence_length"
_SIZES = {"training.micro_batch", _LENGTH}
_COPIED_WEIGHTS = (
    "The weights are stored in one 16-bit dtype and computed in the other; the range includes autocast's copies. "
    "--dtype loads them in the compute dtype."
)
_UNREAD = "Could not read "
"""Begins a note on a script or a configuration that could not be read."""
_ABSENT = re.compile(r"Could not read the script: (.*?): .*No such file or directory")
_MAX_LINES = 3
"""Lines of a script that the sentence on missing settings names."""
_NO_MODEL = "{} names no model that vramtop knows"
_EXAMPLE_VALUES = {
    "model.id": "meta-llama/Llama-3.1-8B",
    "training.micro_batch": "1",
    "training.sequence_length": "2048",
    "lora.targets": "all-linear",
    "parallel.strategy": "zero3",
    "parallel.data_shard": "8",
    "parallel.data_replicate": "8",
}
"""A value for each key that another tool's configuration may lack."""


class LoadedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job and where it was read from."""

    job: Job
    notes: tuple[str, ...] = ()
    """Warnings about settings that were not understood."""
    file: Path | None = None
    """The job file; None for anything else."""
    reading: JobReading | None = None
    """The settings read from another tool's launch line or file; None for other jobs."""
    tool: str | None = None
    """Name of that tool; None where it is not known."""
    place: str | None = None
    """``command line``, or the name of that tool's file."""
    origins: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The place where each value was read, by dotted key."""
    typed: frozenset[str] = frozenset()
    """Keys that the flags of the command line set."""
    missing: tuple[str, ...] = ()
    """Required keys that were not found."""
    script: str | None = None
    """Training script that stands for a model without a closed form; its start is the job's program."""
    program: Job | None = None
    """The program of the launch line, for a rehearsal; None: not a Python program, or the user declined."""
    unread: str | None = None
    """Why the launch line could not be read, so that the job is a program; None: it was read, or not to be."""
    at_usual_sizes: Job | None = None
    """What was read, where only batch or length are not known, with the usual ones; None: more is missing."""

    @property
    def why_unread(self) -> tuple[str, ...]:
        """Why the launch line could not be read, as a sentence; empty: it was read."""
        return () if self.unread is None else (f"vramtop could not read this job: {self.unread.rstrip('.')}.",)

    def unknown(self, budget: Budget | None) -> tuple[str, ...]:
        """Return what was not read of a program, or what its budget does not know; empty: all is known."""
        warnings = self.reading.warnings if self.reading is not None else ()
        return tuple(warnings) or ((budget.doubt,) if budget is not None and budget.doubt else ()) or self.missing

    @property
    def is_partly_read(self) -> bool:
        """Whether something that memory depends on was not understood of what was read."""
        return self.reading is not None and bool(self.reading.uncertainties)

    @property
    def stated(self) -> frozenset[str]:
        """Keys whose value was found somewhere; the others have defaults."""
        return self.typed | self.origins.keys()

    @property
    def assumed_versions(self) -> tuple[str, ...]:
        """Versions of libraries that a script speaks for, each with the reason."""
        found = self.reading.assumed_versions() if self.reading is not None else {}
        return tuple(text for key, text in found.items() if key not in self.typed)

    @property
    def devices(self) -> DeviceChoice | None:
        """The GPUs that its launch line, script or job file chooses; None: it takes those of the environment."""
        if names := self.job.target.devices:
            from vramtop.estimator.readers.source.evidence import DeviceChoice

            text = ",".join(names)
            return DeviceChoice(origin="target.devices", text=text, visible=text)
        return self.reading.devices if self.reading is not None else None

    def finding_gpus(self, count: int) -> LoadedJob:
        """Return it with so many GPUs for its one process, unless that says itself how many, or is vramtop's own."""
        if self.script is not None or count < 2:
            return self
        jobs = {name: getattr(self, name) for name in ("job", "program")}
        found = {
            name: msgspec.structs.replace(job, program=msgspec.structs.replace(job.program, gpus=count))
            for name, job in jobs.items()
            if job is not None and job.program is not None and job.program.gpus == 1
        }
        rule = self.reading.spreads_layers if self.reading is not None else None
        if rule is not None and self.job.parallel.world_size == 1:
            spread = {"parallel.device_map": rule, "parallel.pipeline": count}
            found["job"] = with_changes(self.job, spread)
            origins = dict.fromkeys(spread, f"device_map={rule!r} over the {count} GPUs that one process finds")
            return msgspec.structs.replace(self, **found, origins={**self.origins, **origins})
        return msgspec.structs.replace(self, **found)

    @property
    def is_typed(self) -> bool:
        """Whether it is a model with flags alone, whose config.json is known."""
        return self.file is None and self.reading is None and not names_user_code(self.job.model.id)

    @property
    def is_launch_line(self) -> bool:
        """Whether it is a launch line, or a program that is read as if it was started without arguments."""
        return self.place == _COMMAND_LINE


class _NotStatedError(InputError):
    """A job leaves out a required setting, which a rehearsal of its program might tell."""

    at_usual_sizes: Job | None = None


def load_from_options(options: argparse.Namespace, launch: Sequence[str] | None) -> LoadedJob:
    """Load the job of the command line; of a launch line that cannot be read, the program that could be rehearsed.

    Args:
        options: parsed by a parser with ``add_job_arguments``, from ``normal_words``.
        launch: the launch line after ``--``; None if there is none.

    Raises:
        InputError: no job is given, it cannot be read, or a required setting is missing.
    """
    for word in (options.job, *(launch or ())):
        if word and word.endswith(_PROGRAM_SUFFIXES) and is_file(Path(word)):
            note_job_folder(Path(word).parent)
    if getattr(options, "rehearse", False) is not None:
        return _load_as_asked(options, launch)
    of_job = [text for text in options.set if not text.startswith(_OF_PROGRAMS)]
    try:
        loaded = _load_as_asked(options, launch)
    except (CannotTellError, _NotStatedError) as error:
        program = _as_program(options, launch) if launch is not None or _is_read(str(options.job)) else None
        if program is None:
            raise
        described = [flag for flag, _ in options.flags] + [f"--set {text}" for text in of_job]
        if described:  # they mean nothing for a program that runs as it is
            command = program.job.program.command if program.job.program is not None else ""
            raise type(error)(
                f"{error.message}; or run the program as it is, without {', '.join(dict.fromkeys(described))}: "
                f"vramtop rehearse -- {displayed(command)}"
            ) from None
        return replace(program, unread=error.message, at_usual_sizes=getattr(error, "at_usual_sizes", None))
    if not loaded.is_launch_line or loaded.job.program is not None or loaded.job.is_served:
        return loaded
    program = _as_program(options, launch)
    return loaded if program is None else replace(loaded, program=program.job)


def _as_program(options: argparse.Namespace, launch: Sequence[str] | None) -> LoadedJob | None:
    """Return what ``--rehearse`` would run, without the flags that describe a job; None: nothing of Python's."""
    from vramtop.estimator.trace.python_command import python_command

    again = copy(options)
    again.rehearse, again.flags = True, []
    again.set = [text for text in options.set if text.startswith(_OF_PROGRAMS)]
    with contextlib.suppress(InputError, CannotTellError):
        loaded = _load_as_asked(again, launch)
        if (program := loaded.job.program) is not None:
            python_command(program.words, os.environ, program.python, folder=program.folder)
            return loaded
    return None


def _load_as_asked(options: argparse.Namespace, launch: Sequence[str] | None) -> LoadedJob:
    """Load the job of the command line: its program with ``--rehearse``, otherwise what is read."""
    settings = getattr(options, "settings", None)
    download = settings is not None and bool(settings.values["estimates.download"])
    gpus = getattr(options, "gpus", None)
    named = options.job or (None if launch is not None else options.model_flag)
    given = settings_of_flags(options.flags, gpus=gpus, model_alone=bool(named) and not _is_read(str(named)))
    changes = {**given.changes, **dict(parse_assignment(text) for text in options.set)}
    if options.model_flag and options.model_flag != named:
        if options.job and Path(options.job).suffix not in (*_JOB_SUFFIXES, *_PROGRAM_SUFFIXES):
            raise InputError(f"both {options.job} and --model {options.model_flag} name a model; give one")
        changes.setdefault("model.id", options.model_flag)
    in_file = _named_in_file(named) if launch is None and named else {}
    name = str(changes.get("model.id") or in_file.get("model.id") or named or "")
    fetched = None
    scripted = launch is None and name and getattr(options, "command", None) in _WITH_SCRIPTS and not _is_read(name)
    if scripted:
        settled = {**in_file, **changes}
        model, fetched = _find_scripted(name, getattr(options, "python", None), settled, download=download)
        if model is not None:
            loaded = _of_scripted_model(options, model, given, settled, file=named if in_file else None)
            return loaded if fetched is None else replace(loaded, notes=(*loaded.notes, fetched))
    if given.inputs:
        flag = next(iter(given.inputs.values()))[1]
        raise InputError(f"{flag} is for models that are given images or audio, which {name or 'this job'} is not")
    fetched = fetched or _download(str(changes.get("model.id") or named or ""), may_ask=download)
    rehearsed = getattr(options, "rehearse", False)
    loaded = _program(options, launch) if rehearsed else _load(named, launch, changes, given, gpus)
    if loaded.job.program is not None:
        if options.flags:
            raise InputError(f"{options.flags[0][0]} describes a job; give a program's own flags after --")
        python = {"program.python": options.python} if getattr(options, "names_python", False) else {}
        found = {"program.gpus": gpus} if gpus else {}
        job = with_changes(loaded.job, {**found, **changes, **python}, where="--set")
        return replace(loaded, job=job, typed=frozenset(changes))
    fetched = fetched or _download(loaded.job.model.id or "", may_ask=download, config=loaded.job.model.config)
    if fetched is not None:
        loaded = replace(loaded, notes=(*loaded.notes, fetched))
    job = given.complete(loaded.job)
    copied = (_COPIED_WEIGHTS,) if job.unsure.weights != loaded.job.unsure.weights else ()
    if "model.num_labels" in changes and "model.task" not in changes and loaded.is_typed:
        job = with_changes(job, {"model.task": "sequence-classification"})
        copied = (*copied, "--num-labels assumes a sequence classifier (--task names another task).")
    loaded = replace(loaded, job=job, notes=(*loaded.notes, *copied))
    named = given.weights or given.mixed == loaded.job.training.precision  # mixed precision leaves the weights open
    loaded = replace(loaded, typed=frozenset(changes) | ({"training.precision"} if named else set()))
    loaded = _over_gpus(_with_sizes(_with_adapter_targets(loaded, changes)), given, gpus)
    if given.method is not None:
        # TRL loads weights in a type of its own, whatever the mixed precision is
        stated = loaded.stated - (set() if given.weights or "training.precision" in changes else {"training.precision"})
        job, note = with_method(loaded.job, given.method, stated, changes, given.method_arguments)
        loaded = replace(loaded, job=job, notes=(*loaded.notes, note), typed=stated & loaded.typed)
    elif given.adapts:
        loaded = _as_prepared(loaded)
    return _checked(replace(loaded.finding_gpus(gpus or 1), notes=(*given.remarks, *loaded.notes)), dict(options.flags))


def _find_scripted(
    name: str, python: str | None, stated: Collection[str], *, download: bool
) -> tuple[ScriptedModel | None, str | None]:
    """Return the model of a name that has no closed form, and a note if its configs were fetched from the hub.

    Raises:
        InputError: the name is a hub id, and neither this machine nor the hub has its configs.
        CannotTellError: no script stands for it.
    """
    from .scripted_models import find_scripted  # with msgspec's records of every such model

    error: CannotTellError | None = None
    try:
        found = find_scripted(name, python, stated=stated)
    except CannotTellError as raised:
        found, error = None, raised
    if found is None:
        with contextlib.suppress(*([InputError] if error is not None else [])):
            if (fetched := _download(name, may_ask=download)) is not None:
                return find_scripted(name, python, stated=stated), fetched
    if error is not None:
        raise error
    return found, None


def _named_in_file(named: str) -> dict[str, Any]:
    """Return what a job file states whose model has a name; empty: it is another file, or none."""
    path = Path(named)
    if path.suffix != _JOB_SUFFIXES[0] or not path.is_file():
        return {}
    with contextlib.suppress(InputError):
        written = _written_job(path)
        if written is not None and written.program is None and written.model.config is None:
            model = written.model.id or "."
            is_folder = model.startswith((".", "/", "~")) or (path.parent / model).exists()
            return {} if is_folder else job_differences(Job(), written)
    return {}


def _of_scripted_model(
    options: argparse.Namespace,
    model: ScriptedModel,
    given: FlagSettings,
    changes: Mapping[str, Any],
    *,
    file: str | None = None,
) -> LoadedJob:
    """Return the job of a model without a closed form: the rehearsal of its training script.

    Args:
        options: parsed.
        model: the model.
        given: what the flags say.
        changes: settings of the job file and of the command line.
        file: the job file.

    Raises:
        InputError: a flag means nothing for it.
        CannotTellError: no script stands for the job, or no Python has its libraries.
    """
    from .script_of_model import chosen_python, program_of_script, refuse_meaningless, script_of_model

    if given.method is not None:
        raise InputError(f"--{given.method} means nothing for {model.label}, whose training script is rehearsed")
    of_flags = {key: flag for flag, text in options.flags for key in settings_of_flags([(flag, text)]).changes}
    set_there = {text.partition("=")[0] for text in options.set}
    keys = {key: f"{file}: {key}" if file and key not in set_there else f"--set {key}" for key in changes}
    keys |= of_flags
    refuse_meaningless(keys, model.label, has_length=model.spec.task in ("image-text-to-text", "feature-extraction"))
    changes = {key: value for key, value in changes.items() if key != "model.id"}
    if "lora.targets" in model.usual and of_flags.get("lora.targets") == of_flags.get("lora.quantization") is not None:
        del changes["lora.targets"]  # --qlora alone, which means all linear layers of a language model
    named = {"training.precision"} if given.weights or given.mixed else set()
    typed = frozenset(changes) | named
    usual = {key: value for key, value in model.usual.items() if not (given.whole and key.startswith("lora."))}
    changes = {**{key: value for key, value in usual.items() if key not in named}, **changes}
    job = given.complete(with_changes(Job(model=model.spec), changes, where="the command line"))
    loaded = LoadedJob(job=job, typed=typed, notes=given.remarks)
    loaded = _with_adapter_targets(loaded, changes)
    if given.adapts:
        loaded = _as_prepared(loaded)
    written = getattr(options, "out", None) or f"{model.label}.py"
    sizes = {key: value for key, (value, _) in given.inputs.items()}
    script, command, notes = script_of_model(loaded.job, model, sizes, loaded.stated, written)
    loaded = replace(loaded, script=script, notes=(*loaded.notes, *notes))
    if options.command == "program":
        return replace(loaded, job=Job(name=model.label, program=Program(command=command)))
    options.rehearse = True  # the script is vramtop's own
    python = chosen_python(model, getattr(options, "python", None))
    return replace(loaded, job=program_of_script(loaded.job, script, command, written, python=python))


def _program(options: argparse.Namespace, launch: Sequence[str] | None) -> LoadedJob:
    """Return the job of a program that is to be rehearsed.

    Raises:
        InputError: none is named.
    """
    if options.job and not launch and Path(options.job).suffix == _JOB_SUFFIXES[0]:
        return _program_of_file(Path(options.job))
    words = launch or (["python", options.job] if str(options.job).endswith(_PROGRAM_SUFFIXES) else None)
    named = [options.job] if options.job and is_shell_script(Path(options.job)) else None
    if (program := _program_of_script(words or named or [])) is not None:
        return program
    if options.job and not launch and not words:
        traced = f"vramtop estimate {options.job} --method traced"
        raise InputError(f"{options.job} is not a program; {traced} traces a step of a model")
    if not words or (launch and options.job):
        raise InputError(f"no command given; write: vramtop {rehearsing(options.command)} -- python train.py ...")
    return program_job(words)


def _program_of_script(words: Sequence[str]) -> LoadedJob | None:
    """Return the job of the program that a shell script starts; None: the words start none.

    Raises:
        InputError: what the script runs is open, or others decide it.
    """
    from vramtop.estimator.trace.own_program import require_own_script

    if (script := _in_shell_script(words)) is None:
        return None
    for path in script.scripts:
        require_own_script(path)
    assigned = ["env"] if "=" in script.words[0] else []
    return program_job([*assigned, *script.words], folder=str(script.folder))


def _program_of_file(path: Path) -> LoadedJob:
    """Return the job of a job file with a program.

    Raises:
        InputError: it describes a model.
    """
    loaded = _from_file(path, {})
    if loaded.job.program is None:
        raise InputError(f"{path} has no [program] to rehearse; vramtop fit {path} needs no rehearsal")
    return loaded


def program_job(words: Sequence[str], *, folder: str | None = None) -> LoadedJob:
    """Return the job of a command that is to be rehearsed in a folder; None: the current one."""
    program = Program(command=shlex.join(words), folder=folder or current_folder())
    return LoadedJob(job=Job(program=program), place=_COMMAND_LINE, origins={"program.command": "as you gave it"})


def rehearsing(command: str | None) -> str:
    """Return the command with which a program is rehearsed, instead of being read."""
    if command == "run":
        return "run --fit --rehearse"
    return f"{command} --rehearse" if command in ("fit", "wait", "estimate", "preflight") else "rehearse"


def load_changed(options: argparse.Namespace, loaded: LoadedJob, changes: Mapping[str, Any]) -> Job:
    """Return the job of the command line with the flags of some changes behind it.

    Raises:
        InputError: they contradict it.
    """
    from vramtop.estimator.advice.setting_edits import flag_edits

    edits = flag_edits(loaded.job, changes, flags_by_key())
    again = copy(options)
    again.flags = [*options.flags, *((edit.setting, edit.new) for edit in edits if edit.setting != "--set")]
    again.set = [*options.set, *(f"{edit.key}={edit.new}" for edit in edits if edit.setting == "--set")]
    return load_from_options(again, None).job


def _load(
    named: str | None,
    launch: Sequence[str] | None,
    changes: Mapping[str, Any],
    given: FlagSettings,
    gpus: int | None,
) -> LoadedJob:
    """Load the file, the model or the launch line with these changes.

    Raises:
        InputError: there is none, it cannot be read, or a required setting is missing.
    """
    if launch is not None:
        if named:
            raise InputError(f"both a job ({named}) and a launch line after -- were given; give one")
        loaded = _spread(_from_launch_line(launch, changes), changes, given, gpus)
        return _require_complete(loaded, "the launch line", "before the --, with")
    if not named:
        raise InputError("no job given: give a job file, a model, or a launch line after --")
    path = Path(named)
    if path.suffix in _JOB_SUFFIXES and _is_read(named):
        return _require_complete(_spread(_from_file(path, changes), changes, given, gpus), str(path), "with")
    if _is_read(named):
        line = [named] if is_shell_script(path) else ["python", named]
        loaded = _spread(_from_launch_line(line, changes), changes, given, gpus)
        return _require_complete(loaded, str(path), "with")
    try:
        return LoadedJob(job=with_changes(_from_model(named, changes), changes, where="the command line"))
    except InputError as error:
        raise (_not_a_job(error) if path.is_file() else error) from None


def _is_read(named: str) -> bool:
    """Return True for a job file or a program, rather than a model."""
    path = Path(named)
    if path.suffix in _JOB_SUFFIXES:
        return not path.is_dir()
    return is_file(path) and (path.suffix in _PROGRAM_SUFFIXES or is_shell_script(path))


def is_shell_script(path: Path) -> bool:
    """Return True for the file of a shell script."""
    from vramtop.estimator.readers.source.shell_script import shell_script_in

    return shell_script_in([str(path)], Path()) is not None


def _download(name: str, *, may_ask: bool, config: Mapping[str, Any] | None = None) -> str | None:
    """Fetch a model's config.json from the hub if it is nowhere here; return a note about it, or None.

    Args:
        name: of the model.
        may_ask: the hub may be asked (``estimates.download``).
        config: that the job states.

    Raises:
        InputError: it is nowhere here, and the hub does not give it.
    """
    if not may_ask or config is not None or not looks_like_hub_id(name) or is_file(Path(name)):
        return None
    try:
        resolve_model(ModelSpec(id=name))
    except InputError as error:
        from vramtop.estimator.model.hub import Refusal, download_config  # with urllib and TLS

        found = download_config(name, os.environ)
        if isinstance(found, Refusal):
            raise InputError(f"{error.message}; {found.message}") from None
        return f"The config.json of {name} was downloaded from {found} (estimates.download turns this off)."
    return None


def _with_adapter_targets(loaded: LoadedJob, changes: Mapping[str, Any]) -> LoadedJob:
    """Return the job with the layers that peft adapts by default in this model, where the flags name none."""
    asked = any(key.startswith("lora.") for key in changes) and "lora.targets" not in changes
    if not asked or not loaded.is_typed:
        return loaded
    from vramtop.estimator.readers.trainer.trained_model import default_targets

    setting = default_targets(resolve_model(loaded.job.model).config)
    targets = "all-linear" if setting is None else setting.value
    note = (
        "peft has no default LoRA layers for this model; assuming all linear layers"
        if setting is None
        else f"LoRA on {', '.join(targets)}, peft's default for this model"
    )
    job = with_changes(loaded.job, {"lora.targets": targets})
    return replace(loaded, job=job, notes=(*loaded.notes, f"{note}; --lora-targets changes this."))


def _as_prepared(loaded: LoadedJob) -> LoadedJob:
    """Return a job of the command line over quantized weights as peft's ``prepare_model_for_kbit_training`` makes it.

    It switches checkpointing on and casts what is not quantized to fp32; a sharded job leaves it out.
    """
    job = loaded.job
    if job.lora is None or not loaded.is_typed:
        return loaded
    lora = job_of_model(job, resolve_model(job.model)).lora
    wanted = {} if lora is None or lora.quantization == "none" else preparation(job)
    changes = {key: value for key, value in wanted.items() if key not in loaded.stated}
    if lora is None or not changes:
        return loaded
    upcast = " and peft's fp32 upcast" if "lora.kbit_preparation" in changes else ""
    kind = "QLoRA" if lora.quantization.startswith("nf4") else f"LoRA on {lora.quantization} weights"
    note = (
        f"{kind} assumes gradient checkpointing{upcast}. --gradient-checkpointing false and --lora-kbit-preparation "
        "false turn these off."
    )
    return replace(loaded, job=with_changes(job, changes), notes=(*loaded.notes, note))


def _with_sizes(loaded: LoadedJob) -> LoadedJob:
    """Return the job with the length of its sequences, and its engine's own sizes, where nothing states them."""
    if loaded.reading is not None or loaded.job.program is not None:
        return loaded
    wanted = usual_sizes(loaded.job) if loaded.is_typed else {_LENGTH: usual_length(loaded.job.model)}
    changes = {key: value for key, value in wanted.items() if key not in loaded.stated}
    return replace(loaded, job=with_changes(loaded.job, changes))


def usual_sizes(job: Job) -> dict[str, Any]:
    """Return the length of sequences, and the sizes that the job's engine has, where nothing states them."""
    length = usual_length(job.model)
    engine = job.inference.engine if job.is_served and job.inference is not None else ""
    written = serving_defaults(engine)
    found = dict(parse_assignment(f"{key}={value}") for key, value in written.items() if value != LONGEST)
    longest = None if names_user_code(job.model.id) else max_positions(resolve_model(job.model).config)
    return {**found, _LENGTH: (longest if written.get(_LENGTH) == LONGEST else None) or length}


def usual_length(model: ModelSpec) -> int:
    """Return the tokens of a sequence where nothing states them: the default, or the longest that the model takes."""
    most = None if names_user_code(model.id) else max_positions(resolve_model(model).config)
    default = Training().sequence_length
    return min(default, most or default)


def _over_gpus(loaded: LoadedJob, given: FlagSettings, gpus: int | None) -> LoadedJob:
    """Return a job of the command line that is not trained, over all of the GPUs that were named for it.

    An engine splits the layers over them (tensor parallelism), transformers places them one after the other.
    """
    job, count = loaded.job, given.processes or gpus or 1
    split = any(key.startswith("parallel.") for key in loaded.stated)
    if job.training.mode != "inference" or count < 2 or split or not loaded.is_typed:
        return loaded
    if job.is_served:
        try:
            heads = read_architecture(resolve_model(job.model).config, job.model.task).heads
        except CannotTellError:  # said where it is estimated
            return loaded
        ranks = max(n for n in range(1, count + 1) if heads % n == 0)
        changes: dict[str, Any] = {"parallel.tensor": ranks}
        how = f"split over {ranks} GPUs; --tp 1 uses one"
    else:
        changes = {"parallel.device_map": "auto", "parallel.pipeline": count}
        how = f'placed on {count} GPUs, as with device_map="auto"; --gpus 1 uses one'
    return replace(loaded, job=with_changes(job, changes), notes=(*loaded.notes, f"The model is {how}."))


def _spread(loaded: LoadedJob, changes: Mapping[str, Any], given: FlagSettings, gpus: int | None) -> LoadedJob:
    """Return the job over the GPUs of the command line, where its own configuration leaves their number open."""
    count = given.processes or gpus
    missing = [key for key in loaded.missing if key in ("parallel.data_shard", "parallel.data_replicate")]
    if loaded.reading is None or not count or len(missing) != 1:
        return loaded
    parallel = loaded.job.parallel
    within = parallel.tensor * parallel.pipeline * parallel.context
    if count % within:
        return loaded
    more = {**changes, missing[0]: count // within}
    return replace(
        loaded,
        job=loaded.reading.job(more),
        missing=loaded.reading.still_missing(more),
        notes=(*loaded.notes, f"The job is spread over the {count} GPUs of the command line."),
    )


def _checked(loaded: LoadedJob, flags: Mapping[str, str]) -> LoadedJob:
    """Return a job that the user wrote, after a look at the names in it.

    Args:
        loaded: the job.
        flags: those of the command line, which the sentence names where the value is one of theirs.

    Raises:
        InputError: a pattern in ``training.trainable`` matches no parameter of the model.
    """
    if loaded.reading is None and loaded.job.training.trainable is not None:
        from vramtop.estimator.estimation import check_trainable

        try:
            check_trainable(loaded.job)
        except InputError as error:
            typed = _TRAINABLE in flags
            raise InputError(
                error.message.replace("training.trainable", _TRAINABLE, 1) if typed else error.message
            ) from None
    return loaded


_OWN_WORDS = re.compile(r"vramtop(?: (?:fit|estimate))?(?: |$)")
"""The beginning of a line of vramtop's own."""


def _with_flags(words: Sequence[str]) -> LoadedJob:
    """Return the job of a model or file with flags; ``--gpu`` sets its card.

    Raises:
        InputError: the flags or the job are wrong, or a required setting is missing.
    """
    from vramtop.estimator.job.gpu_catalogue import find_gpu

    options = _Parser().parse_args(normal_words(words))
    options.command = "fit"
    if options.gpu:
        raise InputError(
            f"--gpu {options.gpu}: give a card, such as h100; the screen already shows this machine's GPUs"
        )
    if size := getattr(options, "gpu_memory", None):
        raise InputError(f"{size}: here give a card by its name, such as h100")
    loaded = load_from_options(options, None)
    card = {} if options.gpu_type is None else {"target.gpu": find_gpu(options.gpu_type).name}
    return replace(loaded, job=with_changes(loaded.job, card))


def load_from_text(text: str, given: Mapping[str, Any] | None = None) -> LoadedJob:
    """Load the job that the user typed or pasted; required settings may be missing.

    Args:
        text: the path of a job file or of a tool's configuration, perhaps quoted; a launch line, perhaps of several
            lines; or a model, perhaps with its flags.
        given: values that the user gives by dotted job key, in place of those there.

    Raises:
        InputError: it is none of these, or cannot be read.
    """
    changes = dict(given or {})
    text = text.strip().removeprefix("$ ").strip()
    if _COMMAND.match(text) is not None:
        return _of_command(text, changes)
    if (found := _REHEARSAL.match(text)) is not None:
        rest = text[found.end() :]
        if rest.endswith(_JOB_SUFFIXES[0]):
            return _program_of_file(expand_user(rest))
        return program_job(_program_words(rest))
    text = _OWN_WORDS.sub("", text, count=1)
    unquoted = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
    path = expand_user(unquoted)
    if path.suffix in _JOB_SUFFIXES and (is_file(path) or len(text.split()) == 1):
        return _with_sizes(_from_file(path, changes))
    if is_file(path) and is_shell_script(path):
        return _with_program(_from_launch_line([str(path)], changes), [str(path)])
    if path.suffix in _PROGRAM_SUFFIXES and is_file(path):
        return _read_or_rehearsed(shlex.join(["python", unquoted]), changes)
    if len(text.split()) > 1 and not is_folder(path):
        words = _words(text)
        starts_program = words[0].startswith("python") or "=" in words[0] or _is_launch_line(words)
        has_flags = words[1:] and words[1].startswith("-") and not starts_program
        return _with_flags(words) if has_flags else _read_or_rehearsed(text, changes)
    if not unquoted:
        raise InputError("enter a job file, a tool's configuration, a launch line, or a model")
    from .scripted_models import may_be_scripted

    if not changes and (not is_folder(path) or is_file(path / PIPELINE)) and may_be_scripted(unquoted):
        return _with_flags([unquoted])
    job = with_changes(_from_model(unquoted, changes), changes, where="what you give")
    return _with_sizes(LoadedJob(job=job, origins={"model.id": "as you gave it"}, typed=frozenset(changes)))


def _of_command(text: str, changes: Mapping[str, Any]) -> LoadedJob:
    """Return the job of a line of vramtop's with a launch line: ``vramtop fit --gpu-type h100 -- python train.py``.

    Raises:
        InputError: the flags or the launch line are wrong.
    """
    from vramtop.estimator.job.gpu_catalogue import find_gpu

    words = _words(text)
    at = words.index("--")
    before, launch = [each for each in words[:at] if each != "vramtop"], words[at + 1 :]
    parser = _Parser()
    for flag in ("--data", "--steps", "--python"):
        parser.add_argument(flag, action="append", dest="set", type=f"program.{flag[2:]}={{}}".format)
    asked = [each for each in before if each in ("rehearse", "--rehearse")]
    options = parser.parse_args(normal_words([each for each in before if each not in (*_COMMANDS, *asked)]))
    given = settings_of_flags(options.flags, gpus=options.gpus)
    stated = {**given.changes, **dict(parse_assignment(each) for each in options.set)}
    if options.gpu_type is not None:
        stated["target.gpu"] = find_gpu(options.gpu_type).name
    if asked:
        loaded = program_job(launch)
        return replace(loaded, job=with_changes(loaded.job, stated, where="the command line"))
    return _read_or_rehearsed(shlex.join(launch), {**stated, **changes})


def _words(text: str) -> list[str]:
    """Return the words of a line.

    Raises:
        InputError: a quotation has no end.
    """
    try:
        return shlex.split(text)
    except ValueError:
        raise InputError("a quotation mark is missing") from None


def _program_words(text: str) -> list[str]:
    """Return the words of the program in a shell's line, without redirections and what follows."""
    from vramtop.estimator.readers.program.launch import LaunchParser

    return LaunchParser(()).split([text])


def _read_or_rehearsed(text: str, changes: Mapping[str, Any]) -> LoadedJob:
    """Return the job of a launch line; of one whose model cannot be read, the program's rehearsal if it is Python's."""
    from vramtop.estimator.trace.python_command import python_command

    read: LoadedJob | InputError
    try:
        read = _from_launch_line([text], changes)
    except InputError as error:
        read = error
    if isinstance(read, InputError) or "model.id" in read.missing:
        with contextlib.suppress(InputError, ValueError):
            words = _program_words(text)
            python_command(words, os.environ)
            why = read.message if isinstance(read, InputError) else _NO_MODEL.format("the launch line")
            return replace(program_job(words), unread=why)
    if isinstance(read, InputError):
        raise read
    return _with_program(read, _program_words(text))


def _with_program(loaded: LoadedJob, words: Sequence[str]) -> LoadedJob:
    """Return the job read from a launch line, together with its program if that can be rehearsed."""
    from vramtop.estimator.trace.python_command import python_command

    if loaded.job.is_served:
        return loaded
    with contextlib.suppress(InputError):
        job = (_program_of_script(words) or program_job(words)).job
        if (program := job.program) is not None:
            python_command(program.words, os.environ, folder=program.folder)
            return replace(loaded, program=job)
    return loaded


def load_again(text: str, first: LoadedJob, edits: Mapping[str, Any]) -> LoadedJob:
    """Load a job again with the user's edits: what follows from a model then follows from that of the user.

    Args:
        text: what was loaded, see ``load_from_text``.
        first: the job as it was loaded without edits.
        edits: values by dotted job key.

    Raises:
        InputError: it can no longer be read, or not with these values.
    """
    is_same_model = "model.id" in edits and edits["model.id"] == first.job.model.id
    given = {key: value for key, value in edits.items() if not (is_same_model and key == "model.id")}
    loaded = load_from_text(text, given)
    return replace(loaded, origins={**loaded.origins, **dict.fromkeys(given, _GIVEN)})


def _from_file(path: Path, changes: Mapping[str, Any]) -> LoadedJob:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    written = _written_job(path) if path.suffix == ".toml" else None
    if written is not None:
        replaced = with_old_model_removed(written, changes)
        job = with_changes(written, replaced, where="the command line")
        kept = (key for key in written_keys(path) if key not in replaced)
        return LoadedJob(job=job, file=path, origins=dict.fromkeys(kept, path.name))
    if _is_model_config(path):
        job = with_changes(_from_model(str(path.resolve()), changes), changes, where="the command line")
        return LoadedJob(job=job, origins={"model.id": path.name})
    from vramtop.estimator.readers.config_file import read_config_file, tool_of_file

    return _from_reading(read_config_file(path, given=changes), changes, tool=tool_of_file(path), place=path.name)


def _written_job(path: Path) -> Job | None:
    """Return the job of a job file; None for a file that is another tool's, whose keys no job has.

    Raises:
        InputError: it is neither.
    """
    try:
        return load_job(path)
    except InputError:
        from vramtop.estimator.readers.source.data_files import read_table
        from vramtop.estimator.readers.tools.tool_registry import find_tool_by_config
        from vramtop.estimator.readers.unread_tools import unread_tool_of_table

        with contextlib.suppress(InputError):
            table = read_table(path)
            if find_tool_by_config(table) is not None or unread_tool_of_table(table) is not None:
                return None
        raise


def _is_model_config(path: Path) -> bool:
    """Return True if the JSON file describes a model rather than its training."""
    try:
        return path.suffix == ".json" and not _MODEL_CONFIG_KEYS.isdisjoint(read_config(path))
    except InputError:  # reported when the file is read as a tool's configuration
        return False


def _from_model(name: str, changes: Mapping[str, Any]) -> Job:
    name = str(changes.get("model.id") or name)
    spec = ModelSpec(id=name)
    if "model.task" not in changes and not names_user_code(name):
        model = resolve_model(spec)
        return Job(model=ModelSpec(id=spec.id, task=usual_task(model.config, where=model.where)))
    return Job(model=spec)


def _from_launch_line(launch: Sequence[str], changes: Mapping[str, Any]) -> LoadedJob:
    from vramtop.estimator.readers.launch_line import read_launch, tool_of_line

    if (script := _in_shell_script(launch)) is not None:
        try:
            reading = read_launch(script.words, cwd=script.folder, given=changes)
        except InputError as error:
            raise InputError(f"{script.place}: {error.message}") from None
        loaded = _from_reading(reading, changes, tool=tool_of_line(script.words), place=_COMMAND_LINE)
        return replace(loaded, notes=(script.note, *loaded.notes))
    return _from_reading(read_launch(launch, given=changes), changes, tool=tool_of_line(launch), place=_COMMAND_LINE)


def _in_shell_script(line: Sequence[str]) -> ScriptLaunch | None:
    """Return the launch line of the shell script that a command line runs; None: it runs none.

    Raises:
        InputError: what the script runs is open.
    """
    from vramtop.estimator.readers.launch_line import launch_of_shell_script

    return launch_of_shell_script(line, environ=os.environ, cwd=working_folder())


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


def _require_complete(loaded: LoadedJob, source: str, where: str) -> LoadedJob:
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
    if loaded.missing:
        refused = loaded.reading.refused if loaded.reading else {}
        wrong = [key for key in loaded.missing if key in refused]
        first = (*wrong, *loaded.missing)[0]
        example = f"{where} --set {first}={_EXAMPLE_VALUES.get(first, 1)}"
        if wrong:
            raise InputError(f"{refused[first]}; correct it, or give it {example}")
        unread = next((f" ({each.rstrip('.')})" for each in loaded.notes if _UNREAD in each), "")
        left_open = unread or _lines_left_open(loaded.reading)
        if absent := _ABSENT.search(unread):
            raise InputError(f"{absent[1]}: no such file")
        if "model.id" in loaded.missing and loaded.is_launch_line:
            others = ", ".join(key for key in loaded.missing if key not in ("model.id", _LENGTH))  # images have none
            also = f"; {others} must be given too" if others else ""
            raise _NotStatedError(
                f"{_NO_MODEL.format(source)}{left_open}; give it {where} --set model.id=NAME: a hub id, "
                f"a folder with a config.json, or FILE.py:FUNCTION for your own model{also}"
            )
        add = "add it" if len(loaded.missing) == 1 else "add each"
        if unread:
            add = f"correct that, or {add}"
        error = _NotStatedError(f"{source} does not set {', '.join(loaded.missing)}{left_open}; {add} {example}")
        if set(loaded.missing) <= _SIZES:
            with contextlib.suppress(InputError, CannotTellError):
                length = {_LENGTH: usual_length(loaded.job.model)} if _LENGTH in loaded.missing else {}
                error.at_usual_sizes = with_changes(loaded.job, length)
        raise error
    findings = loaded.reading.findings if loaded.reading else ()
    guessed = [f"{f.key} = {f.value_text} ({f.origin})" for f in findings if not f.written]
    if not guessed:
        return loaded
    note = f"Assumed (the job does not set these): {'; '.join(guessed)}."
    return replace(loaded, notes=(*loaded.notes, note))


def _other_input(spec: ModelSpec) -> str | None:
    """Return the task of a model that takes images or audio and has no formula; None: it is another, or not found."""
    from vramtop.estimator.program.named_models import find_named_model, named_by_config

    if not spec.id or names_user_code(spec.id):
        return None
    try:
        model = resolve_model(spec)
        read_architecture(model.config, spec.task, where=model.where)
    except InputError:
        return None
    except CannotTellError:
        named = find_named_model(spec.id) or named_by_config(model)
        return None if named is None else named.task
    return None


def _lines_left_open(reading: JobReading | None) -> str:
    """Return the first lines of the script that leave settings open, and what is not known there, in brackets."""
    found = [each.rstrip(".") for each in reading.left_open if " line " in each] if reading is not None else []
    return f" ({'; '.join(found[:_MAX_LINES])})" if found else ""


def _not_a_job(error: InputError) -> InputError:
    suffixes = ", ".join(_JOB_SUFFIXES)
    return InputError(f"{error.message}; a job is a file that ends in {suffixes}, a model, or a launch line after --")


def _is_launch_line(words: Sequence[str]) -> bool:
    """Return True if words start a program or a shell script, and do not name a model with its flags."""
    from vramtop.estimator.readers.source.shell_script import shell_script_in
    from vramtop.estimator.readers.tools.tool_registry import parse_launch  # with the readers of all tools

    runs_script = shell_script_in(words, Path()) not in (None, 0)
    is_launch = len(words) > 1 and (runs_script or parse_launch(words).program_name is not None)
    return is_launch and not is_file(expand_user(words[0]))


class _Parser(argparse.ArgumentParser):
    """Parses the job and its flags; a mistake is an InputError."""

    def __init__(self) -> None:
        super().__init__(prog="job", add_help=False, allow_abbrev=False)
        self.add_argument("--gpus", action=GpuCountAction)
        self.add_argument(*GPU_TYPE_FLAGS, action=GpuTypeAction)
        self.add_argument("--gpu", action=GpuAction)
        add_job_arguments(self)

    def error(self, message: str) -> NoReturn:
        """Raise the sentence.

        Raises:
            InputError: always.
        """
        raise InputError(message.replace("unrecognized arguments", "jobs have no such setting"))
