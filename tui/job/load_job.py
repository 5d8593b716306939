"""Loads the job of the command line: a job file, another tool's configuration, a launch line, or a model with flags."""

from __future__ import annotations

import contextlib
import os
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.paths import is_file, is_folder, note_job_folder
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.secrets import displayed
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_differences, parse_assignment, with_changes
from vramtop.estimator.job.settings import ModelSpec, Program
from vramtop.estimator.job.settled import preparation
from vramtop.estimator.model.checkpoint import job_of_model
from vramtop.estimator.model.find_config import UnknownModelError, looks_like_hub_id, resolve_model
from vramtop.estimator.model.read_architecture import read_architecture

from .flags.job_flags import flags_by_key
from .flags.settings import FlagSettings, settings_of_flags, with_method
from .loaded_job import LoadedJob
from .program_job import if_rehearsable, named_program
from .read_job import (
    JOB_SUFFIXES,
    PROGRAM_SUFFIXES,
    NotStatedError,
    from_file,
    from_launch_line,
    from_model,
    is_read,
    is_shell_script,
    require_complete,
    written_job,
)
from .usual_sizes import with_older_libraries, with_sizes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Mapping, Sequence

    from .scripted_models import ScriptedModel


_OF_PROGRAMS = ("program.", "software.")
"""Settings that ``--set`` gives a rehearsal; others describe a job."""


def load_from_options(options: argparse.Namespace, launch: Sequence[str] | None) -> LoadedJob:
    """Load the job of the command line; of a launch line that cannot be read, the program that could be rehearsed.

    Args:
        options: parsed by a parser with ``add_job_arguments``, from ``normal_words``.
        launch: the launch line after ``--``; None if there is none.

    Raises:
        InputError: no job is given, it cannot be read, or a required setting is missing.
    """
    for word in (options.job, *(launch or ())):
        if word and word.endswith(PROGRAM_SUFFIXES) and is_file(Path(word)):
            note_job_folder(Path(word).parent)
    if getattr(options, "rehearse", False) is not None:
        return _load_as_asked(options, launch)
    of_job = [text for text in options.set if not text.startswith(_OF_PROGRAMS)]
    try:
        loaded = _load_as_asked(options, launch)
    except (CannotTellError, NotStatedError, UnknownModelError) as error:
        program = _as_program(options, launch) if launch is not None or is_read(str(options.job)) else None
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
    again = copy(options)
    again.rehearse, again.flags = True, []
    again.set = [text for text in options.set if text.startswith(_OF_PROGRAMS)]
    return if_rehearsable(lambda: _load_as_asked(again, launch))


_COPIED_WEIGHTS = (
    "The weights are stored in one 16-bit dtype and computed in the other; the range includes autocast's copies. "
    "--dtype loads them in the compute dtype."
)
_WITH_SCRIPTS = ("fit", "estimate", "program", "wait", "preflight")
"""Commands that take a model without a closed form, for which its training script stands."""


def _load_as_asked(options: argparse.Namespace, launch: Sequence[str] | None) -> LoadedJob:
    """Load the job of the command line: its program with ``--rehearse``, otherwise what is read."""
    settings = getattr(options, "settings", None)
    download = settings is not None and bool(settings.values["estimates.download"])
    gpus = getattr(options, "gpus", None)
    named = options.job or (None if launch is not None else options.model_flag)
    given = settings_of_flags(options.flags, gpus=gpus, model_alone=bool(named) and not is_read(str(named)))
    changes = {**given.changes, **dict(parse_assignment(text) for text in options.set)}
    if options.model_flag and options.model_flag != named:
        if options.job and Path(options.job).suffix not in (*JOB_SUFFIXES, *PROGRAM_SUFFIXES):
            raise InputError(f"both {options.job} and --model {options.model_flag} name a model; give one")
        changes.setdefault("model.id", options.model_flag)
    in_file = _named_in_file(named) if launch is None and named else {}
    name = str(changes.get("model.id") or in_file.get("model.id") or named or "")
    fetched = None
    scripted = launch is None and name and getattr(options, "command", None) in _WITH_SCRIPTS and not is_read(name)
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
    loaded = named_program(options, launch) if rehearsed else _load(named, launch, changes, given, options)
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
    named = given.weights or given.mixed == job.training.precision  # mixed precision leaves the weights open
    typed = frozenset(changes) | ({"training.precision"} if named else set())
    loaded = replace(loaded, job=job, notes=(*given.remarks, *loaded.notes, *copied), typed=typed)
    loaded = _over_gpus(with_sizes(_with_adapter_targets(loaded, changes)), given, gpus)
    if given.method is not None:
        # TRL loads weights in a type of its own, whatever the mixed precision is
        stated = loaded.stated - (set() if given.weights or "training.precision" in changes else {"training.precision"})
        job, note = with_method(loaded.job, given.method, stated, changes, given.method_arguments)
        loaded = replace(loaded, job=job, notes=(*loaded.notes, note), typed=stated & loaded.typed)
    elif given.adapts:
        loaded = _as_prepared(loaded)
    return _checked(loaded.finding_gpus(gpus), dict(options.flags))


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
    if path.suffix != JOB_SUFFIXES[0] or not is_file(path):
        return {}
    with contextlib.suppress(InputError):
        written = written_job(path)
        if written is not None and written.program is None and written.model.config is None:
            model = written.model.id or "."
            is_path = model.startswith((".", "/", "~")) or is_folder(path.parent / model)
            return {} if is_path else job_differences(Job(), written)
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
    from vramtop.estimator.program.named_models import NamedModel
    from vramtop.estimator.program.training_script import How

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
    job = with_changes(Job(model=model.spec), changes, where="the command line")
    loaded = LoadedJob(job=job, typed=typed, notes=given.remarks)
    is_printed, python = options.command == "program", getattr(options, "python", None)
    if isinstance(model, NamedModel):
        loaded = with_older_libraries(loaded, python)
    loaded = replace(loaded, job=given.complete(loaded.job))
    loaded = _with_adapter_targets(loaded, changes)
    if given.adapts:
        loaded = _as_prepared(loaded)
    written = getattr(options, "out", None) or f"{model.label}.py"
    sizes = {key: value for key, (value, _) in given.inputs.items()}
    runs_it, transformers = (None, None) if is_printed and python is None else chosen_python(model, python)
    how = How(loaded.stated, written, transformers=transformers)
    script, command, notes = script_of_model(loaded.job, model, sizes, how)
    loaded = replace(loaded, script=script, notes=(*loaded.notes, *notes))
    if is_printed or runs_it is None:
        return replace(loaded, job=Job(name=model.label, program=Program(command=command)))
    options.rehearse = True  # the script is vramtop's own
    return replace(loaded, job=program_of_script(loaded.job, script, command, written, python=runs_it))


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
    options: argparse.Namespace,
) -> LoadedJob:
    """Load the file, the model or the launch line with these changes.

    Raises:
        InputError: there is none, it cannot be read, or a required setting is missing.
    """
    python = options.python if getattr(options, "names_python", False) else None
    if launch is not None:
        if named:
            raise InputError(f"both a job ({named}) and a launch line after -- were given; give one")
        loaded = _spread(from_launch_line(launch, changes, python=python), changes, given, options)
        return require_complete(loaded, "the launch line", "before the --, with")
    if not named:
        raise InputError("no job given: give a job file, a model, or a launch line after --")
    path = Path(named)
    if path.suffix in JOB_SUFFIXES and is_read(named):
        return require_complete(_spread(from_file(path, changes), changes, given, options), str(path), "with")
    if is_read(named):
        line = [named] if is_shell_script(path) else ["bash" if path.suffix == ".sh" else "python", named]
        loaded = _spread(from_launch_line(line, changes, python=python), changes, given, options)
        return require_complete(loaded, str(path), "with")
    try:
        loaded = LoadedJob(job=with_changes(from_model(named, changes), changes, where="the command line"))
    except InputError as error:
        if not is_file(path):
            raise
        kinds = f"a file that ends in {', '.join(JOB_SUFFIXES)}, a model, or a launch line after --"
        raise InputError(f"{error.message}; a job is {kinds}") from None
    return with_older_libraries(loaded, getattr(options, "python", None))


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
            raise type(error)(f"{error.message}; {found.message}") from None
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


def _spread(
    loaded: LoadedJob, changes: Mapping[str, Any], given: FlagSettings, options: argparse.Namespace
) -> LoadedJob:
    """Return the job spread over the command line's GPUs, or this machine's, where it leaves their number open."""
    if loaded.open_degree is None:
        return loaded
    if named := given.processes or getattr(options, "gpus", None):
        return loaded.spread_over(named, "the command line", changes)
    here = getattr(options, "count_gpus", lambda: None)()
    return loaded.spread_over(here, "this machine", changes) if here else loaded


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
            if "--trainable" not in flags:
                raise
            raise InputError(error.message.replace("training.trainable", "--trainable", 1)) from None
    return loaded
